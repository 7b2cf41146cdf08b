"""A disk that fails, or a process that dies, at the k-th file operation.

`os.fsync` only counts here: what it orders shows after a power cut, which no test of one machine can make.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

OPERATIONS = ("write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate")


class Counter:
    """Counts file operations; the k-th one (from 1) calls `fault(name)` before it happens."""

    def __init__(self, k: int, fault: Callable[[str], None]) -> None:
        self.k, self.fault, self.calls = k, fault, 0

    def tick(self, name: str) -> bool:
        self.calls += 1
        return self.calls == self.k

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            if self.tick(name):
                if name == "write" and len(args[1]) > 1:
                    real(args[0], args[1][: len(args[1]) // 2])  # a write breaks off in the middle
                self.fault(name)
            return None if name == "fsync" else real(*args, **kwargs)

        return operation


@contextmanager
def failing(k: int, number: int) -> Iterator[Counter]:
    """Within the block the k-th file operation raises OSError(number)."""

    def fault(name: str) -> None:
        names = () if name in ("write", "fsync", "ftruncate") else (f"<{name}>",)  # those know no path
        raise OSError(number, os.strerror(number), *names)

    counter = Counter(k, fault)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, counter.wrap(name, getattr(os, name)))
        yield counter


def killed(k: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that is killed (SIGKILL) at its k-th file operation; False: it ended before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            counter = Counter(k, lambda _: os.kill(os.getpid(), signal.SIGKILL))
            for name in OPERATIONS:
                setattr(os, name, counter.wrap(name, getattr(os, name)))
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return os.WIFSIGNALED(status)
