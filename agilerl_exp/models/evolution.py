"""Specs of how a population evolves: who goes on, what may mutate, within which bounds.

Must not know: how members are stored, what a mutation does to tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from agilerl_exp.models.algo import AlgorithmSpec
from agilerl_exp.models.base import RLHyperparameter, Spec, Tunable, did_you_mean, tag_of, tunables
from agilerl_exp.models.network import Activation
from agilerl_exp.models.training import ReplayBufferSpec, TrainingSpec

Weight: TypeAlias = Annotated[float, Field(ge=0)]


class MutationProbabilities(Spec):
    """Relative weights of the kinds of mutation; what they sum to does not matter."""

    no_mut: Weight = 0.4
    """No mutation."""
    arch: Weight = 0.2
    """A change of the network's layers or widths."""
    new_layer: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Not a kind: the probability that a change of the network is one of layers (blocks) and not of widths."""
    params: Weight = 0.2
    """Noise on the weights of the policy."""
    activation: Weight = 0
    """Another activation function."""
    rl_hp: Weight = 0.2
    """A move of hyperparameters."""

    @model_validator(mode="after")
    def _some_kind(self) -> MutationProbabilities:
        kinds = [self.no_mut, self.arch, self.params, self.activation, self.rl_hp]
        self.refuse_where((not any(kinds), "no_mut", "all kinds have weight 0; give one of them a weight"))
        return self


class EvolutionSpec(Spec):
    """What all ways to evolve have in common."""

    rl_hp_selection: dict[str, RLHyperparameter | None] | None = None
    """Hyperparameters that may mutate, each with its range or null for the usual one; null: all that can."""
    init: Literal["spec", "sample"] = "spec"
    """How members start: all as configured, or each with hyperparameters and widths drawn from their ranges."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of selection and mutation; null: the seed of the run."""


class NoEvolutionSpec(Spec):
    """Members train side by side; nothing is selected or mutated."""

    name: Literal["none"] = "none"
    """Which way to evolve."""


def _activations() -> list[Activation]:
    return ["ReLU", "ELU", "GELU"]


class MutatingSpec(EvolutionSpec):
    """Ways to evolve that mutate networks as well as hyperparameters."""

    probabilities: MutationProbabilities = Field(default_factory=MutationProbabilities)
    """How often which kind of mutation happens."""
    mutation_sd: Annotated[float, Field(ge=0)] = 0.1
    """Size of the noise on weights, as a part of their own size."""
    activations: Annotated[list[Activation], Field(min_length=1)] = Field(default_factory=_activations)
    """What an activation mutation chooses from."""
    pretrain_mutation: bool = False
    """Mutate every member once before training (no_mut does not count)."""


class TournamentSpec(MutatingSpec):
    """The best of a few members drawn at random goes on in each slot."""

    name: Literal["tournament"] = "tournament"
    """Which way to evolve."""
    tournament_size: Annotated[int, Field(ge=1)] = 2
    """Members drawn, with replacement, for each slot."""
    elitism: bool = True
    """Let the best member go on in its own slot."""
    mutate_elite: bool = False
    """Mutate the elite as well; false: it goes on byte for byte."""


class MultiFrequencySpec(MutatingSpec):
    """MF-PBT (Doulazmi et al. 2025): sub-populations that select at different frequencies and exchange members."""

    name: Literal["multi_frequency"] = "multi_frequency"
    """Which way to evolve."""
    n_subpopulations: Annotated[int, Field(ge=2)] = 2
    """Equal blocks of the population."""
    n_winners: Annotated[int, Field(ge=1)] | None = None
    """Best members of a block, which the losers are copied from; null: a quarter."""
    n_survivors: Annotated[int, Field(ge=0)] = 0
    """Members after the winners that go on untouched."""
    n_open_for_migration: Annotated[int, Field(ge=1)] | None = None
    """Members after the survivors that give way to better ones of other blocks; null: a quarter."""
    n_losers: Annotated[int, Field(ge=1)] | None = None
    """Worst members, each replaced by a mutated copy of a winner; null: the rest."""
    evolution_frequency_ratios: list[Annotated[int, Field(ge=1)]] | None = None
    """Generations between two selections of each block, rising; null: 1, 5, 10, 15, ..."""

    def brackets(self, size: int) -> tuple[int, int, int, int]:
        """Winners, survivors, open members and losers of a block of `size`, defaults filled in."""
        quarter = max(1, round(size / 4))
        winners = quarter if self.n_winners is None else self.n_winners
        migrants = quarter if self.n_open_for_migration is None else self.n_open_for_migration
        rest = size - winners - self.n_survivors - migrants
        return winners, self.n_survivors, migrants, rest if self.n_losers is None else self.n_losers

    @property
    def ratios(self) -> list[int]:
        """Generations between two selections of each block."""
        if self.evolution_frequency_ratios is not None:
            return self.evolution_frequency_ratios
        return [max(1, 5 * k) for k in range(self.n_subpopulations)]

    @model_validator(mode="after")
    def _rising(self) -> MultiFrequencySpec:
        ratios, blocks = self.ratios, self.n_subpopulations
        name = "evolution_frequency_ratios"
        falls = any(a >= b for a, b in pairwise(ratios))
        self.refuse_where(
            (len(ratios) != blocks, name, f"must have n_subpopulations={blocks} entries"),
            (falls, name, "must rise strictly"),
        )
        return self

    def misfits(self, pop_size: int) -> Iterator[str]:
        """What makes it impossible with a population of that size."""
        size, rest = divmod(pop_size, self.n_subpopulations)
        if rest or size < 3:
            yield (
                f"evolution.n_subpopulations={self.n_subpopulations}: training.pop_size={pop_size} must be a multiple "
                "of it with at least 3 members each"
            )
            return
        brackets = self.brackets(size)
        if sum(brackets) != size or min(brackets[0], *brackets[2:]) < 1:
            names = "n_winners, n_survivors, n_open_for_migration, n_losers"
            yield (
                f"evolution.n_losers={brackets[3]}: {names} = {', '.join(map(str, brackets))} must sum to the {size} "
                "members of a sub-population, with at least one winner, open member and loser"
            )


