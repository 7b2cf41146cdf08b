"""Compiles sum_tree.c at first use and keeps the library in a cache of the user.

No instruction set of the local machine is asked for, so that a home directory shared by unlike nodes works.
Must not know: what the functions do.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

_FLAGS = ("-O2", "-fPIC", "-shared", "-ffp-contract=off")
_LOG = logging.getLogger(__name__)


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The compiled loops, or None where AGILERL_EXP_NO_COMPILER=1 is set, no compiler is found or it fails.

    The library is written to a temporary name and renamed, so that processes that start together never read
    half of it. A cache that cannot be written or loaded is replaced by a temporary directory.
    """
    if os.environ.get("AGILERL_EXP_NO_COMPILER", "0") not in ("", "0"):
        return None
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        _LOG.info("no C compiler (cc, gcc, clang): prioritized replay takes its slower numpy loops")
        return None
    try:
        return _load(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning(
            "%s cannot build sum_tree.c (%s): prioritized replay takes its slower numpy loops",
            compiler,
            error,
        )
        return None


def _load(compiler: str) -> ctypes.CDLL:
    source = resources.files(__package__).joinpath("sum_tree.c").read_text()
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    key = hashlib.sha256("\n".join((source, version, *_FLAGS)).encode()).hexdigest()[:16]
    path = _cache_directory() / f"sum_tree-{key}.so"
    try:
        return ctypes.CDLL(str(path))  # raises when absent or damaged
    except OSError:
        pass
    try:
        _compile(compiler, source, path)
        return ctypes.CDLL(str(path))
    except OSError:  # a full, read-only or noexec cache
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / path.name
            _compile(compiler, source, path)
            return ctypes.CDLL(str(path))  # stays mapped after the file is gone


def _cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "agilerl_exp"


def _compile(compiler: str, source: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        output = Path(directory) / path.name
        command = [compiler, *_FLAGS, "-x", "c", "-", "-o", str(output)]
        subprocess.run(command, input=source, capture_output=True, text=True, check=True, timeout=120)
        os.replace(output, path)
