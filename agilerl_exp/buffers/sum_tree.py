"""Sum trees in float64: draw a leaf with a chance proportional to its value, in log2(leaves) steps.

The inner loops exist twice, compiled and in numpy, and give the same bits.
Must not know: priorities, exponents, rings.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import numpy as np

from agilerl_exp.functional.compiled import load_library


def compiled_loops() -> ctypes.CDLL | None:
    """The library of sum_tree.c; the same sums whatever the compiler, so that the fallback draws the same rows."""
    return load_library("agilerl_exp.buffers", "sum_tree", ("-O2", "-ffp-contract=off"))


class _Engine(Protocol):
    def find(self, row: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...

    def set(self, row: np.ndarray, leaf: np.ndarray, value: np.ndarray) -> None: ...


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
        self._engine: _Engine = (
            _NumpyEngine(self.nodes, self.leaves)
            if library is None
            else _CEngine(self.nodes, self.leaves, library)
        )

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
        return self._engine.find(row, target)

    def set(self, row: np.ndarray, leaf: np.ndarray, value: np.ndarray) -> None:
        """Set leaves of trees, in order (the last of equal ones stays); three arrays of one shape."""
        self._engine.set(row, leaf, value)

    def load(self, tree: int, values: np.ndarray) -> None:
        """Replace all leaves of one tree: `values` first, zeros after."""
        nodes = self.nodes[tree]
        nodes[self.leaves :] = 0.0
        nodes[self.leaves : self.leaves + len(values)] = values
        level = self.leaves // 2
        while level:
            nodes[level : 2 * level] = nodes[2 * level : 4 * level : 2] + nodes[2 * level + 1 : 4 * level : 2]
            level //= 2


class _NumpyEngine:
    """One tree level at a time, for all targets together."""

    def __init__(self, nodes: np.ndarray, leaves: int) -> None:
        self._flat, self._leaves = nodes.reshape(-1), leaves

    def find(self, row: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        base, rest = row * (2 * self._leaves), target.copy()
        node = np.ones_like(row)
        for _ in range(self._leaves.bit_length() - 1):
            node *= 2
            left = self._flat[base + node]
            right = (rest >= left) & (self._flat[base + node + 1] > 0.0)
            rest -= np.where(right, left, 0.0)
            node += right
        return node - self._leaves, self._flat[base + node]

    def set(self, row: np.ndarray, leaf: np.ndarray, value: np.ndarray) -> None:
        base, node = row * (2 * self._leaves), leaf + self._leaves
        self._flat[base + node] = value
        for _ in range(self._leaves.bit_length() - 1):
            node //= 2
            self._flat[base + node] = self._flat[base + 2 * node] + self._flat[base + 2 * node + 1]


class _CEngine:
    """The loops of sum_tree.c, fed from arrays that stay: an address costs as much as dozens of finds."""

    def __init__(self, nodes: np.ndarray, leaves: int, library: ctypes.CDLL) -> None:
        self._nodes, self._address, self._leaves = nodes, nodes.ctypes.data, leaves
        self._find, self._set = library.tree_find, library.tree_set
        for function, arguments in ((self._find, "pippipp"), (self._set, "pipppi")):
            function.argtypes = [ctypes.c_void_p if kind == "p" else ctypes.c_int64 for kind in arguments]
            function.restype = None
        self._reserve(1024)

    def _reserve(self, n: int) -> None:
        self._row, self._leaf = np.empty(n, np.int64), np.empty(n, np.int64)
        self._target, self._value = np.empty(n), np.empty(n)
        arrays = (self._row, self._leaf, self._target, self._value)
        self._pointers = tuple(array.ctypes.data for array in arrays)

    def find(self, row: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = row.size
        if n > len(self._row):
            self._reserve(n)
        self._row[:n], self._target[:n] = row.reshape(-1), target.reshape(-1)
        rows, leaves, targets, values = self._pointers
        self._find(self._address, self._leaves, rows, targets, n, leaves, values)
        return self._leaf[:n].reshape(row.shape).copy(), self._value[:n].reshape(row.shape).copy()

    def set(self, row: np.ndarray, leaf: np.ndarray, value: np.ndarray) -> None:
        n = row.size
        if n > len(self._row):
            self._reserve(n)
        self._row[:n], self._leaf[:n], self._value[:n] = row.reshape(-1), leaf.reshape(-1), value.reshape(-1)
        rows, leaves, _, values = self._pointers
        self._set(self._address, self._leaves, rows, leaves, values, n)
