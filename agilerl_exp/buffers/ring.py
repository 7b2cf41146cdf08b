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

    def claim(self, rings: np.ndarray, counts: int | np.ndarray) -> Where:
        """Rows for the next records of each ring, ring by ring and in order.

        Where a ring gets more records than it holds a row comes several times, and the last record stays.

        Args:
            rings: distinct ring numbers (R,).
            counts: records of every ring, or of each (R,).
        """
        if len(rings) == 1:
            return self.claim_one(int(rings[0]), counts if isinstance(counts, int) else int(counts[0]))
        cursors, bases = self.cursors[rings], rings * self.capacity
        self.cursors[rings] = (cursors + counts) % self.capacity
        self.sizes[rings] = np.minimum(self.sizes[rings] + counts, self.capacity)
        if isinstance(counts, int):
            rows = (cursors[:, None] + np.arange(counts)) % self.capacity
            rows += bases[:, None]
            return rows.reshape(-1)
        rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return (np.repeat(cursors, counts) + rank) % self.capacity + np.repeat(bases, counts)

    def copy(self, ring: int, source: int) -> None:
        """Make a ring a copy of another one: filled rows, cursor and size."""
        rows = int(self.sizes[source])
        for block in self.table.blocks.values():
            block[ring * self.capacity :][:rows] = block[source * self.capacity :][:rows]
        self.cursors[ring], self.sizes[ring] = self.cursors[source], rows

    def claim_one(self, ring: int, count: int) -> Where:
        """`claim` for one ring, in plain integers: the fast path of a lone member."""
        start, base = int(self.cursors[ring]), ring * self.capacity
        self.cursors[ring] = (start + count) % self.capacity
        size = int(self.sizes[ring])
        if size < self.capacity:
            self.sizes[ring] = min(size + count, self.capacity)
        if start + count <= self.capacity:
            return slice(base + start, base + start + count)
        return base + (start + np.arange(count)) % self.capacity
