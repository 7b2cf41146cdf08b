"""The resume law: a run killed with SIGKILL at any moment and resumed writes the uninterrupted run's bytes."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.training.run import run

RINGS = {
    "standard": {},
    "n_step": {"n_step_buffer": True},
    "per": {"per_buffer": True},
    "per_n_step": {"per_buffer": True, "n_step_buffer": True},
}


def spec_of(ring, env="CartPole-v1", **training):
    return ExperimentSpec.from_config(
        {
            "algo": {
                "name": "DQN",
                "lr": 1e-3,
                "lr_schedule": "linear",
                "batch_size": 32,
                "learn_step": 4,
                "double": True,
                "normalize_obs": True,
                "net_config": {"hidden_size": [16, 16]},
            },
            "env": {"id": env, "num_envs": 4},
            "training": {
                "max_steps": 1500,
                "evo_steps": 500,
                "checkpoint_steps": 150,
                "pop_size": 4,
                "learning_delay": 100,
                "reporting_interval": 200,
                "eval_loop": 2,
                "eval_steps": 60,
                "replay_buffer": {"max_size": 1000, **RINGS[ring]},
                **training,
            },
            "seed": 3,
        }
    )


def child(spec, job_dir):
    torch.set_num_threads(1)
    with open(os.devnull, "w") as sink:
        os.dup2(sink.fileno(), 2)
        run(spec, job_dir)


def attempt(spec, job_dir, seconds=None):
    """Run in a forked child; with `seconds`, SIGKILL it then. Returns (exit code, seconds it ran)."""
    process = multiprocessing.get_context("fork").Process(target=child, args=(spec, job_dir))
    start = time.monotonic()
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode, time.monotonic() - start


def evolving(**training):
    """Eight members, mutations of all kinds, five generations, saved in the middle of them too."""
    spec = spec_of("per_n_step", pop_size=8, max_steps=1000, evo_steps=200, **training)
    kinds = {"no_mut": 0.1, "arch": 1, "new_layer": 0.5, "params": 1, "activation": 1, "rl_hp": 1}
    evolution = {"name": "tournament", "probabilities": kinds, "init": "sample", "pretrain_mutation": True}
    return ExperimentSpec.from_config({**spec.to_config(), "evolution": evolution})


def everything(job_dir: Path) -> dict[str, bytes]:
    """All bytes under the law; a manifest repeats their hashes and says what machine it was."""
    names = [
        job_dir / "metrics.jsonl",
        job_dir / "lineage.jsonl",
        *sorted((job_dir / "checkpoints").rglob("*")),
    ]
    files = [p for p in names if p.is_file() and p.name != "manifest.json"]
    return {str(p.relative_to(job_dir)): p.read_bytes() for p in files}


def check(spec, tmp_path, kills, seed):
    """Kill runs `kills` times in all, each resumed until it ends, and compare every one that ended."""
    code, seconds = attempt(spec, tmp_path / "whole")
    assert code == 0
    whole = everything(tmp_path / "whole")
    assert any(name.endswith("buffer.safetensors") for name in whole)
    rng, done, run_number = np.random.default_rng(seed), 0, 0
    while True:
        folder = tmp_path / f"killed-{run_number}"
        last = done == kills
        code, _ = attempt(spec, folder, None if last else rng.uniform(0.02, 0.6) * seconds)
        if code == -signal.SIGKILL:
            done += 1
            continue
        assert code == 0
        killed = everything(folder)
        assert whole.keys() == killed.keys()
        assert [name for name in whole if whole[name] != killed[name]] == []
        if last:
            return
        run_number += 1


@pytest.mark.parametrize("ring", RINGS)
def test_killed_runs_end_in_the_same_bytes(ring, tmp_path):
    check(spec_of(ring), tmp_path, 2, seed=list(RINGS).index(ring))


def test_box2d_which_cannot_be_pickled_resumes_in_mid_episode(tmp_path):
    pytest.importorskip("Box2D")
    check(spec_of("per_n_step", "LunarLander-v3", max_steps=600, evo_steps=300), tmp_path, 2, seed=9)


@pytest.mark.parametrize("shared", [False, True])
def test_killed_evolution_ends_in_the_same_bytes(shared, tmp_path):
    check(evolving(experience_sharing=shared), tmp_path, 2, seed=20 + shared)
    births = [json.loads(line) for line in (tmp_path / "whole" / "lineage.jsonl").read_text().splitlines()]
    assert {birth["kind"] for birth in births} >= {"founder", "arch", "params", "activation", "rl_hp"}
    assert {birth["generation"] for birth in births} == {
        0,
        1,
        2,
        3,
        4,
    }  # nobody is born after the last evaluation


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_ten_kills_of_an_evolution(shared, tmp_path):
    check(evolving(experience_sharing=shared), tmp_path, 10, seed=30 + shared)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "LunarLander-v3"])
@pytest.mark.parametrize("ring", RINGS)
def test_twenty_kills(ring, env, tmp_path):
    check(spec_of(ring, env), tmp_path, 20, seed=100 + list(RINGS).index(ring))


def test_two_runs_of_one_seed_are_equal_and_another_seed_is_not(tmp_path):
    spec = spec_of("standard")
    for name in ("a", "b"):
        assert attempt(spec, tmp_path / name)[0] == 0
    other = spec.model_copy(update={"seed": 4})
    assert attempt(other, tmp_path / "c")[0] == 0
    a, b, c = (everything(tmp_path / name) for name in "abc")
    assert a == b
    assert a["metrics.jsonl"] != c["metrics.jsonl"]
