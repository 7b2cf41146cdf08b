"""Imports the user's own code: a module by its name, a file by its path, an object inside of one.

Must not know: what the code holds, or who needs it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.base import did_you_mean

FORGOTTEN = "; is the file that defines it missing from plugins=[FILE]?"
"""What may be wrong when a name is not known."""


def import_source(source: str) -> ModuleType:
    """Import `module.name` or `path/to/file.py`, once, whichever part of the program asks first.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: There is no such module.
        Exception: Whatever the code raises while it is imported.
    """
    see_current_directory()
    return _import_file(Path(source).resolve()) if source.endswith(".py") else importlib.import_module(source)


def see_current_directory() -> None:
    """Let modules beside the user's own files be found, after everything that is installed."""
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)


def _import_file(file: Path) -> ModuleType:
    # The name holds the whole path: two files of one name are two modules, one file is never imported twice.
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # always so for a name that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def resolve(path: str, place: str) -> Any:
    """Return the object at `package.module.attr`, `module:attr` or `file.py:attr`.

    Args:
        path: Where it is.
        place: `field=value`, with which a message begins.

    Raises:
        ConfigError: It is not there, or its code failed; one line.
    """
    file, _, attr = path.rpartition(":")
    with told(place):
        if not file.endswith(".py"):
            return pkgutil.resolve_name(path)
    if not Path(file).is_file():
        raise ConfigError(
            f"{place}: no file {Path(file).resolve()}; give a path from here or an absolute one"
        )
    with told(place):
        module = import_source(file)
    if not hasattr(module, attr):
        raise ConfigError(f"{place}: {file} has no {attr!r}{did_you_mean(attr, vars(module))}")
    return getattr(module, attr)


@contextmanager
def told(place: str, create: Any = None, settings: Iterable[str] = ()) -> Iterator[None]:
    """Whatever the user's code raises inside comes out as one line that begins with `place` (field=value)."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{place}: {_reason(error, create, settings)}") from error


def _reason(error: Exception, create: Any, settings: Iterable[str]) -> str:
    """The message in one line; for a wrong argument of `create`, what it takes."""
    allowed = _parameters(create) if isinstance(error, TypeError) else None
    unknown = [] if allowed is None else [key for key in settings if key not in allowed]
    if allowed is not None and unknown:
        hint = did_you_mean(unknown[0], allowed)
        takes = f"it takes {', '.join(allowed)}" if allowed else "it takes no settings"
        return f"unexpected keyword argument {unknown[0]!r}; {takes}{hint}"
    if isinstance(error, ModuleNotFoundError) and error.name and "No module named" in str(error):
        return (
            f"No module named {error.name!r}; install the package or run in the folder that holds the module"
        )
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if type(error).__name__ == "DependencyNotInstalled" and "box2d" in text.lower():
        return f"{text}; fix: pip install 'agilerl-exp[box2d]'"
    if isinstance(error, AttributeError) and error.name:
        return text + did_you_mean(error.name, dir(error.obj))
    return text


def _parameters(create: Any) -> list[str] | None:
    """The names of the keyword arguments; None when they cannot be known."""
    try:
        parameters = inspect.signature(create).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
