"""Signals, with real processes: what is saved, how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agilerl_exp.run.signals import Signals


@pytest.fixture(autouse=True)
def _hangup_as_usual():
    """Under nohup these tests and their children would start with HUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


LOOP = """
import os, signal, sys, time
from agilerl_exp.run.signals import Signals
mode = sys.argv[1]
if mode == "submitit":
    def requeue(number, frame):
        print("requeue", number, flush=True)
        raise SystemExit(255)
    signal.signal(signal.SIGUSR2, requeue)
if mode == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Signals() as signals:
    child = 0
    if mode == "worker" and not (child := os.fork()):
        time.sleep(60)
        os._exit(7)
    print("ready", child, flush=True)
    while True:
        if mode == "busy":
            time.sleep(1e6)  # a step that never ends
        time.sleep(0.01)
        if signals.pending:
            print("saved", flush=True)
            if mode == "slow save":
                print("saving", flush=True)
                sys.stdin.readline()
            signals.obey()
            print("on", flush=True)
"""


class Loop:
    def __init__(self, mode: str, slurm: bool) -> None:
        env = {k: v for k, v in os.environ.items() if k != "SLURM_JOB_ID"} | (
            {"SLURM_JOB_ID": "1"} if slurm else {}
        )
        command = [sys.executable, "-c", LOOP, mode]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stdin=pipe, text=True, env=env)
        self.child = int(self.read().split()[1])

    def read(self) -> str:
        return self.process.stdout.readline().strip()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(5)


@contextmanager
def loop(mode: str = "plain", slurm: bool = False) -> Iterator[Loop]:
    running = Loop(mode, slurm)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        running.process.stdin.close()
        running.process.stdout.close()


@pytest.mark.parametrize(
    ("number", "slurm", "code"),
    [
        (signal.SIGTERM, False, 143),
        (signal.SIGINT, False, 130),
        (signal.SIGHUP, False, 129),
        (signal.SIGUSR2, False, 143),
        (signal.SIGINT, True, 130),
        (signal.SIGUSR2, True, 143),
    ],
)
def test_saves_then_leaves(number, slurm, code):
    with loop(slurm=slurm) as run:
        run.send(number)
        assert run.read() == "saved"
        assert run.end() == code


@pytest.mark.parametrize(
    ("number", "slurm"),
    [(signal.SIGUSR1, False), (signal.SIGUSR1, True), (signal.SIGTERM, True), (signal.SIGHUP, True)],
)
def test_saves_then_goes_on(number, slurm):
    with loop(slurm=slurm) as run:
        for _ in range(2):
            run.send(number)
            assert [run.read(), run.read()] == ["saved", "on"]
        assert run.process.poll() is None


@pytest.mark.parametrize("slurm", [False, True])
def test_usr2_saves_then_calls_the_handler_that_was_there(slurm):
    with loop("submitit", slurm) as run:
        run.send(signal.SIGUSR2)
        assert [run.read(), run.read()] == ["saved", f"requeue {int(signal.SIGUSR2)}"]
        assert run.end() == 255


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)]
)
def test_a_second_signal_leaves_at_once(first, second):
    with loop("slow save") as run:
        run.send(first)
        assert [run.read(), run.read()] == ["saved", "saving"]
        run.send(second)
        assert run.end() == 128 + first


def test_a_signal_during_a_save_is_obeyed_after_it():
    with loop("slow save") as run:
        run.send(signal.SIGUSR1)
        assert [run.read(), run.read()] == ["saved", "saving"]
        run.send(signal.SIGTERM)
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        assert run.end() == 143


def test_an_ignored_signal_stays_ignored():
    with loop("nohup") as run:
        run.send(signal.SIGHUP)
        run.send(signal.SIGUSR1)
        assert [run.read(), run.read()] == ["saved", "on"]


def test_a_forked_worker_outlives_ctrl_c_and_dies_by_term():
    with loop("worker") as run:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(run.child, number)
        os.kill(run.child, 0)
        run.send(signal.SIGUSR1)
        assert [run.read(), run.read()] == ["saved", "on"]
        assert run.process.poll() is None
        os.kill(run.child, signal.SIGTERM)
        assert wait_for_zombie(run.child)


def test_under_slurm_a_forked_worker_outlives_term_too():
    with loop("worker", slurm=True) as run:
        os.kill(run.child, signal.SIGTERM)
        run.send(signal.SIGTERM)
        assert [run.read(), run.read()] == ["saved", "on"]
        assert not wait_for_zombie(run.child, seconds=0.2)
        os.kill(run.child, signal.SIGKILL)


def wait_for_zombie(pid: int, seconds: float = 3) -> bool:
    import time

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.02)
    return False


def test_handlers_are_put_back():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(n) for n in numbers]
    with Signals() as signals:
        assert all(signal.getsignal(n) != b for n, b in zip(numbers, before, strict=True))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.pending
        signals.obey()
        assert not signals.pending
    assert [signal.getsignal(n) for n in numbers] == before


def test_outside_the_main_thread_nothing_is_installed():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with Signals() as signals:
            seen.append(signal.getsignal(signal.SIGTERM))
            signals.obey()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
