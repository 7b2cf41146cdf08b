"""Schedules as pure functions of a member's env steps; nothing to save, nothing to lose on resume.

Must not know: who asks. Shapes: t `(P,)` env steps, parameters float or `(P,)`; results `(P,)` float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def epsilon(kind: str, t: np.ndarray, start: ArrayLike, end: ArrayLike, decay: ArrayLike) -> np.ndarray:
    """Probability of a random action.

    exponential: max(end, start * decay**t). linear: from start to end over `decay` env steps.
    constant: start.
    """
    start, end, decay = (np.asarray(x, np.float64) for x in (start, end, decay))
    if kind == "exponential":
        return np.maximum(end, start * decay**t)
    if kind == "linear":
        return start + (end - start) * np.minimum(t / decay, 1.0)
    return np.broadcast_to(start, np.shape(t)).astype(np.float64)


def linear_to(t: np.ndarray, horizon: int, first: ArrayLike, last: ArrayLike) -> np.ndarray:
    """From `first` at t=0 to `last` at t=horizon, and `last` after it."""
    share = np.minimum(t / horizon, 1.0)
    first = np.asarray(first, np.float64)
    return first + (np.asarray(last, np.float64) - first) * share
