"""Temporal-difference targets and losses of action-value methods.

Must not know: where the values come from. Shapes: q `(..., B, A)`, everything else `(..., B)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

HUBER_DELTA = 1.0


def legal_only(q_value: Tensor, mask: Tensor | None) -> Tensor:
    """Set the values of illegal actions to -inf; a row without any legal action is left as it is.

    Args:
        q_value: `(..., B, A)`.
        mask: `(..., B, A)`, nonzero where an action is legal, or None when all are.
    """
    if mask is None:
        return q_value
    legal = mask.bool()
    return q_value.masked_fill(~legal & legal.any(-1, keepdim=True), -torch.inf)


def pick(q_value: Tensor, action: Tensor) -> Tensor:
    """The value of the action taken, `(..., B)`; action `(..., B)` int64."""
    return q_value.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def td_target(
    reward: Tensor, discount: Tensor, terminated: Tensor, next_q: Tensor, selector_q: Tensor | None = None
) -> Tensor:
    """reward + discount * (1 - terminated) * max next_q.

    With `selector_q` the action is chosen by it and valued by `next_q` (double Q-learning, van Hasselt et
    al. 2016, eq. 4). `discount` is gamma**m for a row of m rewards; truncation does not appear, because a
    truncated row still bootstraps from its true last observation.
    """
    bootstrap = next_q.amax(-1) if selector_q is None else pick(next_q, selector_q.argmax(-1))
    return torch.addcmul(reward, discount * (1 - terminated), bootstrap)


def elementwise_loss(td_error: Tensor, kind: str) -> Tensor:
    """`mse`: td_error**2. `huber`: the same within 1 and 2|x|-1 outside, so that both share one slope at 0."""
    if kind == "mse":
        return td_error * td_error
    size = td_error.abs()
    return torch.where(size <= HUBER_DELTA, td_error * td_error, HUBER_DELTA * (2 * size - HUBER_DELTA))


def loss_slope(td_error: Tensor, kind: str) -> Tensor:
    """Derivative of `elementwise_loss` by the TD error."""
    return 2 * (td_error if kind == "mse" else td_error.clamp(-HUBER_DELTA, HUBER_DELTA))
