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

    kind: str
    start: int
    stop: int
    shape: tuple[int, ...]


Node = Any
"""A `Leaf`, or a dict or tuple of nodes: the shape of one field."""


def plan(example: dict[str, Tree], widths: dict[str, int]) -> dict[str, Node]:
    """Lay the fields of `example` (leading axes (R, N)) out in columns, counting on from `widths`."""
    return {name: _plan(value, widths) for name, value in example.items()}


def _plan(value: Tree, widths: dict[str, int]) -> Node:
    if isinstance(value, dict):
        return {key: _plan(child, widths) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_plan(child, widths) for child in value)
    kind, shape = _kind(value.dtype), value.shape[2:]
    start = widths.get(kind, 0)
    widths[kind] = start + prod(shape)
    return Leaf(kind, start, widths[kind], shape)


def _kind(dtype: np.dtype) -> str:
    """Storage kind of a dtype.

    Raises:
        SpaceError: the dtype is none of bool, integer, float.
    """
    if dtype == np.uint8 or dtype == np.bool_:
        return "uint8"
    if np.issubdtype(dtype, np.floating):
        return "float32"
    if np.issubdtype(dtype, np.integer):
        return "int32"
    raise SpaceError(f"a replay buffer cannot store dtype {dtype}: allowed are bool, integers and floats")


def to_json(node: Node) -> Any:
    """A node as lists, dicts, strings and integers; the order of keys is kept in a list."""
    if isinstance(node, Leaf):
        return [node.kind, node.start, node.stop, list(node.shape)]
    if isinstance(node, dict):
        return {"dict": [[key, to_json(child)] for key, child in node.items()]}
    return {"tuple": [to_json(child) for child in node]}


def from_json(data: Any) -> Node:
    """The inverse of `to_json`."""
    if isinstance(data, list):
        kind, start, stop, shape = data
        return Leaf(kind, start, stop, tuple(shape))
    if "dict" in data:
        return {key: from_json(child) for key, child in data["dict"]}
    return tuple(from_json(child) for child in data["tuple"])


def _leaves(node: Node) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    else:
        for child in node.values() if isinstance(node, dict) else node:
            yield from _leaves(child)


def _unpack(node: Node, blocks: Blocks) -> Tree:
    if isinstance(node, Leaf):
        part = blocks[node.kind][..., node.start : node.stop]
        return part if len(node.shape) == 1 else part.reshape(part.shape[:-1] + node.shape)
    if isinstance(node, dict):
        return {key: _unpack(child, blocks) for key, child in node.items()}
    return tuple(_unpack(child, blocks) for child in node)


def row_bytes(fields: dict[str, Node]) -> int:
    """Bytes of one row."""
    leaves = (leaf for node in fields.values() for leaf in _leaves(node))
    return sum((leaf.stop - leaf.start) * np.dtype(leaf.kind).itemsize for leaf in leaves)


class _Column(NamedTuple):
    rows: np.ndarray
    """View (rows, *shape) of a block."""
    shape: tuple[int, ...]
    """(-1, *shape)."""


def _columns(node: Node, blocks: Blocks) -> Any:
    """The node with each leaf replaced by its column."""
    if isinstance(node, Leaf):
        block = blocks[node.kind][:, node.start : node.stop]
        return _Column(block.reshape(len(block), *node.shape), (-1, *node.shape))
    if isinstance(node, dict):
        return {key: _columns(child, blocks) for key, child in node.items()}
    return tuple(_columns(child, blocks) for child in node)


def _put(column: Any, where: Where, value: Tree, keep: np.ndarray | None) -> None:
    if type(column) is _Column:
        rows, shape = column
        flat = value.reshape(shape)
        rows[where] = flat if keep is None else flat[keep]
    elif isinstance(column, dict):
        for key, child in column.items():
            _put(child, where, value[key], keep)
    else:
        for child, part in zip(column, value, strict=True):
            _put(child, where, part, keep)


class Table:
    """`rows` zeroed records with the given fields."""

    def __init__(self, fields: dict[str, Node], rows: int) -> None:
        self.fields = fields
        widths: dict[str, int] = {}
        for node in fields.values():
            for leaf in _leaves(node):
                widths[leaf.kind] = max(widths.get(leaf.kind, 0), leaf.stop)
        self.blocks: Blocks = {kind: np.zeros((rows, width), kind) for kind, width in widths.items()}
        self._columns = {name: _columns(node, self.blocks) for name, node in fields.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks.values())

    def put(self, name: str, where: Where, value: Tree, keep: np.ndarray | None = None) -> None:
        """Copy a field into the rows `where`; `keep` picks rows of `value`, its leading axes flattened."""
        column = self._columns[name]
        if keep is None and type(column) is _Column:  # the common case, without a further call
            rows, shape = column
            rows[where] = value.reshape(shape)
        else:
            _put(column, where, value, keep)

    def put_blocks(self, where: Where, blocks: Blocks) -> None:
        """Copy records of a table whose fields are the first ones of this table."""
        for kind, block in blocks.items():
            self.blocks[kind][:, : block.shape[-1]][where] = block

    def take(self, index: Where) -> Blocks:
        """The rows `index`: copies with its shape as leading axes, or views if it is a slice."""
        if isinstance(index, slice):
            return {kind: block[index] for kind, block in self.blocks.items()}
        return {kind: block.take(index, axis=0) for kind, block in self.blocks.items()}

    def view(self, name: str, blocks: Blocks) -> Tree:
        """One field of what `take` returned, without a copy."""
        return _unpack(self.fields[name], blocks)
