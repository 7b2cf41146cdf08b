"""n-step windows: which steps of one environment copy make a row, and when the row is complete.

A window starts at each step and is complete after n steps, or at the end of its episode if that is earlier.
Must not know: rings, priorities, gamma (returns are formed when a row is drawn).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agilerl_exp.buffers.table import Blocks, Node, Table
from agilerl_exp.buffers.transition import Tree


@dataclass(slots=True)
class Rows:
    """E complete windows in the order of their lanes, oldest first."""

    lane: np.ndarray
    """(E,) ascending."""
    start: Blocks
    """Packed fields of the first step."""
    rewards: np.ndarray
    """(E, n), zeros after the window's length."""
    length: np.ndarray
    """(E,) steps m in the window, 1..n."""
    source: np.ndarray
    """(E,) which of the steps just added ended the window."""

    def pick(self, rows: np.ndarray) -> Rows:
        """Some of the rows."""
        start = {kind: block[rows] for kind, block in self.start.items()}
        return Rows(self.lane[rows], start, self.rewards[rows], self.length[rows], self.source[rows])


class Windows:
    """Open windows of `lanes` environment copies (lane = member * N + copy).

    Args:
        start: fields kept of a window's first step.
        last: fields kept of the newest step (what `flush` bootstraps from).
        lanes: number of copies.
        n_step: longest window.
    """

    def __init__(self, start: dict[str, Node], last: dict[str, Node], lanes: int, n_step: int) -> None:
        self.n_step = n_step
        self.starts = Table(start, lanes * n_step)
        self.last = Table(last, lanes)
        self.rewards = np.zeros((lanes, n_step), np.float32)
        self.head = np.zeros(lanes, np.int64)  # slot of the next step
        self.open = np.zeros(lanes, np.int64)  # open windows, the newest n_step - 1 at most
        self._ages = np.arange(n_step)

    def push(
        self,
        lanes: np.ndarray,
        fields: dict[str, Tree],
        reward: np.ndarray,
        end: np.ndarray,
        keep: np.ndarray | None,
    ) -> Rows:
        """Take one step of each of `lanes`, and return the windows it completes.

        Args:
            lanes: distinct, ascending (K,).
            fields: start and last fields, two leading axes, of whose product `keep` picks the K steps.
            reward: (K,).
            end: (K,) the episode ended, so that all windows of the lane are complete.
            keep: (K,) or None for all.
        """
        head = self.head[lanes]
        for name in self.starts.fields:
            self.starts.put(name, lanes * self.n_step + head, fields[name], keep)
        for name in self.last.fields:
            self.last.put(name, lanes, fields[name], keep)
        self.rewards[lanes, head] = reward
        self.head[lanes] = head = (head + 1) % self.n_step
        count = self.open[lanes] + 1
        self.open[lanes] = np.where(end, 0, np.minimum(count, self.n_step - 1))
        complete = np.where(end, count, count == self.n_step)
        return self._rows(lanes, head, count, complete)

    def flush(self, lanes: np.ndarray) -> Rows:
        """Close and return all open windows of `lanes` (ascending), as if they had been cut here."""
        count = self.open[lanes]
        self.open[lanes] = 0
        return self._rows(lanes, self.head[lanes], count, count)

    def _rows(self, lanes: np.ndarray, head: np.ndarray, count: np.ndarray, complete: np.ndarray) -> Rows:
        """The `complete` oldest of `count` windows of each lane."""
        if (complete == 1).all():  # the steady state: one row a lane
            source, age = np.arange(len(lanes)), 0
        else:
            source = np.repeat(np.arange(len(lanes)), complete)
            age = np.arange(len(source)) - np.repeat(np.cumsum(complete) - complete, complete)
        lane = lanes[source]
        length = count[source] - age
        slots = (head[source] - length)[:, None] + self._ages
        slots %= self.n_step
        rewards = self.rewards.reshape(-1).take(slots + (lane * self.n_step)[:, None])
        rewards[self._ages >= length[:, None]] = 0.0
        start = self.starts.take(lane * self.n_step + slots[:, 0])
        return Rows(lane, start, rewards, length, source)
