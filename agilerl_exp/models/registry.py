"""The registry that maps an algorithm's name to its spec class.

Must not know: any concrete algorithm. Spec modules are found by looking into a package, so no list is edited.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

SpecT = TypeVar("SpecT", bound=type)


@dataclass(frozen=True)
class RegistryEntry:
    """What the registry knows of an algorithm."""

    spec_cls: type[Any]

    @property
    def place(self) -> str:
        """Module and name of the spec class."""
        return f"{self.spec_cls.__module__}.{self.spec_cls.__qualname__}"


class AlgorithmRegistry:
    """Maps algorithm names (`DQN`) to spec classes.

    Args:
        package: Package whose modules are imported, once, before the first look-up; None: only what is added.
    """

    def __init__(self, package: str | None = None) -> None:
        """Start empty."""
        self._entries: dict[str, RegistryEntry] = {}
        self._package = package

    def add(self, name: str, spec_cls: type[Any]) -> None:
        """Register a spec class; a different class under a known name replaces it with a warning.

        Args:
            name: Algorithm name, by convention the class name without `Spec`.
            spec_cls: The spec class.
        """
        old, new = self._entries.get(name), RegistryEntry(spec_cls)
        # A plugin file imported twice gives two class objects of the same place: that is not a replacement.
        if old is not None and old.place != new.place:
            warnings.warn(f"algorithm {name}: {old.place} is replaced by {new.place}", stacklevel=2)
        self._entries[name] = new

    def get(self, name: str) -> RegistryEntry:
        """Look up an entry.

        Raises:
            KeyError: No such name; the message lists what is registered.
        """
        self._discover()
        try:
            return self._entries[name]
        except KeyError:
            have = ", ".join(self.names()) or "nothing"
            raise KeyError(f"algorithm {name!r} is not registered (have: {have})") from None

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._discover()
        return sorted(self._entries)

    def _discover(self) -> None:
        if self._package is None:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self._package}.{module.name}")
        self._package = None


ALGO_REGISTRY = AlgorithmRegistry("agilerl_exp.models.algorithms")
"""The registry of all algorithms; a plugin adds its own with `register()`."""


def register() -> Callable[[SpecT], SpecT]:
    """Class decorator: put a concrete spec `<Name>Spec` into `ALGO_REGISTRY` as `<Name>`."""

    def decorate(spec_cls: SpecT) -> SpecT:
        ALGO_REGISTRY.add(spec_cls.__name__.removesuffix("Spec"), spec_cls)
        return spec_cls

    return decorate
