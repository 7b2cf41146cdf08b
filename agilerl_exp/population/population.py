"""A population: agents in slots, grouped into cohorts of equal architecture.

Must not know: how agents are trained or chosen. Results do not depend on how members happen to be grouped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from agilerl_exp.errors import ConfigError
from agilerl_exp.population.cohort import Cohort


class Member(Protocol):
    """An agent as a population sees it: a view of one row of a cohort."""

    cohort: Cohort
    row: int

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
        groups: dict[Any, list[int]] = {}
        for slot, agent in enumerate(self.agents):
            groups.setdefault(agent.cohort_key(), []).append(slot)
        self._everyone = np.arange(len(self.agents))
        self.cohorts = [self._stack(np.array(slots)) for slots in groups.values()]

    def __len__(self) -> int:
        """Number of members P."""
        return len(self.agents)

    def _stack(self, slots: np.ndarray) -> Cohort:
        first = self.agents[slots[0]].cohort
        names = {name for slot in slots for name in self.agents[slot].cohort.hyper}
        hyper = {name: np.zeros(len(slots)) for name in sorted(names)}
        cohort = Cohort(first.nets, first.codec, first.spec, hyper, first.bank.device)
        cohort.slots, cohort.engine = slots, first.engine
        for row, slot in enumerate(slots):
            agent = self.agents[slot]
            cohort.copy_row(row, agent.cohort, agent.row)
            agent.cohort, agent.row = cohort, row
        return cohort

    def parts(self, members: np.ndarray) -> Iterator[tuple[Cohort, np.ndarray | None, np.ndarray]]:
        """Split sorted members by cohort.

        Yields:
            The cohort, its rows (None = all of them), and their positions in `members`.
        """
        if len(self.cohorts) == 1 and len(members) == len(self.agents):
            yield self.cohorts[0], None, self._everyone
            return
        for cohort in self.cohorts:
            inside = np.isin(cohort.slots, members)
            if inside.any():
                where = np.searchsorted(members, cohort.slots[inside])
                yield cohort, None if inside.all() else np.flatnonzero(inside), where

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
