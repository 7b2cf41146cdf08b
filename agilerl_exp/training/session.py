"""What surrounds a loop: reports, checkpoints, signals. This base keeps nothing, a job's session everything.

Must not know: how a loop trains.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Session:
    """Called by a loop at its step boundaries."""

    def at_boundary(self, loop: Any) -> None:
        """After each vector step and its updates."""

    def at_generation(self, loop: Any, returns: np.ndarray) -> None:
        """After each evaluation; returns (P, episodes)."""

    def at_end(self, loop: Any) -> None:
        """When the run is over."""
