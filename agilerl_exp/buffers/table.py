"""Packed records: a table of equal rows in one numpy block a dtype kind, so that a gather is one copy a kind.

Must not know: which rows are filled, or what the fields mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from agilerl_exp.buffers.transition import Tree
from agilerl_exp.errors import SpaceError

Blocks = dict[str, np.ndarray]
"""Dtype kind -> (..., width)."""
Where = slice | np.ndarray
"""Row numbers of a table."""


class Leaf(NamedTuple):
    """Columns [start, stop) of the block of `kind`, holding one array of `shape`."""

    path: tuple[Any, ...]
    """The field, then what leads to the array: keys into dicts, a `_Place` into tuples."""
    kind: str
    start: int
    stop: int
    shape: tuple[int, ...]


class _Place(int):
    """A place in a tuple; an integer may be the key of a dict."""


Fields = list[Leaf]
"""All arrays of a record, field by field."""
_KINDS = {"b": "uint8", "f": "float32", "i": "int32", "u": "int32"}


def plan(example: dict[str, Tree], widths: dict[str, int]) -> Fields:
    """Lay the fields of `example` (leading axes (R, N)) out in columns, counting on from `widths`.

    Raises:
        SpaceError: a dtype is none of bool, integer, float.
    """
    fields = []
    for path, value in _arrays(example):
        kind, shape = "uint8" if value.dtype == np.uint8 else _KINDS.get(value.dtype.kind), value.shape[2:]
        if kind is None:
            raise SpaceError(
                f"a replay buffer cannot store dtype {value.dtype}: allowed are bool, integers and floats"
            )
        start = widths.get(kind, 0)
        widths[kind] = start + prod(shape)
        fields.append(Leaf(path, kind, start, widths[kind], shape))
    return fields


def _arrays(tree: Tree, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """Each array of a tree, after what leads to it."""
    if isinstance(tree, dict | tuple):
        pairs = (
            tree.items() if isinstance(tree, dict) else ((_Place(i), child) for i, child in enumerate(tree))
        )
        for key, child in pairs:
            yield from _arrays(child, (*path, key))
    else:
        yield path, tree


def _nest(parts: Any) -> Tree:
    """The tree again, from nested dicts with places for keys where tuples were."""
    if not isinstance(parts, dict):
        return parts
    children = {key: _nest(child) for key, child in parts.items()}
    return tuple(children.values()) if any(isinstance(key, _Place) for key in children) else children


def _widths(fields: Fields) -> dict[str, int]:
    """Columns of each kind."""
    return {leaf.kind: leaf.stop for leaf in sorted(fields, key=lambda leaf: leaf.stop)}


def row_bytes(fields: Fields) -> int:
    """Bytes of one row."""
    return sum(width * np.dtype(kind).itemsize for kind, width in _widths(fields).items())


class Table:
    """`rows` zeroed records with the given fields."""

    def __init__(self, fields: Fields, rows: int) -> None:
        self.fields = fields
        self.blocks: Blocks = {kind: np.zeros((rows, width), kind) for kind, width in _widths(fields).items()}
        self._columns = []
        for path, kind, start, stop, shape in fields:
            columns = self.blocks[kind][:, start:stop].reshape(rows, *shape)
            self._columns.append((path[0], path[1:], columns, (-1, *shape)))

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks.values())

    def put(self, where: Where, fields: dict[str, Tree], keep: np.ndarray | None = None) -> None:
        """Copy those of `fields` that the table has into the rows `where`.

        Args:
            where: row numbers.
            fields: trees whose leading axes flatten to one.
            keep: which rows of these; None: all.
        """
        for name, keys, columns, shape in self._columns:
            if name not in fields:
                continue
            part = fields[name]
            for key in keys:
                part = part[key]
            flat = part.reshape(shape)
            columns[where] = flat if keep is None else flat[keep]

    def put_blocks(self, where: Where, blocks: Blocks) -> None:
        """Copy records of a table whose fields are the first ones of this table."""
        for kind, block in blocks.items():
            self.blocks[kind][:, : block.shape[-1]][where] = block

    def take(self, index: Where) -> Blocks:
        """The rows `index`: copies with its shape as leading axes, or views if it is a slice."""
        if isinstance(index, slice):
            return {kind: block[index] for kind, block in self.blocks.items()}
        return {kind: block.take(index, axis=0) for kind, block in self.blocks.items()}

    def trees(self, blocks: Blocks) -> dict[str, Tree]:
        """All fields of what `take` returned, without a copy."""
        found: dict[str, Any] = {}
        for path, kind, start, stop, shape in self.fields:
            part = blocks[kind][..., start:stop]
            at = found
            for key in path[:-1]:
                at = at.setdefault(key, {})
            at[path[-1]] = part if len(shape) == 1 else part.reshape(part.shape[:-1] + shape)
        return _nest(found)
