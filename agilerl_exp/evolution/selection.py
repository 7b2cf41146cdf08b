"""Who goes on in which slot: tournament, MF-PBT and truncation selection on the numbers alone.

Must not know: members, networks, what a mutation does. A fitness that is not finite is worse than any other; equal
ones rank by slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from agilerl_exp.errors import DivergenceError
from agilerl_exp.models.evolution import MultiFrequencySpec, PbtSpec, TournamentSpec


class Selection(NamedTuple):
    """Arrays `(P,)`, one entry a slot: whose member goes on, whose hyperparameters it takes, whether it mutates."""

    parents: np.ndarray
    hyper_parents: np.ndarray
    mutate: np.ndarray


def select(spec: Any, fitness: np.ndarray, generation: int, rng: np.random.Generator) -> Selection:
    """Choose the members of the next generation.

    Args:
        spec: a `TournamentSpec`, `MultiFrequencySpec` or `PbtSpec`.
        fitness: `(P,)`, greater is better.
        generation: evaluations so far, from 1.
        rng: source of the draws.

    Raises:
        DivergenceError: no fitness is finite.
    """
    score = np.where(np.isfinite(fitness), fitness, -np.inf)
    if not np.isfinite(score).any():
        raise DivergenceError("no member has a finite fitness; lower algo.lr or set algo.max_grad_norm")
    kinds: dict[Any, Any] = {
        TournamentSpec: _tournament,
        MultiFrequencySpec: _multi_frequency,
        PbtSpec: _truncation,
    }
    chosen = kinds[type(spec)](spec, score, generation, rng)
    # Whoever diverged learns no more, so nobody waits for the turn of its sub-population.
    slots, best = np.arange(len(score)), _ranked(score)[0]
    lost = ~np.isfinite(score[chosen.parents])
    chosen.parents[lost] = chosen.hyper_parents[lost] = best
    chosen.mutate[lost & (slots != best)] = True
    return chosen


def _ranked(score: np.ndarray) -> np.ndarray:
    """Slots, best first."""
    return np.argsort(-score, kind="stable")


def _tournament(
    spec: TournamentSpec, score: np.ndarray, generation: int, rng: np.random.Generator
) -> Selection:
    pop = len(score)
    rank = np.empty(pop, np.int64)
    rank[_ranked(score)] = np.arange(pop)
    drawn = rng.integers(pop, size=(pop, spec.tournament_size))
    winners = drawn[np.arange(pop), rank[drawn].argmin(1)]
    mutate = np.ones(pop, bool)
    best = int(_ranked(score)[0])
    if spec.elitism:
        winners[best], mutate[best] = best, spec.mutate_elite
    order = _seats(winners, best if spec.elitism else None)
    return Selection(winners[order], winners[order].copy(), mutate[order])


def _seats(winners: np.ndarray, elite: int | None) -> np.ndarray:
    """An order of the winners in which each that won at all keeps its own slot: nobody moves without need."""
    order = np.full(len(winners), -1)
    late = []
    first = [] if elite is None else [elite]
    for k in [*first, *(k for k in range(len(winners)) if k not in first)]:
        if order[winners[k]] < 0:
            order[winners[k]] = k
        else:
            late.append(k)
    order[order < 0] = late
    return order


def _multi_frequency(
    spec: MultiFrequencySpec, score: np.ndarray, generation: int, rng: np.random.Generator
) -> Selection:
    parents = np.arange(len(score))
    hyper_parents, mutate = parents.copy(), np.zeros(len(score), bool)
    size = len(score) // spec.n_subpopulations
    winners, survivors, migrants, _ = spec.brackets(size)
    for block, ratio in enumerate(spec.ratios):
        if generation % ratio:
            continue
        ours = np.arange(block * size, (block + 1) * size)
        ours = ours[_ranked(score[ours])]
        others = np.delete(np.arange(len(score)), slice(block * size, (block + 1) * size))
        outsiders = others[_ranked(score[others])]
        start, stop = winners + survivors, winners + survivors + migrants
        for slot, outsider in zip(ours[start:stop], outsiders, strict=False):
            if score[slot] < score[outsider]:
                parents[slot] = outsider
                # What a faster block found is short-sighted: its weights are welcome, its hyperparameters are not.
                faster = spec.ratios[outsider // size] < ratio
                hyper_parents[slot] = ours[0] if faster else outsider
        losers = ours[stop:]
        parents[losers] = hyper_parents[losers] = rng.choice(ours[:winners], len(losers))
        mutate[losers] = True
    return Selection(parents, hyper_parents, mutate)


def _truncation(spec: PbtSpec, score: np.ndarray, generation: int, rng: np.random.Generator) -> Selection:
    pop = len(score)
    count = max(1, int(spec.quantile * pop))
    order = _ranked(score)
    parents, losers = np.arange(pop), order[pop - count :]
    parents[losers] = rng.choice(order[:count], count)
    return Selection(parents, parents.copy(), parents != np.arange(pop))
