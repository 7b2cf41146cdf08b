"""Batches of observations as trees of arrays, copied out of the environment's memory in the dtypes we store.

A tree is an array, or a dict or tuple of trees. Must not know: vector environments, networks, buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from agilerl_exp.errors import SpaceError

Tree = Any
"""`np.ndarray | dict[str, Tree] | tuple[Tree, ...]`."""


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype a leaf is handed on with: floats float32, bool and bytes uint8, other integers int64."""
    if dtype.kind == "f":
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if dtype in (np.bool_, np.uint8) else np.int64)


def reader(space: spaces.Space) -> Callable[[Any], Tree]:
    """A function that copies one batch of observations of `space` into fresh C-ordered arrays.

    Raises:
        SpaceError: the space holds something that is not an array of fixed shape.
    """
    if isinstance(space, spaces.Dict):
        fields = {key: reader(part) for key, part in space.spaces.items()}
        return lambda batch: {key: read(batch[key]) for key, read in fields.items()}
    if isinstance(space, spaces.Tuple):
        parts = [reader(part) for part in space.spaces]
        return lambda batch: tuple(read(item) for read, item in zip(parts, batch, strict=True))
    if isinstance(space, spaces.MultiBinary):
        return lambda batch: np.array(batch, dtype=np.uint8, order="C")
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete):
        dtype = stored_dtype(np.dtype(space.dtype))
        return lambda batch: np.array(batch, dtype=dtype, order="C")
    raise SpaceError(
        f"observation space {type(space).__name__} has no fixed shape; use Box, Discrete, MultiDiscrete, "
        "MultiBinary, Dict or Tuple, or convert it with env.wrappers=[your.module.Wrapper]"
    )


def misfit(space: spaces.Space, obs: Any) -> str | None:
    """Why an observation cannot stand in a batch of `space`; None when it can."""
    try:
        concatenate(space, (obs,), create_empty_array(space, n=1))  # type: ignore[arg-type]
    except Exception:
        return f"the observation {in_words(obs)} does not fit {in_words(space)}"
    return None


def in_words(value: Any) -> str:
    """A value in one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def finite(tree: Tree) -> bool:
    """Whether no float of the tree is NaN or infinite."""
    if isinstance(tree, np.ndarray):
        # the squared norm is the quickest test that NaN and Inf cannot pass; it overflows above 1e19
        return tree.dtype.kind != "f" or math.isfinite(np.vdot(tree, tree)) or bool(np.isfinite(tree).all())
    leaves = tree.values() if isinstance(tree, dict) else tree
    return all(finite(leaf) for leaf in leaves)


def first_bad_row(tree: Tree, num_rows: int) -> int | None:
    """The first row with a value that is not finite, or None."""
    return next((row for row in range(num_rows) if not finite(take_rows(tree, slice(row, row + 1)))), None)


def walk(function: Callable[..., Any], *trees: Tree) -> Tree:
    """One tree of what `function` makes of the leaves at each place of trees of equal structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: walk(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(walk(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def take_row(tree: Tree, row: int) -> Tree:
    """Row `row` of each leaf; an object array of whole observations gives that observation."""
    return walk(lambda leaf: leaf[row], tree)


def put_row(tree: Tree, row: int, value: Tree) -> None:
    """Write one observation into row `row` of the batch."""

    def put(leaf: np.ndarray, part: Any) -> None:
        leaf[row] = part

    walk(put, tree, value)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of equal structure with leaves (N, ...) as one tree with leaves (P, N, ...)."""
    return walk(lambda *leaves: np.stack(leaves), *trees)


def take_rows(tree: Tree, rows: slice) -> Tree:
    """A slice of rows of each leaf; None stays None."""
    return walk(lambda leaf: None if leaf is None else leaf[rows], tree)
