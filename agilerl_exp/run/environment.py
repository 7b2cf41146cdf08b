"""What byte-exact resume depends on besides the state: versions, threads, CPU type.

Must not know: what is done about a difference.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_PACKAGES = ("agilerl-exp", "torch", "numpy", "gymnasium", "safetensors")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def environment() -> dict[str, Any]:
    """This process: `versions` and `threads` by name, and the `cpu`."""
    torch = sys.modules.get("torch")
    threads = {name: os.environ.get(name) for name in _THREADS}
    return {
        "versions": _versions(),
        "threads": {"torch": torch.get_num_threads() if torch is not None else None, **threads},
        "cpu": _cpu_type(),
    }


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


@functools.cache
def _cpu_type() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def environment_changes(manifest: Mapping[str, Any]) -> list[str]:
    """One line for each thing that differs from where it was made: resume is then not byte-exact."""
    was, now = _flat(manifest), _flat(environment())
    names = sorted(was.keys() | now.keys())
    return [f"{name} {was.get(name)} -> {now.get(name)}" for name in names if was.get(name) != now.get(name)]


def _flat(made_by: Mapping[str, Any]) -> dict[str, Any]:
    threads = {f"threads of {name}": number for name, number in made_by["threads"].items()}
    return {**made_by["versions"], **threads, "cpu": repr(made_by["cpu"])}
