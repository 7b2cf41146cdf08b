"""The storing half of a buffer: turns vector steps into rows of the rings, by way of n-step windows if asked.

Must not know: how rows are drawn or weighted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agilerl_exp.buffers.memory import free_bytes
from agilerl_exp.buffers.ring import Rings
from agilerl_exp.buffers.table import Fields, Leaf, Where, plan, row_bytes
from agilerl_exp.buffers.transition import Transition, Tree
from agilerl_exp.buffers.windows import Rows, Windows
from agilerl_exp.errors import CheckpointError, ConfigError

_SHARE_OF_FREE_MEMORY = 0.7
_TREE_BYTES = 32  # two float64 nodes a leaf, and at most twice the leaves for a power of two
_SETTINGS = ("max_size", "n_step", "shared", "keep_one_step", "prioritized")


class Store:
    """Rings and open windows of all members; of no member until `prepare`.

    Args:
        max_size: rows a ring.
        n_step: longest window.
        keep_one_step: rows also keep next_obs, terminated and next_mask of their first step.
        shared: one ring for all members instead of one a member.
        prioritized: whether each row needs a leaf in a tree of each member.
    """

    def __init__(
        self, max_size: int, n_step: int, keep_one_step: bool, shared: bool, prioritized: bool
    ) -> None:
        for name, value in (("max_size", max_size), ("n_step", n_step)):
            if value < 1:
                raise ConfigError(f"{name}={value}: must be at least 1")
        self.max_size, self.n_step, self.shared = max_size, n_step, shared
        self.keep_one_step, self.prioritized = keep_one_step, prioritized
        self._allocate(0, 0, {"start": [], "end": [], "last": []})

    @property
    def sizes(self) -> np.ndarray:
        """Rows that each member can draw from (P,)."""
        return self.rings.sizes[self.rings_of(self.members)]

    @property
    def nbytes(self) -> int:
        """Bytes of rings and windows."""
        windows = 0 if self.windows is None else self.windows.starts.nbytes + self.windows.last.nbytes
        return self.rings.table.nbytes + windows

    def rings_of(self, members: np.ndarray) -> np.ndarray:
        """Ring that each member draws from."""
        return np.zeros_like(members) if self.shared else members

    def prepare(self, t: Transition) -> None:
        """Allocate for transitions like `t`, whose leading axis must stand for all members.

        Raises:
            ConfigError: the rings would take more than 70 % of the free memory.
        """
        mask = None if t.next_mask is None else t.next_mask.astype(np.uint8)  # whatever dtype masks come in
        start, end = self._fields(replace(t, terminated=t.terminated.astype(np.float32), next_mask=mask))
        rewards = {"reward": np.zeros((1, 1), np.float32)}
        if self.n_step > 1:
            rewards = {"reward": np.zeros((1, 1, self.n_step), np.float32), "length": np.zeros((1, 1), int)}
        widths: dict[str, int] = {}
        # `start` is planned first: its columns are a prefix, so that rows of windows move in one copy a block
        parts = {"start": plan(start, widths), "end": plan(rewards | end, widths), "last": plan(end, {})}
        members, copies = t.reward.shape
        self._allocate(members, copies, parts)

    def _fields(self, t: Transition) -> tuple[dict[str, Tree], dict[str, Tree]]:
        """What a row holds of the first step of its window, and of the last one."""
        start = {"obs": t.obs, "action": t.action}
        end = {"next_obs": t.next_obs, "terminated": t.terminated}
        if t.next_mask is not None:
            end["next_mask"] = t.next_mask
        if self.keep_one_step and self.n_step > 1:  # with n_step=1 both ends are the same
            start |= {f"one_{name}": value for name, value in end.items()}
        return start, end

    def _allocate(self, members: int, copies: int, parts: dict[str, Fields]) -> None:
        rings = min(1, members) if self.shared else members
        fields = parts["start"] + parts["end"]
        per_row = rings * row_bytes(fields) + (members * _TREE_BYTES if self.prioritized else 0)
        free = free_bytes() if members else None
        if free is not None and per_row * self.max_size > _SHARE_OF_FREE_MEMORY * free:
            fits = int(_SHARE_OF_FREE_MEMORY * free // per_row)
            raise ConfigError(
                f"max_size={self.max_size}: {rings} ring(s) need {per_row * self.max_size / 1e9:.1f} GB, "
                f"more than 70 % of the {free / 1e9:.1f} GB free; the largest max_size that fits is {fits}"
            )
        self.rings = Rings(fields, rings, self.max_size)
        self.windows: Windows | None = None
        if self.n_step > 1:
            self.windows = Windows(parts["start"], parts["last"], members * copies, self.n_step)
        self.members, self._copies, self._parts = np.arange(members), copies, parts

    def add(self, t: Transition, members: np.ndarray | None) -> Where:
        """Store a vector step and return the table rows it filled."""
        if (t.next_mask is not None) is not any(leaf.path == ("next_mask",) for leaf in self._parts["end"]):
            raise ValueError("next_mask: must come with every transition or with none")
        valid = t.valid
        if valid is not None and 0 not in valid.tobytes():  # a tenth of the time of `valid.all()`
            valid = None
        add = self._add_steps if self.windows is None else self._add_windows
        return add(t, members, valid)

    def _add_steps(self, t: Transition, members: np.ndarray | None, valid: np.ndarray | None) -> Where:
        keep = None if valid is None else np.flatnonzero(valid)
        where = self._claim(members, t.reward.shape[1] if valid is None else valid.sum(1))
        start, end = self._fields(t)
        self.rings.table.put(where, start | end | {"reward": t.reward}, keep)
        return where

    def _add_windows(self, t: Transition, members: np.ndarray | None, valid: np.ndarray | None) -> Where:
        assert self.windows is not None
        if t.reward.shape[1] != self._copies:
            raise ValueError(f"num_envs={t.reward.shape[1]}: windows were opened for {self._copies}")
        start, end = self._fields(t)
        ended = (t.terminated | t.truncated).reshape(-1)
        lanes = None if members is None else self._lanes(members)
        flat = None if valid is None else valid.reshape(-1)
        rows = self.windows.push(lanes, start | end, t.reward.reshape(-1), ended, flat)
        return self._add_rows(rows, members, end)

    def flush(self, members: np.ndarray | None) -> Where:
        """Store the open windows of members as if they had been cut here; return the table rows filled."""
        if self.windows is None:
            return np.zeros(0, np.int64)
        rows = self.windows.flush(self._lanes(self.members if members is None else members))
        last = self.windows.last
        assert rows.lane is not None
        blocks = last.take(rows.lane)
        return self._add_rows(rows, members, last.trees(blocks))

    def _lanes(self, members: np.ndarray) -> np.ndarray:
        return (members[:, None] * self._copies + np.arange(self._copies)).reshape(-1)

    def _add_rows(self, rows: Rows, members: np.ndarray | None, end: dict[str, Tree]) -> Where:
        if not len(rows.rewards):
            return np.zeros(0, np.int64)
        counts: int | np.ndarray = self._copies
        if rows.lane is not None:
            counts = np.bincount(rows.lane // self._copies, minlength=len(self.members))
            counts = counts if members is None else counts[members]
        where = self._claim(members, counts)
        table = self.rings.table
        table.put_blocks(where, rows.start)
        table.put(where, {"reward": rows.rewards, "length": np.asarray(rows.length)})
        table.put(where, end, rows.source)
        return where

    def _claim(self, members: np.ndarray | None, counts: int | np.ndarray) -> Where:
        rows = self.members if members is None else members
        if not self.shared:
            return self.rings.claim(rows, counts)
        total = counts * len(rows) if isinstance(counts, int) else int(counts.sum())
        return self.rings.claim_one(0, total)

    def state_dict(self) -> dict[str, Any]:
        """Filled rows, cursors and open windows; arrays are views of the live storage."""
        rings = self.rings
        state: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        state |= {"members": len(self.members), "copies": self._copies}
        for part, fields in self._parts.items():
            state[part] = [[list(path), *where, list(shape)] for path, *where, shape in fields]
        return state | {"cursors": rings.cursors, "sizes": rings.sizes} | self._arrays()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; arrays are copied.

        Raises:
            CheckpointError: the state is of a buffer with other settings.
        """
        for name in _SETTINGS:
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"replay buffer: the checkpoint has {name}={state[name]}, this run {getattr(self, name)}"
                )
        parts = {
            part: [
                Leaf(tuple(path), kind, start, stop, tuple(shape))
                for path, kind, start, stop, shape in state[part]
            ]
            for part in self._parts
        }
        self._allocate(state["members"], state["copies"], parts)
        self.rings.cursors[:], self.rings.sizes[:] = state["cursors"], state["sizes"]
        for name, array in self._arrays().items():
            array[...] = state[name]
        if self.windows is not None:
            self.windows.align()

    def _arrays(self) -> dict[str, np.ndarray]:
        """Views of the filled rows and of the windows, by their names in the state."""
        arrays = {
            f"rows.{kind}.{ring}": block[ring * self.max_size :][:size]
            for kind, block in self.rings.table.blocks.items()
            for ring, size in enumerate(self.rings.sizes)
        }
        if self.windows is not None:
            arrays |= {f"windows.{name}": array for name, array in self.windows.arrays().items()}
        return arrays
