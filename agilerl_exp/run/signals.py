"""Signals: a handler only sets a flag; the loop saves at its next step boundary and then asks what to do.

Must not know: what saving means.

    signal       outside SLURM                  in a SLURM job (SLURM_JOB_ID is set)
    TERM, HUP    save, exit 143 (HUP: 129)      save, go on
    INT          save, exit 130                 save, exit 130
    USR1         save, go on                    save, go on
    USR2         save, requeue                  save, requeue

A SLURM job that exits in the grace time after TERM is never requeued; one that works on is. Requeue: the
handler found at the start (submitit's) is called after the save; without one, exit 143. A second signal that
leads to an exit exits at once. A signal that was ignored at the start (nohup) stays ignored.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

_LEAVE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_STAY = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Context manager around a loop.

    At each step boundary: ``if signals.pending: save(); signals.obey()``. Handlers are installed in the main
    thread only.

    Attributes:
        pending: a signal asks for a save.
    """

    def __init__(self) -> None:
        self.pending = False
        self._exit: int | None = None
        self._requeue = False
        self._slurm = "SLURM_JOB_ID" in os.environ
        self._pid = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (*_LEAVE, *_STAY):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        """Put the handlers back that were found."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def obey(self) -> None:
        """After a save: go on, leave, or hand over to the handler that requeues.

        Raises:
            SystemExit: 128 + the signal's number.
        """
        requeue, self._requeue, self.pending = self._requeue, False, False
        if requeue:
            before = self._before.get(signal.SIGUSR2)
            if not callable(before):
                raise SystemExit(128 + signal.SIGTERM)
            before(signal.SIGUSR2, None)
        if self._exit is not None:
            raise SystemExit(self._exit)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._handle_in_child(number)
            return
        if number in _LEAVE and not (self._slurm and number != signal.SIGINT):
            if self._exit is not None:
                _leave_at_once(self._exit)
            self._exit = 128 + number
        self._requeue |= number == signal.SIGUSR2
        self.pending = True

    def _handle_in_child(self, number: int) -> None:
        """A forked worker inherits this handler: TERM must still end it, other signals are not for it.

        Ctrl-C and SLURM reach every process of the group; the run needs its workers until it has saved.
        """
        if number == signal.SIGTERM and not self._slurm:
            os._exit(128 + number)


def _leave_at_once(code: int) -> None:
    for child in multiprocessing.active_children():
        with suppress(OSError):
            child.kill()
    os._exit(code)
