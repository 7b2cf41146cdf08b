"""The only place of `models` that reaches downwards: by name, when called, never when imported.

Must not know: what the targets do.
"""

from __future__ import annotations

import importlib
from typing import Any

_PACKAGE = "agilerl_exp"


def attribute(module: str, name: str) -> Any:
    """Import `agilerl_exp.<module>` and return its attribute `name`."""
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)


def algorithm_class(spec_cls: type) -> Any:
    """Return the algorithm class of a spec class `<Name>Spec`.

    A plugin keeps both in one module, so the spec's own module is looked at first; ours live at
    `agilerl_exp.algorithms.<stem>.<Name>`, with the stem of the spec's module.

    Raises:
        LookupError: Neither place has a class `<Name>`.
    """
    name, own = spec_cls.__name__.removesuffix("Spec"), spec_cls.__module__
    home = f"{_PACKAGE}.algorithms.{own.rpartition('.')[2]}"
    for place in (own, home):
        try:
            return getattr(importlib.import_module(place), name)
        except AttributeError:
            pass
        except ModuleNotFoundError as error:
            if error.name != place:  # a dependency is missing, not the algorithm
                raise
    raise LookupError(f"{spec_cls.__name__}: no class {name} in {own} or {home}")
