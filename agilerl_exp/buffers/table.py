"""Packed records: a table of equal rows in one numpy block a dtype kind, so that a gather is one copy a kind.

Must not know: which rows are filled, or what the fields mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
_KINDS = {"b": "uint8", "f": "float32", "i": "int32", "u": "int32"}


def plan(example: dict[str, Tree], widths: dict[str, int]) -> dict[str, Node]:
    """Lay the fields of `example` (leading axes (R, N)) out in columns, counting on from `widths`.

    Raises:
        SpaceError: a dtype is none of bool, integer, float.
    """

    def place(value: np.ndarray) -> Leaf:
        kind, shape = "uint8" if value.dtype == np.uint8 else _KINDS.get(value.dtype.kind), value.shape[2:]
        if kind is None:
            raise SpaceError(
                f"a replay buffer cannot store dtype {value.dtype}: allowed are bool, integers and floats"
            )
        start = widths.get(kind, 0)
        widths[kind] = start + prod(shape)
        return Leaf(kind, start, widths[kind], shape)

    return _walk(place, example)


def _walk(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with what `function` makes of each leaf."""
    if isinstance(tree, dict):
        return {key: _walk(function, child) for key, child in tree.items()}
    if type(tree) is tuple:  # a `Leaf` is none
        return tuple(_walk(function, child) for child in tree)
    return function(tree)


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


def _leaves(node: Node, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Leaf]]:
    """Each leaf of a node, after the keys that lead to it."""
    if isinstance(node, Leaf):
        yield path, node
    else:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(child, (*path, key))


def _widths(fields: dict[str, Node]) -> dict[str, int]:
    """Columns of each kind."""
    widths: dict[str, int] = {}
    for _, leaf in _leaves(fields):
        widths[leaf.kind] = max(widths.get(leaf.kind, 0), leaf.stop)
    return widths


def row_bytes(fields: dict[str, Node]) -> int:
    """Bytes of one row."""
    return sum(width * np.dtype(kind).itemsize for kind, width in _widths(fields).items())


class Table:
    """`rows` zeroed records with the given fields."""

    def __init__(self, fields: dict[str, Node], rows: int) -> None:
        self.fields = fields
        self.blocks: Blocks = {kind: np.zeros((rows, width), kind) for kind, width in _widths(fields).items()}
        self._columns = {name: [*self._columns_of(node)] for name, node in fields.items()}

    def _columns_of(self, node: Node) -> Iterator[tuple[tuple[Any, ...], np.ndarray, tuple[int, ...]]]:
        """Of each leaf: the keys that lead to it, a view (rows, *shape) of its block, and (-1, *shape)."""
        for path, leaf in _leaves(node):
            block = self.blocks[leaf.kind][:, leaf.start : leaf.stop]
            yield path, block.reshape(len(block), *leaf.shape), (-1, *leaf.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks.values())

    def put(self, name: str, where: Where, value: Tree, keep: np.ndarray | None = None) -> None:
        """Copy a field into the rows `where`; `keep` picks rows of `value`, its leading axes flattened."""
        for path, rows, shape in self._columns[name]:
            part = value
            for key in path:
                part = part[key]
            flat = part.reshape(shape)
            rows[where] = flat if keep is None else flat[keep]

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

        def part(leaf: Leaf) -> np.ndarray:
            columns = blocks[leaf.kind][..., leaf.start : leaf.stop]
            return columns if len(leaf.shape) == 1 else columns.reshape(columns.shape[:-1] + leaf.shape)

        return _walk(part, self.fields[name])
