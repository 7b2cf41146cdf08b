"""Running sums between two reports: losses, metrics, episode scores. All of it is part of the resume state.

Must not know: where reports go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

RECENT = 100  # episodes in the training score


class Meter:
    """Sums of P members, each with N env copies."""

    def __init__(self, pop: int, num_envs: int):
        self.episode_return = np.zeros((pop, num_envs))
        self.recent: list[list[float]] = [[] for _ in range(pop)]
        self.episodes = np.zeros(pop, np.int64)
        self.updates = np.zeros(pop, np.int64)
        self.sums: dict[str, np.ndarray] = {}

    def step(self, members: np.ndarray, reward: np.ndarray, valid: np.ndarray, done: np.ndarray) -> None:
        """Take in one vector step of the members (R,); arrays (R, N)."""
        returns = self.episode_return[members] + reward * valid
        for r, n in np.argwhere(done).tolist():
            member = int(members[r])
            self.recent[member] = [*self.recent[member][1 - RECENT :], float(returns[r, n])]
            self.episodes[member] += 1
            returns[r, n] = 0.0
        self.episode_return[members] = returns

    def cut(self, which: np.ndarray) -> None:
        """Forget the running episodes of `which` (P, N)."""
        self.episode_return[which] = 0.0

    def forget(self, members: np.ndarray) -> None:
        """Drop the scores of members that were replaced."""
        for member in members.tolist():
            self.recent[member] = []

    def update(self, members: np.ndarray, loss: np.ndarray, metrics: dict[str, np.ndarray]) -> None:
        """Take in one gradient step of the members (R,)."""
        self.updates[members] += 1
        for name, value in {"loss": loss, **metrics}.items():
            if name not in self.sums:
                self.sums[name] = np.zeros(len(self.updates))
            self.sums[name][members] += value

    def take(self, member: int) -> dict[str, Any]:
        """Means since the last call, and the mean return of the last 100 training episodes."""
        n = int(self.updates[member])
        row: dict[str, Any] = {name: float(total[member]) / n for name, total in self.sums.items() if n}
        self.updates[member] = 0
        for total in self.sums.values():
            total[member] = 0.0
        recent = self.recent[member]
        row["score"] = float(np.mean(recent)) if recent else None
        row["episodes"] = int(self.episodes[member])
        return row

    def state_dict(self) -> dict[str, Any]:
        """All sums."""
        return {
            "episode_return": self.episode_return.tolist(),
            "recent": self.recent,
            "episodes": self.episodes.tolist(),
            "updates": self.updates.tolist(),
            "sums": {name: total.tolist() for name, total in self.sums.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.episode_return[...] = state["episode_return"]
        self.recent = [list(map(float, recent)) for recent in state["recent"]]
        self.episodes[...] = state["episodes"]
        self.updates[...] = state["updates"]
        self.sums = {name: np.array(total, np.float64) for name, total in state["sums"].items()}
