"""Rings: tables of fixed size that overwrite their oldest rows, each with its own cursor.

Must not know: what a row means, or how rows are chosen for a batch.
"""

from __future__ import annotations

import numpy as np

from agilerl_exp.buffers.table import Node, Table, Where


class Rings:
    """`count` rings of `capacity` rows in one table; ring r owns the rows from r * capacity on."""

    def __init__(self, fields: dict[str, Node], count: int, capacity: int) -> None:
        self.capacity = capacity
        self.table = Table(fields, count * capacity)
        self.cursors = np.zeros(count, np.int64)
        self.sizes = np.zeros(count, np.int64)

    def claim(self, rings: np.ndarray, counts: np.ndarray) -> tuple[Where, np.ndarray | None]:
        """Rows for the next `counts[r]` records of each ring, in order.

        Args:
            rings: distinct ring numbers (R,).
            counts: records a ring (R,).

        Returns:
            Table rows for all records, ring by ring; and, where a ring gets more records than it holds,
            which of the records (the newest) those rows are for, otherwise None.
        """
        if len(rings) == 1:
            where, keep = self._claim_one(int(rings[0]), int(counts[0]))
        else:
            where, keep = self._claim_many(rings, counts)
        self.cursors[rings] = (self.cursors[rings] + counts) % self.capacity
        self.sizes[rings] = np.minimum(self.sizes[rings] + counts, self.capacity)
        return where, keep

    def _claim_one(self, ring: int, count: int) -> tuple[Where, np.ndarray | None]:
        start, base = int(self.cursors[ring]), ring * self.capacity
        if start + count <= self.capacity:
            return slice(base + start, base + start + count), None
        rank = np.arange(max(0, count - self.capacity), count)
        return base + (start + rank) % self.capacity, rank if count > self.capacity else None

    def _claim_many(self, rings: np.ndarray, counts: np.ndarray) -> tuple[Where, np.ndarray | None]:
        ring = np.repeat(rings, counts)
        rank = np.arange(len(ring)) - np.repeat(np.cumsum(counts) - counts, counts)
        where = (self.cursors[ring] + rank) % self.capacity + ring * self.capacity
        if counts.max() <= self.capacity:
            return where, None
        keep = np.flatnonzero(rank >= np.repeat(counts, counts) - self.capacity)
        return where[keep], keep
