"""Compiles a C file of this package at first use and keeps the library in a cache of the user.

Must not know: what the functions do, or what is done without them.
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

_FLAGS = ("-fPIC", "-shared")
_LOG = logging.getLogger(__name__)


@functools.cache
def load_library(package: str, name: str, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    """The library of `name`.c, or None where AGILERL_EXP_NO_COMPILER=1 is set, no compiler is found or it fails.

    The library is written to a temporary name and renamed, so that processes that start together never read
    half of it. A cache that cannot be written or loaded is replaced by a temporary directory. The cache key holds
    the source, the compiler, the flags and the instruction sets of this machine, so that a home directory shared by
    unlike nodes works with -march=native.

    Args:
        package: where the file is, such as `agilerl_exp.buffers`.
        name: of the file, without `.c`.
        flags: of the compiler.
    """
    if os.environ.get("AGILERL_EXP_NO_COMPILER", "0") not in ("", "0"):
        return None
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        _LOG.info("no C compiler (cc, gcc, clang): slower loops take the place of %s.c", name)
        return None
    try:
        return _load(compiler, package, name, flags)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("%s cannot build %s.c (%s): slower loops take its place", compiler, name, error)
        return None


def _load(compiler: str, package: str, name: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    source = resources.files(package).joinpath(f"{name}.c").read_text()
    command = [compiler, *flags, *_FLAGS, "-x", "c", "-"]
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    parts = (source, version, *command, _instruction_sets())
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path = _cache_directory() / f"{name}-{key}.so"
    try:
        return ctypes.CDLL(str(path))  # raises when absent or damaged
    except OSError:
        pass
    try:
        _compile(command, source, path)
        return ctypes.CDLL(str(path))
    except OSError:  # a full, read-only or noexec cache
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / path.name
            _compile(command, source, path)
            return ctypes.CDLL(str(path))  # stays mapped after the file is gone


def _instruction_sets() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return next((line for line in lines if line.startswith(("flags", "Features"))), os.uname().machine)


def _cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "agilerl_exp"


def _compile(command: list[str], source: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        output = Path(directory) / path.name
        words = [*command, "-o", str(output), "-lm"]
        subprocess.run(words, input=source, capture_output=True, text=True, check=True, timeout=120)
        os.replace(output, path)