class PbtSpec(EvolutionSpec):
    """Population based training (Jaderberg et al. 2017) with truncation selection; only hyperparameters change."""

    name: Literal["pbt"] = "pbt"
    """Which way to evolve."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """Part of the population that is replaced by copies of an equal part at the top."""
    explore: Literal["perturb", "resample"] = "perturb"
    """What happens to the hyperparameters of a copy: multiplied by 0.8 or 1.2, or drawn anew from their ranges."""
    resample_probability: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Probability that a hyperparameter is drawn anew all the same; read by explore=perturb only."""

    @model_validator(mode="after")
    def _idle(self) -> PbtSpec:
        default = type(self).model_fields["resample_probability"].default
        idle = self.explore == "resample" and self.resample_probability != default
        self.refuse_where((idle, "resample_probability", "has no effect with explore=resample; leave it out"))
        return self


AnyEvolution: TypeAlias = Annotated[
    Annotated[NoEvolutionSpec, Tag("name=none")]
    | Annotated[TournamentSpec, Tag("name=tournament")]
    | Annotated[MultiFrequencySpec, Tag("name=multi_frequency")]
    | Annotated[PbtSpec, Tag("name=pbt")],
    Discriminator(tag_of("name", "tournament")),
]
"""Any way to evolve, told apart by `name`."""


@dataclass(frozen=True)
class Range:
    """Within which bounds, in which coordinate and by which factors a hyperparameter moves.

    Attributes:
        low, high: ends.
        scale: as in `Tunable`.
        integer: whether its values are whole numbers.
        grow_factor, shrink_factor: what replaces the usual move, where given.
    """

    low: float
    high: float
    scale: Literal["log", "log1m", "linear"]
    integer: bool = False
    grow_factor: float | None = None
    shrink_factor: float | None = None


def mutable(algo: AlgorithmSpec, training: TrainingSpec, evolution: EvolutionSpec) -> dict[str, Range]:
    """The hyperparameters that may move in this experiment, each with its range.

    Left out is what nothing reads: epsilon fields of a constant schedule but eps_start, tau with whole copies into
    the target. The batch is at most the ring, an interval at most the run.
    """
    usable = _usable(algo, training)
    allowed: dict[str, Any] = dict.fromkeys(usable) if algo.hp_config is None else dict(algo.hp_config)
    if evolution.rl_hp_selection is not None:
        allowed = {key: given or allowed.get(key) for key, given in evolution.rl_hp_selection.items()}
    ring = training.replay_buffer or ReplayBufferSpec()
    ceilings = {"batch_size": ring.max_size if algo.off_policy else None, "learn_step": training.max_steps}
    out = {}
    for key, given in allowed.items():
        usual = _usual(algo, training, key, ceilings.get(key))
        if given is not None:
            factors = {"grow_factor": given.grow_factor, "shrink_factor": given.shrink_factor}
            scale = usual.scale if given.min > 0 or usual.scale != "log" else "linear"
            usual = Range(given.min, given.max, scale, usual.integer, **factors)
        out[key] = usual
    return out


def _usual(algo: AlgorithmSpec, training: TrainingSpec, key: str, ceiling: float | None) -> Range:
    spec = algo.mutable_fields()[key]
    mark = tunables(spec)[key]
    if key == "eps_decay" and training.eps_schedule == "linear":  # a number of env steps, not a factor
        mark = Tunable(max(1.0, 0.02 * training.max_steps), max(1.0, 0.5 * training.max_steps), "log")
    high = mark.high if ceiling is None else max(mark.low, min(mark.high, ceiling))
    return Range(mark.low, high, mark.scale, spec.model_fields[key].annotation is int)


def _usable(algo: AlgorithmSpec, training: TrainingSpec) -> list[str]:
    unread = set()
    if training.eps_schedule == "constant":
        unread |= {"eps_end", "eps_decay"}
    if getattr(algo, "target_update_interval", None) is not None:
        unread.add("tau")
    return [key for key in algo.mutable_fields() if key not in unread]


def mistakes(
    algo: AlgorithmSpec, training: TrainingSpec, evolution: EvolutionSpec | NoEvolutionSpec
) -> list[str]:
    """What is wrong with an evolution in this experiment, a line each."""
    if isinstance(evolution, NoEvolutionSpec):
        return []
    lines, have = [], _usable(algo, training)
    for place, names in (
        ("algo.hp_config", algo.hp_config),
        ("evolution.rl_hp_selection", evolution.rl_hp_selection),
    ):
        lines += [
            f"{place}.{key}: cannot mutate here{did_you_mean(key, have)} (have: {', '.join(have)})"
            for key in names or {}
            if key not in have
        ]
        have = have if names is None else [key for key in have if key in names]
    for key, given in (evolution.rl_hp_selection or {}).items():
        if key in have:
            lines += [f"evolution.rl_hp_selection.{line}" for line in algo.range_mistakes(key, given)]
    if isinstance(evolution, MultiFrequencySpec) and training.hpo and training.pop_size > 1:
        lines += evolution.misfits(training.pop_size)
    return lines
