"""Imports the user's own code: a module by its name, a file by its path.

Must not know: what the code holds, or who needs it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

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
