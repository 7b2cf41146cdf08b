"""The evolution of a run from its specs.

Must not know: how a loop trains.
"""

from __future__ import annotations

from typing import Any

from agilerl_exp.errors import ConfigError
from agilerl_exp.evolution.evolve import Evolution
from agilerl_exp.models.algo import AlgorithmSpec
from agilerl_exp.models.evolution import NoEvolutionSpec, mistakes, mutable
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.run.random import Streams


def evolution_of(spec: Any, algo: AlgorithmSpec, training: TrainingSpec, seed: int) -> Evolution | None:
    """The evolution that `spec` asks for; None where it asks for none, `training.hpo` is off or there is one member.

    Args:
        spec: an evolution spec.
        algo: says what can mutate.
        training: lengths that bound some ranges.
        seed: of the run; taken where the spec has none.

    Raises:
        ConfigError: it does not fit the other two.
    """
    if isinstance(spec, NoEvolutionSpec) or not training.hpo or training.pop_size == 1:
        return None
    lines = mistakes(algo, training, spec)
    if lines:
        raise ConfigError("\n".join(lines))
    streams = Streams(seed if spec.seed is None else spec.seed, range(training.pop_size))
    return Evolution(spec, mutable(algo, training, spec), streams.generator)
