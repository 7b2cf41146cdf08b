"""A population: agents in slots, grouped into cohorts of equal architecture.

Must not know: how agents are trained or chosen. Results do not depend on how members happen to be grouped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from agilerl_exp.errors import ConfigError
from agilerl_exp.population.cohort import Cohort


class Member(Protocol):
    """An agent as a population sees it: a view of one row of a cohort."""

    cohort: Cohort
    row: int
    spec: Any
    fitness: list[float]

    def cohort_key(self) -> Any:
        """Agents of equal key may share a cohort."""


class Population:
    """The agents of a run, stacked.

    Args:
        agents: the agents, slot by slot; afterwards each is a view of a row of a shared cohort.
    """

    def __init__(self, agents: Sequence[Any]):
        self.agents = list(agents)
        kinds = {type(agent) for agent in self.agents}
        if len(kinds) != 1:
            names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nobody"
            raise ConfigError(f"pop={names}: give at least one agent, all of one algorithm")
        if len({id(agent) for agent in self.agents}) < len(self.agents):
            raise ConfigError("pop: the same agent stands in it twice; clone it")
        self._everyone = np.arange(len(self.agents))
        self.cohorts: list[Cohort] = []
        self.evolve(self._everyone)

    def __len__(self) -> int:
        """Number of members P."""
        return len(self.agents)

    def evolve(
        self,
        parents: np.ndarray,
        hyper_parents: np.ndarray | None = None,
        newcomers: Mapping[int, Any] | None = None,
    ) -> None:
        """Let each slot go on with the member of another one, and stack equal architectures anew.

        A slot takes over weights, targets, moments, statistics, hyperparameters, scores and the count of updates;
        its clock (env steps) stays. One gather for each pair of an old and a new cohort.

        Args:
            parents: `(P,)` slots whose members go on; its own number leaves a slot as it is.
            hyper_parents: `(P,)` slots whose hyperparameters are taken; None: those of the parents.
            newcomers: by slot, an agent that goes on there in place of the parent.
        """
        newcomers = newcomers or {}
        came = [newcomers.get(i, self.agents[parent]) for i, parent in enumerate(parents)]
        for (
            slot,
            agent,
        ) in newcomers.items():  # whoever is alone of its kind stays in the cohort that it brings
            agent.cohort.slots = np.array([slot])
        clocks = [
            (agent.cohort.env_step[agent.row], agent.cohort.target_mark[agent.row]) for agent in self.agents
        ]
        hyper = {}
        if hyper_parents is not None and (hyper_parents != parents).any():
            hyper = {name: self.column(name)[hyper_parents] for name in self.cohorts[0].hyper}
        about = [(agent.spec, list(agent.fitness)) for agent in came]
        seats = self._stack(came, [agent.cohort for agent in newcomers.values()])
        for slot, agent in enumerate(self.agents):
            (agent.cohort, agent.row), (agent.spec, agent.fitness) = seats[slot], about[slot]
            agent.cohort.env_step[agent.row], agent.cohort.target_mark[agent.row] = clocks[slot]
        for name, column in hyper.items():
            self.set_column(name, column)

    def _stack(self, came: Sequence[Any], brought: Sequence[Cohort]) -> dict[int, tuple[Cohort, int]]:
        """Put the state of an agent for each slot into cohorts of equal key; returns cohort and row by slot.

        A cohort that has the slots of a group already, here or among the `brought` ones, is taken as it is.
        """
        keys: dict[int, Any] = {}
        for agent in [*self.agents, *came]:
            if id(agent.cohort) not in keys:
                keys[id(agent.cohort)] = agent.cohort_key()
        present = {(keys[id(c)], *c.slots): c for c in [*brought, *self.cohorts] if id(c) in keys}
        groups: dict[Any, list[int]] = {}
        for slot, agent in enumerate(came):
            groups.setdefault(keys[id(agent.cohort)], []).append(slot)
        moves: list[tuple[Cohort, np.ndarray, dict[str, Any]]] = []
        seats: dict[int, tuple[Cohort, int]] = {}
        self.cohorts = []
        for key, slots in groups.items():
            cohort = present.get((key, *slots)) or came[slots[0]].cohort.empty(np.array(slots))
            self.cohorts.append(cohort)
            seats |= {slot: (cohort, row) for row, slot in enumerate(slots)}
            moves += _gather(cohort, [(came[slot].cohort, came[slot].row) for slot in slots])
        for cohort, rows, state in moves:
            cohort.load_state_dict(rows, state)
        return seats

    def load_state_dict(self, members: Mapping[str, Any]) -> None:
        """Restore every agent from its `state_dict`, by slot, and stack equal architectures."""
        for slot, agent in enumerate(self.agents):
            agent.load_state_dict(members[str(slot)])
        self.evolve(self._everyone)

    def parts(self, members: np.ndarray) -> Iterator[tuple[Cohort, np.ndarray | None, np.ndarray]]:
        """Split sorted members by cohort.

        Yields:
            The cohort, its rows (None = all of them), and their positions in `members`.
        """
        if len(members) == len(self.agents):
            for cohort in self.cohorts:
                yield cohort, None, cohort.slots
            return
        chosen = np.zeros(len(self.agents), bool)
        chosen[members] = True
        place = np.cumsum(chosen) - 1
        for cohort in self.cohorts:
            inside = chosen[cohort.slots]
            if inside.any():
                yield cohort, None if inside.all() else np.flatnonzero(inside), place[cohort.slots[inside]]

    @property
    def finite(self) -> np.ndarray:
        """Whether all weights of each member are finite, `(P,)` bool."""
        out = np.zeros(len(self), bool)
        for cohort in self.cohorts:
            out[cohort.slots] = torch.isfinite(cohort.bank.weights).all(1).cpu().numpy()
        return out

    def column(self, name: str) -> np.ndarray:
        """A hyperparameter of all members, `(P,)` float64."""
        out = np.zeros(len(self))
        for cohort in self.cohorts:
            out[cohort.slots] = cohort.hyper[name]
        return out

    def set_column(self, name: str, values: np.ndarray) -> None:
        """Write a hyperparameter of all members."""
        for cohort in self.cohorts:
            cohort.hyper[name] = np.array(values, np.float64)[cohort.slots]

    def set_env_step(self, env_step: np.ndarray) -> None:
        """Tell the cohorts the members' clocks, which schedules and target updates read."""
        for cohort in self.cohorts:
            cohort.env_step[...] = env_step[cohort.slots]


def _gather(
    cohort: Cohort, sources: Sequence[tuple[Cohort, int]]
) -> Iterator[tuple[Cohort, np.ndarray, dict[str, Any]]]:
    """Copies of what comes from elsewhere into the rows of `cohort`, one for each cohort that it comes from."""
    rows: dict[int, list[int]] = {}
    for row, (source, source_row) in enumerate(sources):
        if source is not cohort or source_row != row:
            rows.setdefault(id(source), []).append(row)
    for ours in rows.values():
        source = sources[ours[0]][0]
        yield cohort, np.array(ours), source.state_dict(np.array([sources[row][1] for row in ours]))
