"""How much memory this process may still take.

Must not know: what it is wanted for.
"""

from __future__ import annotations

from pathlib import Path


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes the kernel calls available, or less where a control group (container, batch job) sets a limit.

    Args:
        root: where proc and sys/fs/cgroup are found.

    Returns:
        None where the system tells neither.
    """
    limits = [_available(root), *(_cgroup_free(directory) for directory in _cgroups(root))]
    return min((limit for limit in limits if limit is not None), default=None)


def _available(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def _cgroups(root: Path) -> list[Path]:
    """Directories of our control groups and all of their parents, version 2 and 1."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    directories = []
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            directory = top / path.lstrip("/")
            directories += [d for d in (directory, *directory.parents) if d.is_relative_to(top)]
    return directories


def _cgroup_free(directory: Path) -> int | None:
    """Limit minus use, where files that the kernel can drop do not count as use."""
    for limit, usage, dropped in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = int((directory / limit).read_text())  # "max" means no limit
            used = int((directory / usage).read_text())
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        return max(0, most - used + int(stat.get(dropped, 0)))
    return None
