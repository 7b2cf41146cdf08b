"""What goes into a buffer and what comes out of it.

Must not know: how rows are stored, drawn or weighted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

Tree = Any
"""An observation: an array, or a dict (of strings) or tuple of trees, nested as deep as the space is."""


@dataclass(slots=True)
class Transition:
    """One vector step of R members with N environment copies each; every array has leading axes (R, N)."""

    obs: Tree
    """Observation the action was chosen on."""
    action: np.ndarray
    """Integer (R, N, ...) counted from 0, or float (R, N, ...)."""
    reward: np.ndarray
    """(R, N)."""
    terminated: np.ndarray
    """(R, N) bool: the episode ended in a terminal state, nothing is bootstrapped."""
    truncated: np.ndarray
    """(R, N) bool: the episode was cut, the bootstrap stays."""
    next_obs: Tree
    """The observation the action led to, also at the end of an episode."""
    next_mask: np.ndarray | None = None
    """(R, N, A), 1 where an action is legal in `next_obs`."""
    valid: np.ndarray | None = None
    """(R, N) bool; False marks a reset slot, which is not a transition. None: all are valid."""


@dataclass(slots=True)
class Batch:
    """Rows drawn for R members, padded to the largest batch size B; every array has leading axes (R, B)."""

    obs: Tree
    """Structure, leaf shapes and kinds as they were added (float32, int32 or uint8)."""
    action: np.ndarray
    """int64 or float32."""
    reward: np.ndarray
    """float32: sum of gamma**k * reward[k] over the m steps of the row."""
    terminated: np.ndarray
    """float32: 1 where the m-th step ended in a terminal state."""
    next_obs: Tree
    """Observation after the m-th step."""
    discount: np.ndarray
    """float32: gamma**m, the factor of the bootstrap value (not cut by `terminated`)."""
    next_mask: np.ndarray | None
    """uint8 (R, B, A), or None when no masks were added."""
    index: np.ndarray
    """int64: position in the ring, for `update_priorities`; -1 on padding."""
    weight: np.ndarray
    """float32: importance weight, 1 for uniform draws, 0 on padding."""
    one_step: Batch | None = None
    """The same rows seen as plain one-step transitions, where the buffer keeps them."""

    def part(self, where: np.ndarray) -> Batch:
        """The rows of some of the members, padded to the largest of their batches."""
        width = int(np.count_nonzero(self.index[where] >= 0, axis=1).max())

        def cut(tree: Tree) -> Tree:
            if isinstance(tree, Batch):
                return tree.part(where)
            if isinstance(tree, dict):
                return {key: cut(child) for key, child in tree.items()}
            if isinstance(tree, tuple):
                return tuple(map(cut, tree))
            return None if tree is None else tree[where, :width]

        return Batch(**{field.name: cut(getattr(self, field.name)) for field in fields(self)})
