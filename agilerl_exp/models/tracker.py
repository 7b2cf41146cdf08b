"""Spec of where metrics go besides the display.

Must not know: file formats or tracking services.
"""

from __future__ import annotations

from typing import Literal

from agilerl_exp.models.base import Spec


class TrackerSpec(Spec):
    """Where the metric rows of a run are written."""

    name: Literal["jsonl", "none"] = "jsonl"
    """jsonl: `metrics.jsonl` in the job directory; none: nowhere."""
