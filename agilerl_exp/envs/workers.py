"""The worker processes of an asynchronous vector environment: how they start, fail and end.

Must not know: how an environment is built, what an observation means.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing import util
from multiprocessing.process import BaseProcess

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from agilerl_exp.envs.observations import in_words, misfit
from agilerl_exp.errors import EnvError

_PR_SET_PDEATHSIG = 1
_GRACE_S = 5.0
_BATCHING = re.compile(r", in _(concatenate|write)_")  # where gymnasium puts observations into one array
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Workers(AsyncVectorEnv):
    """gymnasium's AsyncVectorEnv in SAME_STEP mode; failures name their cause and leave no process behind.

    The processes are forked, so that a class from a file needs no import path.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        """Start one worker a function; nothing stays behind when one of them fails."""
        tied = threading.current_thread() is threading.main_thread()
        settled = [partial(_settled, make, os.getpid(), tied) for make in env_fns]
        try:
            super().__init__(settled, copy=False, context="fork", autoreset_mode=AutoresetMode.SAME_STEP)
        except BaseException:
            kill(getattr(self, "processes", []))
            raise
        # multiprocessing joins its daemons at exit, and ours ignore its SIGTERM: end them before that
        util.Finalize(self, kill, args=(self.processes,), exitpriority=10)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let the workers close their environments for `timeout` seconds (5), then kill the others."""
        for pipe in self.parent_pipes:
            with contextlib.suppress(OSError, ValueError):
                pipe.send(("close", None))
        deadline = time.monotonic() + (0.0 if terminate else _GRACE_S if timeout is None else timeout)
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        kill(self.processes)
        for pipe in self.parent_pipes:
            pipe.close()
        self.error_queue.close()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise what the first of the failed workers said, first by its number and not by time.

        Replaces gymnasium's method, which formats the traceback with `%` and fails on one that holds a `%`.
        """
        failed = [index for index, success in enumerate(successes) if not success]
        if not failed:
            return
        try:
            said = [self.error_queue.get(timeout=_GRACE_S) for _ in failed]
        except queue.Empty:
            raise EnvError(f"env {failed[0]}: its worker failed and could not say why") from None
        index, kind, value, trace = min(said, key=lambda report: report[0])
        if issubclass(kind, EnvError):
            raise EnvError(str(value))
        if _BATCHING.search(trace):
            space = in_words(self.single_observation_space)
            raise EnvError(f"env {index}: an observation does not fit {space}: {kind.__name__}: {value}")
        raise EnvError(f"env {index}: {kind.__name__}: {value}\n{trace}")


def _settled(make: Callable[[], gym.Env], parent: int, tied: bool) -> gym.Env:
    """Build the environment; first, in a worker: end with the parent, and leave signals to it.

    A signal to the process group, or SLURM's to every process of a job, must not end a worker under a parent
    that saves and works on; workers end by the close command, with the parent, or by SIGKILL.

    Args:
        make: builds the environment.
        parent: process id of the parent, which builds one environment too.
        tied: let the kernel kill this process when the thread that forked it ends; without it (that thread
            may end before its process) the worker still ends when its pipe closes.
    """
    if os.getpid() != parent:
        for name in _IGNORED:
            signal.signal(name, signal.SIG_IGN)
        if tied:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the call above
                os._exit(1)
    return make()


def diagnose(env: VectorEnv, error: Exception, member: int) -> EnvError:
    """What a vector environment raised, as an EnvError with member, copy and cause; ends its workers."""
    base = env.unwrapped
    if isinstance(error, EnvError):
        text = str(error)
    elif isinstance(base, AsyncVectorEnv) and isinstance(error, EOFError | OSError):
        text = _obituary(base.processes)
    else:
        trace = "".join(traceback.format_exception(error)).rstrip()
        text = f"{type(error).__name__}: {error}\n{trace}"
        if isinstance(base, SyncVectorEnv) and _BATCHING.search(trace):
            told = [misfit(base.single_observation_space, obs) for obs in base._env_obs]
            text = next((f"env {row}: {words}" for row, words in enumerate(told) if words), text)
    if isinstance(base, AsyncVectorEnv):
        kill(base.processes)  # a dead or half-answered one cannot be closed in the usual way
        base.closed = True
    if text.startswith("member "):
        return EnvError(text)
    return EnvError(f"member {member}{', ' if text.startswith('env ') else ': '}{text}")


def _obituary(processes: Sequence[BaseProcess]) -> str:
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        codes = enumerate(process.exitcode for process in processes)
        dead = [f"env {i}: its worker died with exit code {code}" for i, code in codes if code is not None]
        if dead:
            return ", ".join(dead)
        time.sleep(0.01)
    return "a worker closed its pipe and lives on"


def shut_down(env: VectorEnv) -> None:
    """Close a vector environment, whatever state its workers are in. Safe to call twice."""
    base = env.unwrapped
    try:
        env.close()
    except Exception:
        if not isinstance(base, AsyncVectorEnv):
            raise
        kill(base.processes)
        base.closed = True


def kill(processes: Sequence[BaseProcess]) -> None:
    """End processes at once and wait until they are gone."""
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
    for process in alive:
        process.join()
