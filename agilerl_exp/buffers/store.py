"""The storing half of a buffer: turns vector steps into rows of the rings, by way of n-step windows if asked.

Must not know: how rows are drawn or weighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agilerl_exp.buffers.memory import free_bytes
from agilerl_exp.buffers.ring import Rings
from agilerl_exp.buffers.table import Node, Table, Where, from_json, plan, row_bytes, to_json
from agilerl_exp.buffers.transition import Transition, Tree
from agilerl_exp.buffers.windows import Rows, Windows
from agilerl_exp.errors import CheckpointError, ConfigError

_SHARE_OF_FREE_MEMORY = 0.7
_TREE_BYTES = 32  # two float64 nodes a leaf, and at most twice the leaves for a power of two
_FLAG = np.zeros((1, 1), np.float32)


@dataclass(frozen=True, slots=True)
class Layout:
    """What rows hold and for whom; fixed at the first add."""

    members: int
    copies: int
    """Environment copies a member (N)."""
    start: dict[str, Node]
    """Fields known at the first step of a window."""
    end: dict[str, Node]
    """Fields known at its end."""
    last: dict[str, Node]
    """What windows keep of the newest step."""


class Store:
    """Rings and open windows of all members.

    Args:
        max_size: rows a ring.
        n_step: longest window.
        keep_one_step: rows also keep next_obs, terminated and next_mask of their first step.
        shared: one ring for all members instead of one a member.
    """

    def __init__(self, max_size: int, n_step: int, keep_one_step: bool, shared: bool) -> None:
        for name, value in (("max_size", max_size), ("n_step", n_step)):
            if value < 1:
                raise ConfigError(f"{name}={value}: must be at least 1")
        self.max_size, self.n_step, self.shared = max_size, n_step, shared
        self.keep_one_step = keep_one_step
        self.layout: Layout | None = None
        self.rings: Rings
        self.windows: Windows | None = None
        self.members = np.zeros(0, np.int64)
        self._masked = False

    @property
    def _has_first_ends(self) -> bool:
        return self.keep_one_step and self.n_step > 1  # with n_step=1 both ends are the same

    @property
    def sizes(self) -> np.ndarray:
        """Rows that each member can draw from (P,)."""
        if self.layout is None:
            return np.zeros(0, np.int64)
        return np.repeat(self.rings.sizes, len(self.members)) if self.shared else self.rings.sizes.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of rings and windows."""
        if self.layout is None:
            return 0
        windows = 0 if self.windows is None else self.windows.starts.nbytes + self.windows.last.nbytes
        return self.rings.table.nbytes + windows

    def rings_of(self, members: np.ndarray) -> np.ndarray:
        """Ring that each member draws from."""
        return np.zeros_like(members) if self.shared else members

    def prepare(self, t: Transition, prioritized: bool) -> None:
        """Allocate for transitions like `t`, whose leading axis must stand for all members.

        Raises:
            ConfigError: the rings would take more than 70 % of the free memory.
        """
        widths: dict[str, int] = {}
        ends = _ends(t)
        if t.next_mask is not None:
            ends["next_mask"] = np.zeros(t.next_mask.shape, np.uint8)  # whatever dtype masks come in
        start: dict[str, Tree] = {"obs": t.obs, "action": t.action}
        if self._has_first_ends:
            start |= {f"one_{name}": value for name, value in ends.items()} | {"one_terminated": _FLAG}
        reward = np.zeros((1, 1, self.n_step), np.float32) if self.n_step > 1 else _FLAG
        length = {"length": np.zeros((1, 1), np.int32)} if self.n_step > 1 else {}
        end: dict[str, Tree] = {"reward": reward, **length, "terminated": _FLAG, **ends}
        members, copies = t.reward.shape
        # `start` is planned first: its columns are a prefix, so that rows of windows move in one copy a block
        layout = Layout(members, copies, plan(start, widths), plan(end, widths), plan(ends, {}))
        self._allocate(layout, prioritized)

    def _allocate(self, layout: Layout, prioritized: bool) -> None:
        rings = 1 if self.shared else layout.members
        fields = layout.start | layout.end
        per_row = rings * row_bytes(fields) + (layout.members * _TREE_BYTES if prioritized else 0)
        free = free_bytes()
        if free is not None and per_row * self.max_size > _SHARE_OF_FREE_MEMORY * free:
            fits = int(_SHARE_OF_FREE_MEMORY * free // per_row)
            raise ConfigError(
                f"max_size={self.max_size}: {rings} ring(s) need {per_row * self.max_size / 1e9:.1f} GB, "
                f"more than 70 % of the {free / 1e9:.1f} GB free; the largest max_size that fits is {fits}"
            )
        self.rings = Rings(fields, rings, self.max_size)
        self.members = np.arange(layout.members)
        self._masked = "next_mask" in fields
        if self.n_step > 1:
            self.windows = Windows(layout.start, layout.last, layout.members * layout.copies, self.n_step)
        self.layout = layout

    def add(self, t: Transition, members: np.ndarray | None) -> Where:
        """Store a vector step and return the table rows it filled."""
        if (t.next_mask is None) is self._masked:
            raise ValueError("next_mask: must come with every transition or with none")
        valid = t.valid
        if valid is not None and 0 not in valid.tobytes():  # a tenth of the time of `valid.all()`
            valid = None
        return (
            self._add_steps(t, members, valid)
            if self.windows is None
            else self._add_windows(t, members, valid)
        )

    def _add_steps(self, t: Transition, members: np.ndarray | None, valid: np.ndarray | None) -> Where:
        keep = None if valid is None else np.flatnonzero(valid)
        counts = t.reward.shape[1] if valid is None else valid.sum(1)
        where, newest = self._claim(members, counts)
        if newest is not None:
            keep = newest if keep is None else keep[newest]
        put = self.rings.table.put
        put("obs", where, t.obs, keep)
        put("action", where, t.action, keep)
        put("reward", where, t.reward, keep)
        put("terminated", where, t.terminated, keep)
        put("next_obs", where, t.next_obs, keep)
        if t.next_mask is not None:
            put("next_mask", where, t.next_mask, keep)
        return where

    def _add_windows(self, t: Transition, members: np.ndarray | None, valid: np.ndarray | None) -> Where:
        assert self.layout is not None and self.windows is not None
        if t.reward.shape[1] != self.layout.copies:
            raise ValueError(f"num_envs={t.reward.shape[1]}: windows were opened for {self.layout.copies}")
        ends = _ends(t)
        fields = {"obs": t.obs, "action": t.action, **ends}
        if self._has_first_ends:
            fields |= {f"one_{name}": value for name, value in ends.items()} | {
                "one_terminated": t.terminated
            }
        end = (t.terminated | t.truncated).reshape(-1)
        lanes = None if members is None else self._lanes(members)
        flat = None if valid is None else valid.reshape(-1)
        rows = self.windows.push(lanes, fields, t.reward.reshape(-1), end, flat)
        return self._add_rows(rows, members, ends, t.terminated)

    def flush(self, members: np.ndarray | None) -> Where:
        """Store the open windows of members as if they had been cut here; return the table rows filled."""
        if self.windows is None:
            return np.zeros(0, np.int64)
        rows = self.windows.flush(self._lanes(self.members if members is None else members))
        last = self.windows.last
        assert rows.lane is not None
        blocks = last.take(rows.lane)
        ends = {name: last.view(name, blocks) for name in last.fields}
        return self._add_rows(rows, members, ends, np.zeros(len(rows.lane), np.float32))

    def _lanes(self, members: np.ndarray) -> np.ndarray:
        assert self.layout is not None
        copies = self.layout.copies
        return (members[:, None] * copies + np.arange(copies)).reshape(-1)

    def _add_rows(
        self, rows: Rows, members: np.ndarray | None, ends: dict[str, Tree], terminated: np.ndarray
    ) -> Where:
        assert self.layout is not None
        if not len(rows.rewards):
            return np.zeros(0, np.int64)
        counts: int | np.ndarray = self.layout.copies
        if rows.lane is not None:
            counts = np.bincount(rows.lane // self.layout.copies, minlength=len(self.members))
            counts = counts if members is None else counts[members]
        where, newest = self._claim(members, counts)
        if newest is not None:
            rows = rows.pick(newest)
        table = self.rings.table
        table.put_blocks(where, rows.start)
        table.put("reward", where, rows.rewards)
        table.put("length", where, np.asarray(rows.length))
        table.put("terminated", where, terminated, rows.source)
        for name, value in ends.items():
            table.put(name, where, value, rows.source)
        return where

    def _claim(self, members: np.ndarray | None, counts: int | np.ndarray) -> tuple[Where, np.ndarray | None]:
        rows = self.members if members is None else members
        if not self.shared:
            return self.rings.claim(rows, counts)
        total = counts * len(rows) if isinstance(counts, int) else int(counts.sum())
        return self.rings.claim_one(0, total)

    def state_dict(self) -> dict[str, Any]:
        """Filled rows, cursors and open windows; arrays are views of the live storage."""
        state: dict[str, Any] = {"max_size": self.max_size, "n_step": self.n_step, "shared": self.shared}
        state["keep_one_step"] = self.keep_one_step
        if self.layout is None:
            return state
        layout, rings = self.layout, self.rings
        state |= {"members": layout.members, "copies": layout.copies}
        for part in ("start", "end", "last"):
            fields = getattr(layout, part)
            state[part] = [[name, to_json(node)] for name, node in fields.items()]
        state |= {"cursors": rings.cursors, "sizes": rings.sizes}
        for kind, block in rings.table.blocks.items():
            for ring, size in enumerate(rings.sizes):
                state[f"rows.{kind}.{ring}"] = block[ring * self.max_size :][:size]
        if self.windows is not None:
            state |= {f"windows.{name}": array for name, array in _arrays(self.windows).items()}
        return state

    def load_state_dict(self, state: dict[str, Any], prioritized: bool) -> None:
        """Take over what `state_dict` returned; arrays are copied.

        Raises:
            CheckpointError: the state is of a buffer with other settings.
        """
        for name in ("max_size", "n_step", "shared", "keep_one_step"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"replay buffer: the checkpoint has {name}={state[name]}, this run {getattr(self, name)}"
                )
        if "members" not in state:
            self.layout = self.windows = None
            return
        parts = [{name: from_json(node) for name, node in state[part]} for part in ("start", "end", "last")]
        self._allocate(Layout(state["members"], state["copies"], *parts), prioritized)
        self.rings.cursors[:], self.rings.sizes[:] = state["cursors"], state["sizes"]
        for kind, block in self.rings.table.blocks.items():
            for ring, size in enumerate(self.rings.sizes):
                block[ring * self.max_size :][:size] = state[f"rows.{kind}.{ring}"]
        if self.windows is not None:
            for name, array in _arrays(self.windows).items():
                array[...] = state[f"windows.{name}"]
            self.windows.align()


def _ends(t: Transition) -> dict[str, Tree]:
    return (
        {"next_obs": t.next_obs}
        if t.next_mask is None
        else {"next_obs": t.next_obs, "next_mask": t.next_mask}
    )


def _arrays(windows: Windows) -> dict[str, np.ndarray]:
    tables: dict[str, Table] = {"starts": windows.starts, "last": windows.last}
    blocks = {
        f"{name}.{kind}": block for name, table in tables.items() for kind, block in table.blocks.items()
    }
    return {"head": windows.head, "open": windows.open, "rewards": windows.rewards, **blocks}
