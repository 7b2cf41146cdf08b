"""The mark of a test that shows what a field of a spec does; tests/unit/test_effects.py asks one of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test")


def effect(*fields: str) -> Callable[[Test], Test]:
    """Mark a test: `@effect("TrainingSpec.max_steps")`, by the class that declares the field."""
    return lambda test: test
