"""Small jobs inside this process: a spec by dotted names, a loop that is watched, what a job left behind."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import probe_envs  # noqa: F401  (registers the environments)

from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.training.off_policy import OffPolicy
from agilerl_exp.training.run import build_loop, run
from agilerl_exp.training.session import Session

RINGS: dict[str, dict[str, bool]] = {
    "standard": {},
    "n_step": {"n_step_buffer": True},
    "per": {"per_buffer": True},
    "per_n_step": {"per_buffer": True, "n_step_buffer": True},
}
BASE: dict[str, Any] = {
    "algo": {
        "name": "DQN",
        "lr": 1e-3,
        "batch_size": 8,
        "learn_step": 4,
        "net_config": {"hidden_size": [8], "init": "orthogonal"},
    },
    "env": {"id": "probe/Steps-v0", "config": {"cuts": [5]}, "num_envs": 2},
    "training": {
        "hpo": False,
        "max_steps": 64,
        "evo_steps": 32,
        "reporting_interval": 16,
        "replay_buffer": {"max_size": 1000},
    },
}


def spec_of(settings: dict[str, Any] | None = None) -> ExperimentSpec:
    """BASE with settings such as `{"training.max_steps": 64}`; None removes a setting."""
    tree = deepcopy(BASE)
    for path, value in (settings or {}).items():
        *groups, leaf = path.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        if value is None:
            branch.pop(leaf, None)
        else:
            branch[leaf] = value
    return ExperimentSpec.from_config(tree)


class Recorder:
    """A ring that remembers what was drawn from it and which errors came back."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.drawn: list[dict[str, Any]] = []
        self.errors: list[tuple[np.ndarray, np.ndarray]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def __len__(self) -> int:
        return len(self._buffer)

    def sample(self, batch_size: Any, rng: Any, **options: Any) -> Any:
        state = self._buffer.state_dict()
        before = {key: np.array(value) for key, value in state.items() if key.startswith("priorities")}
        batch = self._buffer.sample(batch_size, rng, **options)
        self.drawn.append({"batch": batch, "priorities": before, **options})
        return batch

    def update_priorities(self, index: np.ndarray, td_error: np.ndarray, members: Any = None) -> None:
        self.errors.append((index, td_error))
        self._buffer.update_priorities(index, td_error, members)


class Watch(Session):
    """Remembers the clocks of every step boundary and every score.

    Attributes:
        env_step, updates: one row a boundary, one column a member.
        weights, target: of member 0 after each boundary, when asked for.
        returns: `(P, episodes)` a generation.
    """

    def __init__(self, weights: bool = False) -> None:
        self.env_step: list[list[int]] = []
        self.updates: list[list[int]] = []
        self.weights: list[np.ndarray] = []
        self.target: list[np.ndarray] = []
        self.returns: list[np.ndarray] = []
        self._keep = weights

    def at_boundary(self, loop: OffPolicy) -> None:
        self.env_step.append(loop.env_step.tolist())
        self.updates.append([agent.update_step for agent in loop.population.agents])
        if self._keep:
            bank = loop.population.agents[0].cohort.bank
            self.weights.append(bank.weights[0].numpy().copy())
            self.target.append(bank.target[0].numpy().copy())

    def at_generation(self, loop: OffPolicy, returns: np.ndarray) -> None:
        self.returns.append(returns)

    def first_update(self) -> int:
        """Env step of member 0 at the boundary where its first update had happened."""
        done = [step[0] for step, updates in zip(self.env_step, self.updates, strict=True) if updates[0]]
        return done[0]


def loop_of(settings: dict[str, Any] | None = None, weights: bool = False) -> OffPolicy:
    """A loop that is watched and whose ring records; run it with `.run()`."""
    loop = build_loop(spec_of(settings))
    loop.session, loop.buffer = Watch(weights), Recorder(loop.buffer)
    return loop


def ran(settings: dict[str, Any] | None = None, weights: bool = False) -> OffPolicy:
    """The same, after its run."""
    loop = loop_of(settings, weights)
    try:
        loop.run()
    finally:
        loop.envs.close()
    return loop


def job(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    """Run a job to its end; returns its folder."""
    run(spec_of(settings), folder)
    return folder


def metrics(folder: Path, kind: str | None = None, member: int | None = None) -> list[dict[str, Any]]:
    """The metric rows of a job."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        row for row in rows if kind in (None, row["kind"]) and (member is None or row["member"] == member)
    ]


def steps(folder: Path) -> list[int]:
    """The checkpoints under a folder, by env step."""
    return sorted(int(path.name[5:]) for path in folder.glob("step-*") if path.name[5:].isdigit())


class _Visit:
    """Numbers that make a draw over equal chances visit every row once."""

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.tile((np.arange(shape[1]) + 0.5) / shape[1], (shape[0], 1))


def contents(buffer: Any, member: int = 0) -> Any:
    """All rows that a member can draw, as a batch of one member; evens out the priorities."""
    rows, size = np.array([member]), int(buffer.sizes[member])
    buffer.update_priorities(np.arange(size)[None], np.ones((1, size)), rows)
    return buffer.sample(size, _Visit(), members=rows)
