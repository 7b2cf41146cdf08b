"""Proportional priorities (Schaul et al. 2016, section 3.3): p = (|td_error| + epsilon)**alpha.

One sum tree a member. Powers are taken in numpy, so that the compiled tree and its fallback draw the same
rows. Must not know: what the rows hold.
"""

from __future__ import annotations

import numpy as np

from agilerl_exp.buffers.sum_tree import SumTrees
from agilerl_exp.errors import DivergenceError


class Priorities:
    """Trees of `members` over `capacity` rows each.

    Args:
        members: number of trees.
        capacity: rows a ring.
        alpha: exponent, 0 draws uniformly.
        epsilon: added to |td_error| (> 0), so that every row can be drawn.
        compiled: see `SumTrees`.
    """

    def __init__(
        self, members: int, capacity: int, alpha: float, epsilon: float, compiled: bool | None = None
    ) -> None:
        self.alpha, self.epsilon = alpha, epsilon
        self.trees = SumTrees(members, capacity, compiled)
        self.highest = np.ones(members)
        """Largest priority so far, with which new rows enter."""

    def enter(self, member: np.ndarray, position: np.ndarray) -> None:
        """Give new rows the largest priority so far (two int64 arrays of one shape)."""
        self.trees.set(member, position, self.highest[member])

    def copy(self, member: int, source: int) -> None:
        """Make the tree of a member a copy of another one."""
        self.trees.nodes[member] = self.trees.nodes[source]
        self.highest[member] = self.highest[source]

    def draw(
        self, members: np.ndarray, uniform: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Stratified draw: the j-th of B rows comes from the j-th of B equal parts of the running sum.

        Args:
            members: (R,).
            uniform: (R, B) in [0, 1).
            counts: (R,) rows a member, the B of its parts; what follows them is padding, to be left out.

        Returns:
            position (R, B) int64 and priority (R, B) float64.
        """
        part = np.arange(uniform.shape[1])
        target = uniform + part
        target *= (self.trees.totals[members] / counts)[:, None]
        return self.trees.find(np.repeat(members, len(part)).reshape(uniform.shape), target)

    def update(self, members: np.ndarray, position: np.ndarray, td_error: np.ndarray) -> None:
        """Set the priorities of drawn rows; a negative position is padding and is left out.

        Raises:
            DivergenceError: a td_error is not finite; no tree is touched.
        """
        member = np.repeat(members, position.shape[1]).reshape(position.shape)
        error = np.abs(td_error, dtype=np.float64)
        if position.min(initial=0) < 0:
            drawn = position >= 0
            member, position, error = member[drawn], position[drawn], error[drawn]
        priority = (error + self.epsilon) ** self.alpha
        if not np.isfinite(priority).all():
            wrong = int(member[~np.isfinite(priority)][0])
            raise DivergenceError(
                f"member {wrong}: td_error is not finite; its priorities were left as they were"
            )
        self.trees.set(member, position, priority)
        np.maximum.at(self.highest, member.reshape(-1), priority.reshape(-1))
