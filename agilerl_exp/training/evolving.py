"""The evolution of a run from its specs.

Must not know: how a loop trains.
"""

from __future__ import annotations

from typing import Any

from agilerl_exp.evolution.evolve import Evolution
from agilerl_exp.models.algo import AlgorithmSpec
from agilerl_exp.models.evolution import mutable
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.run.random import Streams


def evolution_of(spec: Any, algo: AlgorithmSpec, training: TrainingSpec, seed: int) -> Evolution:
    """The evolution that `spec` asks for.

    Args:
        spec: an evolution spec, but not `NoEvolutionSpec`.
        algo: says what can mutate.
        training: lengths that bound some ranges.
        seed: of the run; taken where the spec has none.
    """
    streams = Streams(seed if spec.seed is None else spec.seed, range(training.pop_size))
    return Evolution(spec, mutable(algo, training, spec), streams.generator)
