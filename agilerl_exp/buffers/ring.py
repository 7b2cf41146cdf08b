"""Rings: tables of fixed size that overwrite their oldest rows, each with its own cursor.

Must not know: what a row means, or how rows are chosen for a batch.
"""

from __future__ import annotations

import numpy as np

from agilerl_exp.buffers.table import Fields, Table, Where


class Rings:
    """`count` rings of `capacity` rows in one table; ring r owns the rows from r * capacity on."""

    def __init__(self, fields: Fields, count: int, capacity: int) -> None:
        self.capacity = capacity
        self.table = Table(fields, count * capacity)
        self.cursors = np.zeros(count, np.int64)
        self.sizes = np.zeros(count, np.int64)

    def claim(self, rings: np.ndarray, counts: int | np.ndarray) -> tuple[Where, np.ndarray | None]:
        """Rows for the next records of each ring, in order.

        Args:
            rings: distinct ring numbers (R,).
            counts: records of every ring, or of each (R,).

        Returns:
            Table rows for all records, ring by ring; and, if a ring gets more records than it holds, which of
            the records (the newest) those rows are for, otherwise None.
        """
        if len(rings) == 1:
            return self.claim_one(int(rings[0]), counts if isinstance(counts, int) else int(counts[0]))
        cursors = self.cursors[rings]
        self.cursors[rings] = (cursors + counts) % self.capacity
        self.sizes[rings] = np.minimum(self.sizes[rings] + counts, self.capacity)
        if isinstance(counts, int) and counts <= self.capacity:
            rows = (cursors[:, None] + np.arange(counts)) % self.capacity
            rows += (rings * self.capacity)[:, None]
            return rows.reshape(-1), None
        counts = np.full(len(rings), counts)
        rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        where = (np.repeat(cursors, counts) + rank) % self.capacity + np.repeat(rings * self.capacity, counts)
        if counts.max() <= self.capacity:
            return where, None
        keep = np.flatnonzero(rank >= np.repeat(counts, counts) - self.capacity)
        return where[keep], keep

    def claim_one(self, ring: int, count: int) -> tuple[Where, np.ndarray | None]:
        """`claim` for one ring, in plain integers: the fast path of a lone member."""
        capacity = self.capacity
        start, base = int(self.cursors[ring]), ring * capacity
        self.cursors[ring] = (start + count) % capacity
        size = int(self.sizes[ring])
        if size < capacity:
            self.sizes[ring] = min(size + count, capacity)
        if start + count <= capacity:
            return slice(base + start, base + start + count), None
        rank = np.arange(max(0, count - capacity), count)
        return base + (start + rank) % capacity, rank if count > capacity else None
