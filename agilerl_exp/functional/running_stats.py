"""Running mean and variance of observations, one row a member (Chan, Golub and LeVeque 1979).

Must not know: what is normalised. Shapes: `(P, D)` for P members of observation width D.
"""

from __future__ import annotations

import numpy as np

CLIP = 10.0
_FLOOR = 1e-8


class RunningStats:
    """Per-member mean and variance in float64, and normalisation in float32."""

    def __init__(self, pop: int, width: int):
        self.count = np.zeros(pop)
        self.mean = np.zeros((pop, width))
        self.square = np.zeros((pop, width))  # sum of squared deviations from the mean

    def update(self, rows: np.ndarray, x: np.ndarray, valid: np.ndarray) -> None:
        """Take in observations.

        Args:
            rows: `(R,)` members.
            x: `(R, N, D)` float32.
            valid: `(R, N)` bool; other rows are ignored.
        """
        n = np.count_nonzero(valid, axis=1).astype(np.float64)
        keep = valid[:, :, None]
        total = np.maximum(n, 1)[:, None]
        mean = np.where(keep, x, 0).sum(1, dtype=np.float64) / total
        deviation = np.where(keep, x - mean[:, None], 0)
        square = (deviation * deviation).sum(1)
        old = self.count[rows]
        both = np.maximum(old + n, 1)[:, None]
        delta = mean - self.mean[rows]
        self.mean[rows] += delta * (n[:, None] / both)
        self.square[rows] += square + delta * delta * (old * n)[:, None] / both
        self.count[rows] += n

    def scaling(self, rows: np.ndarray | slice, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and inverse deviation, float32 `(R, D)`; 0 and 1 before two samples, and beyond D up to `width`."""
        known = (self.count[rows] > 1)[:, None]
        variance = self.square[rows] / np.maximum(self.count[rows], 1)[:, None]
        inverse = np.where(known, 1 / np.sqrt(variance + _FLOOR), 1.0).astype(np.float32)
        mean = np.where(known, self.mean[rows], 0.0).astype(np.float32)
        more = (width or mean.shape[1]) - mean.shape[1]
        if not more:
            return mean, inverse
        return np.pad(mean, ((0, 0), (0, more))), np.pad(inverse, ((0, 0), (0, more)), constant_values=1)

    def normalize(self, rows: np.ndarray | slice, x: np.ndarray) -> np.ndarray:
        """(x - mean) / std, cut at +-10, as float32; x `(R, B, D)`. Before two samples x passes unchanged."""
        mean, inverse = self.scaling(rows)
        out = np.subtract(x, mean[:, None])
        out *= inverse[:, None]
        return np.clip(out, -CLIP, CLIP, out=out)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Count, mean and sum of squares."""
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state_dict` gave."""
        for name, value in state.items():
            getattr(self, name)[...] = value
