"""From a network spec to the network that fits the observations.

Must not know: what the outputs mean.
"""

from __future__ import annotations

from typing import Any

from agilerl_exp.models.network import AutoSpec, MlpSpec
from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Network
from agilerl_exp.networks.observation import ObservationCodec


def resolve(spec: Any, inputs: ObservationCodec) -> Any:
    """The spec with its `arch` decided: what is written in a checkpoint and mutated.

    Args:
        spec: a network spec, or None for the defaults.
        inputs: turns observations into what the network reads.
    """
    spec = AutoSpec() if spec is None else spec
    return MlpSpec(**spec.model_dump(exclude={"arch"})) if isinstance(spec, AutoSpec) else spec


def build(spec: Any, inputs: ObservationCodec, outputs: int) -> Network:
    """The network of a spec.

    Args:
        spec: a network spec, or None for the defaults.
        inputs: turns observations into what the network reads.
        outputs: number of outputs.
    """
    return Mlp.from_spec(resolve(spec, inputs), inputs.width, outputs)
