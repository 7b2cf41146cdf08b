"""The real command in an empty folder: sweeps, resume, the user's own options, threads, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli import command, finish, start

SMOKE = ["experiment=smoke", "training.max_steps=200", "training.evo_steps=200", "training.eval_loop=1"]
BROKEN_ENV = """
import gymnasium
import numpy

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fail):
        self.fail, self.steps = fail, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.fail and self.steps > 20:
            raise RuntimeError("it broke")
        return numpy.ones(2, numpy.float32), 1.0, self.steps % 9 == 0, False, {}
"""
OWN_ALGORITHM = '''
from agilerl_exp.algorithms.dqn import DQN
from agilerl_exp.models.algo import register
from agilerl_exp.models.algorithms.dqn import DQNSpec

@register()
class MineSpec(DQNSpec):
    """My own."""

    power: float = 2.0
    """What mine has besides."""

class Mine(DQN):
    pass
'''
OWN_OPTION = """\
# My own algorithm
defaults:
  - /spec/algo/mine@_here_
  - _self_
  - override /env@_global_.env: acrobot

power: 3
"""


def status(job_dir: Path) -> dict:
    return json.loads((job_dir / "status.json").read_text())


def spec(job_dir: Path) -> dict:
    return json.loads((job_dir / "spec.json").read_text())


def test_a_sweep_over_buffers_population_and_exploration(tmp_path):
    result = command(
        tmp_path,
        "-m",
        "buffer=standard,per,n_step",
        "training.pop_size=1,4",
        "training.eps_decay=0.999,0.9995",
        "experiment=smoke",
    )
    assert result.returncode == 0, result.stderr
    jobs = {int(path.parent.name): path.parent for path in tmp_path.glob("multirun/*/*/*/status.json")}
    assert sorted(jobs) == list(range(12))
    for number, job in jobs.items():
        ring, members, decay = number // 4, (1, 4)[number // 2 % 2], (0.999, 0.9995)[number % 2]
        told = spec(job)["training"]
        assert status(job)["state"] == "COMPLETED"
        assert (told["pop_size"], told["eps_decay"]) == (members, decay)
        assert told["replay_buffer"]["per_buffer"] == (ring == 1)
        assert told["replay_buffer"]["n_step_buffer"] == (ring == 2)
        assert len(list((job / "checkpoints").glob("step-*"))) >= 2


def test_a_failing_job_is_told_at_once_and_loses_no_other(tmp_path):
    (tmp_path / "bugs.py").write_text(BROKEN_ENV)
    sweep = ["-m", "env=custom", "env.entrypoint=bugs.py:Broken", "env.config.fail=false,true,false"]
    result = subprocess.run(
        [sys.executable, "-m", "agilerl_exp", *sweep, *SMOKE, "hydra.sweep.dir=jobs"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # one stream: the order in which things are said is part of the test
        text=True,
    )
    assert result.returncode == 1
    assert [status(tmp_path / "jobs" / str(n))["state"] for n in range(3)] == [
        "COMPLETED",
        "FAILED",
        "COMPLETED",
    ]
    assert "it broke" in (tmp_path / "jobs/1/job.log").read_text()
    assert result.stdout.index("it broke") < result.stdout.index("#2 :")
    assert (
        "agilerl-exp: 1 of 3 jobs failed; the others are kept:\nagilerl-exp:   #1 env=custom" in result.stdout
    )


def test_a_killed_job_goes_on_with_resume_alone(tmp_path):
    job = tmp_path / "my jobs" / "one"
    settings = ["training.max_steps=2000000", "training.checkpoint_steps=200", "algo.learn_step=64"]
    process = start(tmp_path, "buffer=per", *SMOKE, *settings, "hydra.run.dir='my jobs/one'")
    deadline = time.monotonic() + 120
    while len(list(job.glob("checkpoints/step-*/manifest.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    killed_at = max(int(path.name[5:]) for path in job.glob("checkpoints/step-*") if path.name[5:].isdigit())
    assert status(job)["state"] == "RUNNING"

    refused = command(tmp_path, "resume='my jobs/one'", "buffer=standard")
    assert refused.returncode == 2
    assert "training.replay_buffer.per_buffer: true -> false" in refused.stderr

    shorter = [f"training.max_steps={killed_at + 400}", "resume_allow=[training.max_steps]"]
    finished = command(tmp_path, "resume='my jobs/one'", *shorter)
    assert finished.returncode == 0, finished.stderr
    assert status(job)["state"] == "COMPLETED"
    assert spec(job)["training"]["replay_buffer"]["per_buffer"]

    again = command(tmp_path, "resume='my jobs/one'")
    assert again.returncode == 0
    assert "already complete" in again.stdout + again.stderr


def test_an_interrupt_saves_and_leaves_quietly(tmp_path):
    process = start(tmp_path, *SMOKE, "training.max_steps=2000000", "hydra.run.dir=job")
    deadline = time.monotonic() + 120
    while not (tmp_path / "job/metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    result = finish(process, timeout=60)
    assert result.returncode == 130
    assert "Traceback" not in result.stderr
    assert status(tmp_path / "job")["state"] == "INTERRUPTED"
    assert list(tmp_path.glob("job/checkpoints/step-*/manifest.json"))


def test_a_refused_start_leaves_the_job_that_runs_alone(tmp_path):
    job = tmp_path / "job"
    long = [*SMOKE, "training.max_steps=2000000", "hydra.run.dir=job"]
    process = start(tmp_path, *long)
    deadline = time.monotonic() + 120
    while not (job / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for more, said in ((long, f"in use by process {process.pid}"), ([*long, "algo.gamma=2"], "algo.gamma=2")):
        second = command(tmp_path, *more)
        assert second.returncode == 2 and said in second.stderr
        assert len(second.stderr.splitlines()) == 1
    process.kill()
    process.communicate()
    assert not (job / "job.log").exists() and status(job)["pid"] == process.pid


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_ALGORITHM)
    for folder in ("conf", "other"):
        (tmp_path / folder / "algo").mkdir(parents=True)
    (tmp_path / "conf/algo/mine.yaml").write_text(OWN_OPTION)
    (tmp_path / "conf/algo/dqn.yaml").write_text("lr: 7\n")
    (tmp_path / "other/algo/other.yaml").write_text(OWN_OPTION.replace("power: 3", "power: 4"))
    return tmp_path


def test_an_algorithm_of_the_user(own):
    result = command(own, "plugins=[mine.py]", "algo=mine", *SMOKE, "hydra.run.dir=job")
    assert result.returncode == 0, result.stderr
    told = spec(own / "job")
    assert (told["algo"]["name"], told["algo"]["power"], told["env"]["id"]) == ("Mine", 3.0, "Acrobot-v1")


def test_options_of_the_user_add_and_never_shadow(own):
    ours = command(own, "--cfg", "job", "-p", "algo")
    assert re.search(r"^lr: 0.001$", ours.stdout, re.M)
    other = command(own, "--config-dir", "other", "plugins=[mine.py]", "algo=other", "--cfg", "job")
    assert "power: 4" in other.stdout, other.stderr
    alone = command(own, "algo=mine")
    assert alone.returncode == 2
    assert alone.stderr == (
        "agilerl-exp: In 'algo/mine': Could not load 'spec/algo/mine' (have: spec/algo/dqn); "
        "is the file that defines it missing from plugins=[FILE]?\n"
    )
    missing = command(own, "plugins=[mine.py]", "algo=minee")
    assert "did you mean algo=mine? (have: dqn, mine)" in missing.stderr
    helped = command(own, "plugins=[mine.py]", "algo=mine", "--help")
    assert re.search(r"mine\* +My own algorithm", helped.stdout)
    assert re.search(r"algo.power=3 +What mine has besides.", helped.stdout)


def test_a_local_overlay_sets_values_and_plugins(own):
    (own / "conf/local").mkdir()
    (own / "conf/local/default.yaml").write_text("# @package _global_\nplugins: [mine.py]\nseed: 11\n")
    result = command(own, "algo=mine", "algo.power=5", "--cfg", "job")
    assert result.returncode == 0, result.stderr
    assert "seed: 11" in result.stdout and "power: 5" in result.stdout


def test_starts_of_one_moment_share_no_folder(tmp_path):
    processes = [start(tmp_path, *SMOKE, f"seed={seed}") for seed in range(4)]
    results = [finish(process) for process in processes]
    assert [result.returncode for result in results] == [0] * 4, results
    jobs = [path.parent for path in tmp_path.glob("outputs/*/*/spec.json")]
    assert sorted(spec(job)["seed"] for job in jobs) == [0, 1, 2, 3]


def test_one_thread_unless_more_are_asked_for(tmp_path):
    (tmp_path / "watch.py").write_text(
        "import atexit, os, sys\n"
        "def say():\n"
        "    print('threads', sys.modules['torch'].get_num_threads(), os.environ['OMP_NUM_THREADS'])\n"
        "atexit.register(say)\n"
    )
    run = ["plugins=[watch.py]", *SMOKE]
    assert "threads 1 1" in command(tmp_path, *run).stdout
    assert "threads 2 2" in command(tmp_path, *run, "threads=2").stdout
    assert "threads 2 2" in command(tmp_path, *run, OMP_NUM_THREADS="2").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "buffer=standard,per"),
        (["--cfg", "job", "--resolve", "buffer=per"], "per_buffer: true"),
        (["--info", "defaults"], "training/exploration"),
        (["training.population_size=3", "--cfg", "job"], "pop_size: 3"),
        (["training.replay_buffer.memory_size=3000", "--cfg", "job"], "max_size: 3000"),
        (["env.config.size=5", "--cfg", "job"], "size: 5"),
    ],
)
def test_questions_are_answered(tmp_path, arguments, expected):
    result = command(tmp_path, *arguments)
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout
    assert not os.listdir(tmp_path)
