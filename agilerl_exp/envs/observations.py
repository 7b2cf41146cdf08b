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


def leaves(space: spaces.Space) -> Tree:
    """Observations of `space` as a tree of empty arrays (0, ...): shape and dtype of each leaf as we store it.

    Floats are stored as float32, bool and bytes as uint8, other integers as int64.

    Raises:
        SpaceError: the space holds something that is not an array of fixed shape.
    """
    if isinstance(space, spaces.Dict):
        return {key: leaves(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(leaves(part) for part in space.spaces)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        small = isinstance(space, spaces.MultiBinary) or space.dtype in (np.bool_, np.uint8)
        dtype = np.float32 if np.dtype(space.dtype).kind == "f" else np.uint8 if small else np.int64
        return np.empty((0, *(space.shape or ())), dtype)
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


def empty(of: Tree, lead: tuple[int, ...]) -> Tree:
    """Fresh arrays with leading axes `lead`, of the `leaves` of a space."""
    return walk(lambda leaf: np.empty(lead + leaf.shape[1:], leaf.dtype), of)


def finite(tree: Tree) -> bool:
    """Whether no float of the tree is NaN or infinite."""
    if isinstance(tree, dict | tuple):
        return all(map(finite, tree.values() if isinstance(tree, dict) else tree))
    # the squared norm is the quickest test that NaN and Inf cannot pass; it overflows above 1e19
    return tree.dtype.kind != "f" or math.isfinite(np.vdot(tree, tree)) or bool(np.isfinite(tree).all())


def walk(function: Callable[..., Any], *trees: Tree) -> Tree:
    """One tree of what `function` makes of the leaves at each place of trees of equal structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: walk(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(walk(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def take(tree: Tree, where: Any) -> Tree:
    """Row or rows `where` of each leaf; None stays None, an object array gives the observation it holds."""
    return walk(lambda leaf: None if leaf is None else leaf[where], tree)


def put(tree: Tree, where: Any, value: Tree) -> None:
    """Write a row or rows of each leaf, in the leaf's dtype; there is nothing to write where it is None."""

    def write(leaf: np.ndarray | None, part: Any) -> None:
        if leaf is not None:
            leaf[where] = part

    walk(write, tree, value)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of equal structure with leaves (N, ...) as one tree with leaves (P, N, ...); None stays None."""
    return walk(lambda *leaves: None if leaves[0] is None else np.stack(leaves), *trees)
