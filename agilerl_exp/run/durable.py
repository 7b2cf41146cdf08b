"""File writes that survive a kill or a power cut, and one clear error when the disk says no.

Must not know: what is in the files. Every write goes through `os.write`, `os.fsync`, `os.rename` and
`os.replace` by those names, so that a test can fail each of them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agilerl_exp.errors import DiskError

Chunk = bytes | memoryview
# Bytes handed to one write(2).
_WRITE_SIZE = 8 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SCRATCH = re.compile(r".+\.(tmp|old)-\d+")


@contextmanager
def disk_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn any OSError into a DiskError that names the path and the cure; where room is short, how much."""
    try:
        yield
    except OSError as error:
        why, cure = error.strerror or str(error), "make it writable, or choose another place"
        if error.errno in _NO_ROOM:
            why += f" ({needed} bytes needed, {_available(path)} available)"
            cure = "make room and run the same command again"
        raise DiskError(
            f"cannot write {error.filename or path}: {why}; {cure}; the last good checkpoint is intact"
        ) from error


def _available(path: Path) -> str:
    for folder in (path, *path.parents):
        with suppress(OSError):
            return str(shutil.disk_usage(folder).free)
    return "unknown"


def scratch(path: Path, kind: str = "tmp") -> Path:
    """The name beside `path` that this process may write under: `NAME.tmp-PID` or `NAME.old-PID`."""
    return path.with_name(f"{path.name}.{kind}-{os.getpid()}")


def write_new(path: Path, chunks: Iterable[Chunk]) -> tuple[int, str]:
    """Write a file that must not exist yet and force it to the disk. Returns (bytes, sha256)."""
    digest = hashlib.sha256()
    size = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            write_all(fd, chunk)
        os.fsync(fd)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)
    return size, digest.hexdigest()


def write_all(fd: int, chunk: Chunk) -> None:
    """`os.write` until everything is written."""
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view[:_WRITE_SIZE]) :]


def replace_file(path: Path, data: bytes) -> None:
    """Replace a small file in one step: a kill at any moment leaves the old bytes or the new ones.

    Raises:
        DiskError: the write failed; the old file is as it was.
    """
    new = scratch(path)
    with disk_errors(path, len(data)):
        try:
            sweep(path.parent, re.escape(path.name))
            write_new(new, [data])
            os.replace(new, path)
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def replace_folder(new: Path, path: Path) -> None:
    """Give the complete folder `new` the name `path`, setting an older folder of that name aside first.

    A kill between the two renames leaves `NAME.old-PID`, which `recover` puts back.
    """
    old = scratch(path, "old")
    while True:
        try:
            os.rename(new, path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        remove(old)
        os.rename(path, old)
    sync_folder(path.parent)
    remove(old)


def remove(path: Path) -> None:
    """Remove a folder so that no kill leaves half of it under its own name."""
    if not path.exists():
        return
    if not _SCRATCH.fullmatch(path.name):
        aside = scratch(path)
        remove(aside)
        os.rename(path, aside)
        path = aside
    shutil.rmtree(path)


def recover(folder: Path, names: str) -> None:
    """Put back what a killed `replace_folder` had set aside. For the owner of `folder` only."""
    for path, match in _scratches(folder, names, "old"):
        target = folder / match["name"]
        if not target.exists():
            os.rename(path, target)


def sweep(folder: Path, names: str) -> None:
    """Remove what dead processes left of the files and folders whose names match. For their owner only."""
    recover(folder, names)
    for path, _ in _scratches(folder, names, "old"):
        remove(path)
    for path, match in _scratches(folder, names, "tmp"):
        if alive(int(match["pid"])) and int(match["pid"]) != os.getpid():
            continue
        if path.is_dir() and not path.is_symlink():
            remove(path)
        else:
            path.unlink()


def _scratches(folder: Path, names: str, kind: str) -> list[tuple[Path, re.Match[str]]]:
    if not folder.is_dir():
        return []
    pattern = re.compile(rf"(?P<name>{names})\.{kind}-(?P<pid>\d+)")
    found = ((path, pattern.fullmatch(path.name)) for path in sorted(folder.iterdir()))
    return [(path, match) for path, match in found if match]


def alive(pid: int) -> bool:
    """Whether a process of this machine has that number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk; file systems that have no such call are left alone."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)
