"""One step of evolution: select, mutate, and say who was born.

Must not know: how fitness came about, where experience and lineage are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from agilerl_exp.evolution.hyperparameters import explored, mutated, sampled
from agilerl_exp.evolution.mutation import draw_kinds, shake
from agilerl_exp.evolution.selection import select
from agilerl_exp.models.evolution import PbtSpec, Range
from agilerl_exp.networks import morph
from agilerl_exp.population.population import Population

Generator = Callable[[str, int], np.random.Generator]
"""(purpose, slot) -> a fresh source of random numbers, the same at each call."""
Probe = Callable[[int], Any]
"""Slot -> observations `(1, N, ...)` on which the change of a network's outputs is measured."""


class Birth(NamedTuple):
    """How the member of a slot came to be; a row of the lineage.

    Attributes:
        member: the slot.
        parent: slot of the member that it goes on from; its own where it was mutated only, None for a founder.
        hyper_parent: slot that the hyperparameters come from.
        kind: `founder`, `none`, `arch`, `params`, `activation` or `rl_hp`.
        name: what was changed (`add_node hidden_size`, `lr`); None where that has no single name.
        old, new: its values; of a founder all values, in `new`.
        moved: of a new architecture, the largest change of an output as a part of the largest output.
        fitness: of the parent.
    """

    member: int
    parent: int | None
    hyper_parent: int | None
    kind: str
    name: str | None = None
    old: Any = None
    new: Any = None
    moved: float | None = None
    fitness: float | None = None


