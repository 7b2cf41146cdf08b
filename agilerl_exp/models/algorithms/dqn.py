"""Spec of DQN (Mnih et al. 2015; double: van Hasselt et al. 2016).

Must not know: networks, losses, loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from agilerl_exp.models import _resolve
from agilerl_exp.models.algo import RLAlgorithmSpec, register
from agilerl_exp.models.base import Tunable


@register()
class DQNSpec(RLAlgorithmSpec):
    """Deep Q-learning for discrete actions."""

    off_policy: ClassVar[bool] = True
    uses_epsilon: ClassVar[bool] = True

    lr: Annotated[float, Field(ge=0), Tunable(1e-5, 1e-2, "log")] = 1e-4
    """Learning rate of Adam."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """constant, or a straight line from lr to lr * lr_final_fraction at max_steps."""
    lr_final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Fraction of lr left at max_steps; read by lr_schedule=linear only."""
    tau: Annotated[float, Field(ge=0, le=1), Tunable(1e-4, 0.1, "log")] = 1e-3
    """Share of the online weights mixed into the target an update; not read with target_update_interval."""
    target_update_interval: Annotated[int | None, Field(ge=1)] = None
    """Env steps of a member between whole copies into the target; null: mix by tau at each update."""
    double: bool = False
    """Choose the next action with the online network, value it with the target."""
    loss: Literal["mse", "huber"] = "mse"
    """Error function of the TD error (huber: threshold 1)."""
    max_grad_norm: Annotated[float | None, Field(gt=0)] = None
    """Norm that a member's gradient is clipped to; null: no clipping."""
    normalize_obs: bool = False
    """Scale observations by a member's running mean and deviation, applied to samples and when acting."""

    @staticmethod
    def get_training_fn() -> Callable[..., tuple[list[Any], list[float]]]:
        """Return `train_off_policy`."""
        return _resolve.attribute("training.library", "train_off_policy")
