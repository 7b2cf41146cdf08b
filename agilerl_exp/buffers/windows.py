"""n-step windows: which steps of one environment copy make a row, and when the row is complete.

A window starts at each step and is complete after n steps, or at the end of its episode if that is earlier.
Must not know: rings, priorities, gamma (returns are formed when a row is drawn).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_exp.buffers.table import Blocks, Fields, Table
from agilerl_exp.buffers.transition import Tree


@dataclass(slots=True)
class Rows:
    """E complete windows in the order of their lanes, those of a lane oldest first."""

    start: Blocks
    """Packed fields of the first step."""
    rewards: np.ndarray
    """(E, n), zeros after the window's length."""
    length: int | np.ndarray
    """Steps m in the window (E,), or of all windows."""
    lane: np.ndarray | None
    """(E,); None: all lanes in order, one row each."""
    source: np.ndarray | None
    """(E,) which of the steps just added ended the window; None: all in order."""


class Windows:
    """Open windows of `lanes` environment copies (lane = member * N + copy).

    The steps of a lane go around `n_step` slots. As long as all lanes with open windows are at the same slot,
    which they reach again at each episode end, a step of all lanes is a few copies of whole slots.

    Args:
        start: fields kept of a window's first step.
        last: fields kept of the newest step (what `flush` bootstraps from).
        lanes: number of copies.
        n_step: longest window, at least 2.
    """

    def __init__(self, start: Fields, last: Fields, lanes: int, n_step: int) -> None:
        self.lanes, self.n_step = lanes, n_step
        self.starts = Table(start, n_step * lanes)  # row slot * lanes + lane
        self.last = Table(last, lanes)
        self.rewards = np.zeros((n_step, lanes), np.float32)
        self.head = np.zeros(lanes, np.int64)  # slot of the lane's next step
        self.open = np.zeros(lanes, np.int64)  # open windows, the newest n_step - 1 at most
        self._aligned = True
        self._ages = np.arange(n_step)

    def push(
        self,
        lanes: np.ndarray | None,
        fields: dict[str, Tree],
        reward: np.ndarray,
        end: np.ndarray,
        valid: np.ndarray | None,
    ) -> Rows:
        """Take one step of each lane, and return the windows it completes.

        Args:
            lanes: distinct (K,), None for all in order.
            fields: start and last fields, whose leading axes flatten to (K,).
            reward: (K,).
            end: bool (K,), the episode ended, so that all windows of the lane are complete.
            valid: bool (K,), False where there was no step; None: all stepped.
        """
        aligned, at, keep = self._lanes_of(lanes, valid)
        slot: Any = int(self.head[0]) if aligned else self.head[at]
        first = slot * self.lanes
        where = slice(first, first + self.lanes) if aligned else first + at
        if keep is not None:
            reward, end, valid = reward[keep], end[keep], None
        head = (slot + 1) % self.n_step
        self.starts.put(where, fields, keep)
        self.last.put(at, fields, keep)
        self.rewards[slot, at] = reward
        self.head[at] = head
        count = self.open[at] + 1
        full = count == self.n_step
        if aligned and valid is None and not np.count_nonzero(end) and np.count_nonzero(full) == self.lanes:
            start = self.starts.take(slice(head * self.lanes, (head + 1) * self.lanes))
            rewards = self.rewards.take((head + self._ages) % self.n_step, 0).T
            return Rows(start, rewards, self.n_step, None, None)
        complete = np.where(end, count, full)
        if valid is not None:
            count *= valid
            complete *= valid
        self.open[at] = count - complete
        source = np.repeat(np.arange(len(count)), complete)
        lane = source if aligned else at[source]
        heads = self.head[lane]
        if not aligned:
            self.align()
        return self._rows(lane, heads, count, complete, source if keep is None else keep[source])

    def _lanes_of(self, lanes: np.ndarray | None, valid: np.ndarray | None) -> tuple[bool, Any, Any]:
        """Whether all lanes are written at one slot, which lanes are, and which of the given steps.

        At one slot, what lanes without a step write is not read, as they have no windows.
        """
        if self._aligned and lanes is None and (valid is None or not np.count_nonzero(self.open[~valid])):
            return True, slice(None), None
        lanes = np.arange(self.lanes) if lanes is None else lanes
        keep = None if valid is None else np.flatnonzero(valid)
        return False, lanes if keep is None else lanes[keep], keep

    def flush(self, lanes: np.ndarray) -> Rows:
        """Close and return all open windows of `lanes`, as if their episodes had been cut here."""
        count = self.open[lanes]
        self.open[lanes] = 0
        lane = np.repeat(lanes, count)
        head = self.head[lane]
        self.align()
        return self._rows(lane, head, count, count, np.arange(len(lane)))

    def align(self) -> None:
        """Find out whether lanes with open windows agree on a slot; lanes without one then join them."""
        busy = self.head[self.open > 0]
        self._aligned = not len(busy) or bool((busy == busy[0]).all())
        if self._aligned:
            self.head[:] = busy[:1] if len(busy) else self.head[:1]

    def arrays(self) -> dict[str, np.ndarray]:
        """All that a state has to hold."""
        starts = {f"starts.{kind}": block for kind, block in self.starts.blocks.items()}
        last = {f"last.{kind}": block for kind, block in self.last.blocks.items()}
        return {"head": self.head, "open": self.open, "rewards": self.rewards, **starts, **last}

    def _rows(
        self, lane: np.ndarray, head: np.ndarray, count: np.ndarray, complete: np.ndarray, source: np.ndarray
    ) -> Rows:
        """The `complete` oldest of `count` windows a lane; lane, head and source come once a row."""
        # windows of a lane follow each other, each one step shorter than the one before
        length = np.repeat(count + np.cumsum(complete) - complete, complete) - np.arange(len(lane))
        slots = (head - length)[:, None] + self._ages
        slots %= self.n_step
        slots *= self.lanes
        slots += lane[:, None]
        rewards = self.rewards.reshape(-1).take(slots)
        rewards[self._ages >= length[:, None]] = 0.0
        return Rows(self.starts.take(slots[:, 0]), rewards, length, lane, source)
