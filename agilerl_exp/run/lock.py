"""One process a directory: an exclusive lock that ends with the process that holds it.

Must not know: what the directory is for.

``flock`` on DIR/.lock, which the kernel drops at any kind of death. Where the file system has no flock:
DIR/.lock.pid, made with O_EXCL, whose holder counts as dead when this machine has no such process (same pid
and start time).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agilerl_exp.errors import JobError
from agilerl_exp.run import durable

_NO_FLOCK = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_NAME_WAIT = 0.5  # seconds a holder may need to write its name after it got the lock

# A forked env worker shares the lock's open file: it would hold the lock on after this process is killed.
_held: set[int] = set()


def _drop_in_child() -> None:
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)


class Lock:
    """Holds a directory until `release`, or until the process ends.

    Args:
        folder: an existing directory.

    Raises:
        JobError: another process holds it; the line names its pid and host.
        DiskError: the lock file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid_file: Path | None = None
        path = folder / ".lock"
        with durable.disk_errors(path, 0):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno not in _NO_FLOCK:
                raise self._refusal(path) from None
            self._take_pid_file(folder / ".lock.pid")
            return
        _held.add(self._fd)
        with suppress(OSError):  # the holder's name is for people
            os.ftruncate(self._fd, 0)
            durable.write_all(self._fd, _card())

    def release(self) -> None:
        """Give the directory back."""
        if self._pid_file is not None:
            self._pid_file.unlink(missing_ok=True)
        elif self._fd in _held:
            _held.discard(self._fd)
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)

    def _take_pid_file(self, path: Path) -> None:
        with durable.disk_errors(path, 0):
            if _dead(_read_card(path)):
                path.unlink(missing_ok=True)
            try:
                durable.write_new(path, [_card()])
            except FileExistsError:
                raise self._refusal(path) from None
            except OSError:
                path.unlink(missing_ok=True)
                raise
        self._pid_file = path

    def _refusal(self, path: Path) -> JobError:
        deadline = time.monotonic() + _NAME_WAIT
        while not (card := _read_card(path)) and time.monotonic() < deadline:
            time.sleep(0.02)
        holder = f"process {card.get('pid', 'unknown')} on {card.get('host', 'unknown')}"
        return JobError(
            f"{self._folder}: in use by {holder}; wait for it, stop it, or choose another directory"
        )


def _card() -> bytes:
    pid = os.getpid()
    return json.dumps({"pid": pid, "host": socket.gethostname(), "start": _start_time(pid)}).encode()


def _read_card(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        card = json.loads(path.read_bytes())
        if isinstance(card, dict):
            return card
    return {}


def _dead(card: dict[str, Any]) -> bool:
    return card.get("host") == socket.gethostname() and _start_time(card["pid"]) != card["start"]


def _start_time(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process: tells a reused pid from the old one (Linux only)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None
