"""Sum trees in float64: draw a leaf with a chance proportional to its value, in log2(leaves) steps.

The inner loops exist twice, compiled and in numpy, and give the same bits.
Must not know: priorities, exponents, rings.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from agilerl_exp.functional.compiled import load_library


def compiled_loops() -> ctypes.CDLL | None:
    """The library of sum_tree.c; the same sums whatever the compiler, so that the fallback draws the same rows."""
    return load_library("agilerl_exp.buffers", "sum_tree", ("-O2", "-ffp-contract=off"))


class SumTrees:
    """`count` sum trees with room for `capacity` leaves each; all leaves start at 0.

    Args:
        count: number of trees.
        capacity: leaves that may be used.
        compiled: None takes the compiled loops where a C compiler is found, and numpy otherwise.
    """

    def __init__(self, count: int, capacity: int, compiled: bool | None = None) -> None:
        self.capacity = capacity
        self.leaves = 1 << max(0, capacity - 1).bit_length()
        self.nodes = np.zeros((count, 2 * self.leaves), np.float64)
        library = None if compiled is False else compiled_loops()
        self.compiled = library is not None
        self._library: Any = library
        self._row = np.empty(0, np.int64)

    @property
    def totals(self) -> np.ndarray:
        """Sum of the leaves of each tree (count,)."""
        return self.nodes[:, 1]

    @property
    def values(self) -> np.ndarray:
        """Leaves (count, capacity), a view: write them through `set` or `load`."""
        return self.nodes[:, self.leaves : self.leaves + self.capacity]

    def find(self, row: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Leaf whose interval of the running sum of tree `row` holds `target` in [0, total), and its value.

        Args:
            row: int64 number of the tree.
            target: float64 of the same shape.

        Returns:
            leaf (int64) and value (float64) of that shape; a leaf of value 0 is never returned while
            the total is above 0.
        """
        if self.compiled:
            self._run(self._library.tree_find, row, 0, target)
            leaf, value = self._leaf[: row.size], self._value[: row.size]
            return leaf.reshape(row.shape).copy(), value.reshape(row.shape).copy()
        flat = self.nodes.reshape(-1)  # one level at a time, for all targets together
        base, rest = row * (2 * self.leaves), target.copy()
        node = np.ones_like(row)
        for _ in range(self.leaves.bit_length() - 1):
            node *= 2
            left = flat[base + node]
            right = (rest >= left) & (flat[base + node + 1] > 0.0)
            rest -= np.where(right, left, 0.0)
            node += right
        return node - self.leaves, flat[base + node]

    def set(self, row: np.ndarray, leaf: np.ndarray, value: np.ndarray) -> None:
        """Set leaves of trees, in order (the last of equal ones stays); three arrays of one shape."""
        if self.compiled:
            return self._run(self._library.tree_set, row, leaf.reshape(-1), value)
        flat = self.nodes.reshape(-1)
        base, node = row * (2 * self.leaves), leaf + self.leaves
        flat[base + node] = value
        for _ in range(self.leaves.bit_length() - 1):
            node //= 2
            flat[base + node] = flat[base + 2 * node] + flat[base + 2 * node + 1]

    def load(self, tree: int, values: np.ndarray) -> None:
        """Replace all leaves of one tree: `values` first, zeros after."""
        nodes = self.nodes[tree]
        nodes[self.leaves :] = 0.0
        nodes[self.leaves : self.leaves + len(values)] = values
        level = self.leaves // 2
        while level:
            nodes[level : 2 * level] = nodes[2 * level : 4 * level : 2] + nodes[2 * level + 1 : 4 * level : 2]
            level //= 2

    def _run(self, loop: Any, row: np.ndarray, leaf: np.ndarray | int, value: np.ndarray) -> None:
        """Call a compiled loop on arrays that stay: an address costs as much as dozens of finds."""
        n = row.size
        if n >= len(self._row):
            room = 2 * n + 1
            self._row, self._leaf, self._value = (
                np.empty(room, np.int64),
                np.empty(room, np.int64),
                np.empty(room),
            )
            addresses = [array.ctypes.data for array in (self.nodes, self._row, self._leaf, self._value)]
            self._addresses = [ctypes.c_void_p(address) for address in addresses]
        self._row[:n], self._leaf[:n], self._value[:n] = row.reshape(-1), leaf, value.reshape(-1)
        nodes, *arrays = self._addresses
        loop(nodes, ctypes.c_int64(self.leaves), *arrays, ctypes.c_int64(n))