class Evolution:
    """Selects and mutates a population once a generation.

    Args:
        spec: how.
        ranges: what may mutate, and within which bounds.
        generator: all randomness.
    """

    def __init__(self, spec: Any, ranges: Mapping[str, Range], generator: Generator):
        self.spec, self.ranges, self._generator = spec, dict(ranges), generator

    def start(self, population: Population, probe: Probe) -> list[Birth]:
        """Draw the first members and mutate them, as far as the spec asks for it; returns a founder each."""
        everyone = np.arange(len(population))
        if self.spec.init == "sample":
            self._sample(population)
        if getattr(self.spec, "pretrain_mutation", False):
            kinds = self._kinds(len(population), 0, sure=True)
            births = [Birth(slot, slot, slot, kind) for slot, kind in enumerate(kinds)]
            self._carry_out(population, everyone, everyone, births, 0, probe)
        return [
            Birth(slot, None, None, "founder", new=_settings(agent))
            for slot, agent in enumerate(population.agents)
        ]

    def step(
        self, population: Population, fitness: np.ndarray, generation: int, probe: Probe
    ) -> tuple[np.ndarray, list[Birth]]:
        """Replace and mutate members.

        Args:
            population: changed in place.
            fitness: `(P,)`; what is not finite is worst, and its member is replaced.
            generation: evaluations so far, from 1.
            probe: see `Probe`.

        Returns:
            `(P,)` slots whose members went on in each slot, and a birth for each slot that was replaced or mutated.

        Raises:
            DivergenceError: no fitness is finite.
        """
        chosen = select(self.spec, fitness, generation, self._generator(f"selection/{generation}", 0))
        kinds = self._kinds(len(population), generation)
        births = [
            Birth(slot, parent, hyper_parent, kinds[slot] if mutate else "none")
            for slot, (parent, hyper_parent, mutate) in enumerate(
                zip(*(part.tolist() for part in chosen), strict=True)
            )
        ]
        births = self._carry_out(population, chosen.parents, chosen.hyper_parents, births, generation, probe)
        births = [birth for birth in births if birth.kind != "none" or birth.parent != birth.member]
        return chosen.parents, [birth._replace(fitness=float(fitness[birth.parent])) for birth in births]

    def _sample(self, population: Population) -> None:
        """Hyperparameters and widths drawn from their ranges, untrained weights of these widths."""
        newcomers, everyone = {}, np.arange(len(population))
        columns = {name: population.column(name) for name in self.ranges}
        for slot, agent in enumerate(population.agents):
            rng = self._generator("sample", slot)
            values = {name: float(column[slot]) for name, column in columns.items()}
            for name, value in sampled(values, self.ranges, rng).items():
                columns[name][slot] = value
            newcomers[slot] = agent.with_network(morph.sampled(agent.spec.net_config, rng))
        population.evolve(everyone, everyone, newcomers)
        for name, column in columns.items():
            population.set_column(name, column)

    def _kinds(self, pop: int, generation: int, sure: bool = False) -> list[str]:
        """A kind of mutation for each slot, should it mutate."""
        if isinstance(self.spec, PbtSpec):
            return ["rl_hp"] * pop
        return draw_kinds(self.spec.probabilities, self._generator(f"kind/{generation}", 0), pop, sure)

    def _carry_out(
        self,
        population: Population,
        parents: np.ndarray,
        hyper_parents: np.ndarray,
        births: list[Birth],
        generation: int,
        probe: Probe,
    ) -> list[Birth]:
        """Let the parents go on, with the mutations of `births`; returns the births with what was changed."""
        newcomers = {}
        rngs = {
            birth.member: self._generator(f"mutation/{generation}", birth.member)
            for birth in births
            if birth.kind != "none"
        }
        for i, birth in enumerate(births):
            if birth.kind in ("arch", "activation"):
                parent, rng = population.agents[parents[birth.member]], rngs[birth.member]
                change = self._change(birth.kind, parent.spec.net_config, rng)
                if change is None:
                    births[i] = birth._replace(kind="none")
                    continue
                newcomers[birth.member] = agent = parent.morphed(change.spec, rng)
                moved = _moved(parent, agent, probe(int(parents[birth.member])))
                name = " ".join(dict.fromkeys([change.kind, change.field]))
                births[i] = birth._replace(name=name, old=change.old, new=change.new, moved=moved)
        population.evolve(parents, hyper_parents, newcomers)
        for i, birth in enumerate(births):
            agent = population.agents[birth.member]
            if birth.kind == "params":
                shake(agent.cohort, agent.row, self.spec.mutation_sd, rngs[birth.member])
            elif birth.kind == "rl_hp":
                births[i] = self._move(agent, birth, rngs[birth.member])
        return births

    def _change(self, kind: str, net_config: Any, rng: np.random.Generator) -> morph.Change | None:
        if net_config is None:
            return None
        if kind == "activation":
            return morph.activation(net_config, rng, self.spec.activations)
        return morph.draw(net_config, rng, self.spec.probabilities.new_layer)

    def _move(self, agent: Any, birth: Birth, rng: np.random.Generator) -> Birth:
        """Change hyperparameters in the bank's columns."""
        present = agent.hyperparameters
        values = {name: present[name] for name in self.ranges}
        if isinstance(self.spec, PbtSpec):
            moved = explored(self.spec, values, self.ranges, rng)
        else:
            moved = mutated(values, self.ranges, rng)
        changed = {name: value for name, value in moved.items() if value != values[name]}
        for name, value in changed.items():
            agent.cohort.hyper[name][agent.row] = value
        old = {name: values[name] for name in changed}
        if len(changed) == 1:
            ((name, value),) = changed.items()
            return birth._replace(name=name, old=old[name], new=value)
        return birth._replace(old=old, new=changed) if changed else birth._replace(kind="none")


def _settings(agent: Any) -> dict[str, Any]:
    net_config = getattr(agent.spec, "net_config", None)
    return agent.hyperparameters | (
        {} if net_config is None else {"net_config": net_config.model_dump(mode="json")}
    )


def _moved(parent: Any, child: Any, obs: Any) -> float:
    """Largest change of an output of the first network, as a part of its largest output."""
    net = next(iter(parent.cohort.nets))
    before, after = (agent.cohort.outputs(net, obs, np.array([agent.row])) for agent in (parent, child))
    return float(np.abs(after - before).max() / max(np.abs(before).max(), 1e-12))
