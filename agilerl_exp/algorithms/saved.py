"""An agent as state: what it keeps, written to and read from a directory.

Must not know: what an agent does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from agilerl_exp.errors import CheckpointError
from agilerl_exp.population.bank import by_role, from_roles
from agilerl_exp.population.cohort import Cohort
from agilerl_exp.run.checkpoint import agent_state, read_checkpoint, write_directory


class SavedAgent:
    """The part of `RLAlgorithm` that saves and loads."""

    spec: Any
    index: int
    cohort: Cohort
    row: int
    fitness: list[float]

    def _blank(self, net_config: Any) -> Self:
        """A copy with another architecture and with weights, counters and statistics of zero."""
        raise NotImplementedError

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the agent as a directory (weights, targets, moments, hyperparameters, statistics, counters)."""
        write_directory(Path(path), {"agent": self.state_dict()}, {"kind": "agent"})

    def load_checkpoint(self, path: str | Path) -> None:
        """Load an agent directory, or member `index` of a `step-N` directory.

        Raises:
            CheckpointError: the directory is damaged, holds no such member, or another architecture.
        """
        content, _ = read_checkpoint(Path(path), parts={"policy"})
        try:
            self.load_state_dict(agent_state(content, self.index))
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None

    def state_dict(self) -> dict[str, Any]:
        """All state of the agent: arrays by role, hyperparameters, counters, fitness, the architecture."""
        state = self.cohort.state_dict(self.row)
        return {
            "algorithm": type(self).__name__,
            "architecture": self._architecture(),
            "net_config": self._net_config(),
            "fitness": list(self.fitness),
            **state | {"bank": by_role(state["bank"])},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; the agent takes over its architecture.

        Raises:
            CheckpointError: it belongs to another algorithm or other spaces.
        """
        evolved = state["net_config"] != self._net_config()
        try:
            twin = (
                self._blank(type(self.spec)(net_config=state["net_config"]).net_config) if evolved else self
            )
        except ValueError as error:
            raise CheckpointError(f"net_config {state['net_config']} is no network: {error}") from None
        own = twin._architecture()
        if state["algorithm"] != type(self).__name__ or state["architecture"] != own:
            raise CheckpointError(
                f"the checkpoint holds {state['algorithm']} {state['architecture']}, "
                f"this agent is {type(self).__name__} {own}; build it from the same spec and spaces"
            )
        if evolved:
            self.spec, self.cohort, self.row = twin.spec, twin.cohort, twin.row
        self.cohort.load_state_dict(self.row, {**state, "bank": from_roles(state["bank"])})
        self.fitness = [float(x) for x in state["fitness"]]

    def _net_config(self) -> Any:
        net_config = getattr(self.spec, "net_config", None)
        return None if net_config is None else net_config.model_dump(mode="json")

    def _architecture(self) -> dict[str, Any]:
        nets = {name: repr(net) for name, net in self.cohort.nets.items()}
        return {**nets, "normalize_obs": self.cohort.stats is not None}
