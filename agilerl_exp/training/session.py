"""What surrounds a loop: reports, checkpoints, signals. This base keeps nothing, a job's session everything.

Must not know: how a loop trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Session:
    """Called by a loop at its step boundaries."""

    def at_boundary(self, loop: Any) -> None:
        """After each vector step and its updates."""

    def at_generation(self, loop: Any, returns: np.ndarray) -> None:
        """After each evaluation; returns (P, episodes)."""

    def at_births(self, loop: Any, births: Sequence[Any]) -> None:
        """When members were founded, replaced or mutated."""

    def at_next_generation(self, loop: Any) -> None:
        """When the next generation can begin, or the last one is over."""

    def warn(self, text: str) -> None:
        """Something that a person should know."""

    def at_end(self, loop: Any) -> None:
        """When the run is over."""
