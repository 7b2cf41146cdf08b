"""Worker processes fail with their own words and never outlive their parent."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import probe_envs
import psutil
import pytest
from gymnasium.vector import AsyncVectorEnv

from agilerl_exp.envs import MemberEnvs, make_member_envs
from agilerl_exp.errors import EnvError
from agilerl_exp.models.env import EnvSpec

TESTS = Path(__file__).parents[1]


def make(**config) -> MemberEnvs:
    return make_member_envs(
        EnvSpec(id="probe/Breaks-v0", config=config, vectorization="async"), [1, 2, 3], member=4
    )


def run_until_it_breaks(envs: MemberEnvs) -> str:
    began = time.monotonic()
    envs.reset()
    with pytest.raises(EnvError) as caught:
        for _ in range(20):
            envs.step(np.zeros(envs.num_envs, int))
    assert time.monotonic() - began < 15
    return str(caught.value)


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.02)
    return False


def test_an_exception_in_a_worker_comes_with_its_traceback() -> None:
    text = run_until_it_breaks(make(how="raise"))
    assert text.startswith("member 4, env 0: step() raised RuntimeError: 100% probe: boom\n")
    assert "Traceback" in text and "probe_envs.py" in text
    assert psutil.Process().children() == []


def test_an_exception_in_this_process_reads_the_same() -> None:
    spec = EnvSpec(id="probe/Breaks-v0", vectorization="sync")
    text = run_until_it_breaks(make_member_envs(spec, [1, 2], member=1))
    assert text.startswith("member 1, env 0: step() raised RuntimeError: 100% probe: boom\nTraceback")


def test_a_worker_that_dies_is_named_with_its_exit_code() -> None:
    text = run_until_it_breaks(make(how="exit"))
    assert re.match(r"member 4, env \d: its worker died with exit code 17", text)  # all three die at once
    assert psutil.Process().children() == []


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_plain_gymnasium_async_env_is_cleaned_up_too(how: str) -> None:
    envs = MemberEnvs(AsyncVectorEnv([lambda: probe_envs.Breaks(how=how)] * 2), member=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium tells the error in a warning of its own
        text = run_until_it_breaks(envs)
    assert text.startswith("member 4") and ("exit code 17" in text or how == "raise")
    assert psutil.Process().children() == []


def test_a_killed_worker_is_found_and_close_still_works() -> None:
    envs = make(n=1000)
    envs.reset()
    victim = envs._env.processes[1]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match="member 4, env 1: its worker died with exit code -9"):
        for _ in range(3):
            envs.step(np.zeros(3, int))
    envs.close()
    envs.close()
    assert psutil.Process().children() == []


def test_workers_leave_signals_to_their_parent() -> None:
    envs = make(n=1000)
    envs.reset()
    for process in envs._env.processes:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            os.kill(process.pid, number)
    time.sleep(0.1)
    assert envs.step(np.zeros(3, int)).valid.all()
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 3 and psutil.Process().children() == []


def test_workers_made_in_a_thread_outlive_it() -> None:
    made: list[MemberEnvs] = []
    thread = threading.Thread(target=lambda: made.append(make(n=1000)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    made[0].reset()
    assert made[0].step(np.zeros(3, int)).valid.all()
    made[0].close()


PARENT = """
import sys, time
import numpy as np
import probe_envs
from agilerl_exp.envs import make_member_envs
from agilerl_exp.models.env import EnvSpec
members = [make_member_envs(EnvSpec(id="probe/Steps-v0", vectorization="async"), [1, 2, 3]) for _ in range(2)]
members[0].reset()
print(*[p.pid for m in members for p in m._env.processes], flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


def parent(how: str) -> tuple[subprocess.Popen, list[int]]:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True, env=environment
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


def test_no_worker_outlives_a_killed_parent() -> None:
    process, workers = parent("wait")
    assert len(workers) == 6
    process.kill()
    process.wait(10)
    assert gone(workers)


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 3)])
def test_a_parent_that_forgets_to_close_still_ends(how: str, code: int) -> None:
    process, workers = parent(how)
    assert process.wait(20) == code
    assert gone(workers)
