"""File writes that survive a kill or a power cut, and one clear error when the disk says no.

Must not know: what is in the files. Every write goes through `os.write`, `os.fsync`, `os.rename` and
`os.replace` by those names, so that a test can fail each of them.

NAME is written as ``.NAME.tmp`` and renamed. A folder cannot be renamed onto another one: the older is set aside as
``.NAME.old`` for that moment. Whoever writes NAME next puts right what a kill left; there is one writer at a time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agilerl_exp.errors import DiskError

Chunk = bytes | memoryview
# Bytes handed to one write(2).
_WRITE_SIZE = 8 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


def scratch(path: Path) -> Path:
    """The name beside `path` that it is written under."""
    return path.with_name(f".{path.name}.tmp")


def set_aside(path: Path) -> Path:
    """The name of the older folder `path` while it is being replaced."""
    return path.with_name(f".{path.name}.old")


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
            tidy(path)
            write_new(new, [data])
            os.replace(new, path)
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def replace_folder(path: Path) -> None:
    """Give the complete folder `scratch(path)` its name; a kill leaves it or the older one."""
    if path.exists():
        os.rename(path, set_aside(path))
    os.rename(scratch(path), path)
    sync_folder(path.parent)
    _delete(set_aside(path))


def remove(folder: Path) -> None:
    """Remove a folder so that no kill leaves half of it under its own name."""
    os.rename(folder, scratch(folder))
    _delete(scratch(folder))


def tidy(path: Path) -> None:
    """Put right what a kill left of writing, replacing or removing `path`. For its writer only."""
    old = set_aside(path)
    if old.exists() and not path.exists():
        os.rename(old, path)
    for debris in (old, scratch(path)):
        _delete(debris)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
