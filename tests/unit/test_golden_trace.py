"""200 env steps of DQN with each ring, held against committed numbers: a refactoring must change none of them.

The bits depend on the machine, so that the hash of all weights is compared only where everything that rounds is the
same as on the machine that recorded it. The summary (what was done, and some numbers to 1e-4) is compared everywhere
and for every engine. After a change that is meant to change the numbers, `python tests/unit/test_golden_trace.py`
records anew; say in the commit why they changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.population import native
from agilerl_exp.training.off_policy import OffPolicy
from agilerl_exp.training.run import build_loop

FILE = Path(__file__).resolve().parents[1] / "golden/dqn.json"
ENGINES = ["native", "stacked", "autograd"]
RINGS: dict[str, dict[str, Any]] = {
    "standard": {},
    "n_step": {"n_step_buffer": True},
    "per": {"per_buffer": True},
    "per_n_step": {"per_buffer": True, "n_step_buffer": True},
}
PROBES = np.array([[[0.0, 0.0, 0.0, 0.0], [0.1, -0.5, 0.05, 0.4], [-1.0, 1.0, -0.1, -1.0]]], np.float32)


@functools.cache
def machine() -> dict[str, str]:
    """What decides the bits besides the program."""
    cpu = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
        cpu += next((line for line in lines if line.startswith("model name")), "") + flags
    except (OSError, StopIteration):
        pass
    try:
        compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout.partition("\n")[
            0
        ]
    except OSError:
        compiler = "none"
    return {
        "cpu": hashlib.sha256(cpu.encode()).hexdigest(),
        "compiler": compiler,
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def trace(ring: str, engine: str) -> OffPolicy:
    """Train two members for 200 env steps."""
    spec = ExperimentSpec.from_config(
        {
            "algo": {
                "name": "DQN",
                "lr": 3e-3,
                "lr_schedule": "linear",
                "batch_size": 16,
                "learn_step": 3,
                "tau": 0.05,
                "double": True,
                "loss": "huber",
                "max_grad_norm": 5.0,
                "normalize_obs": True,
                "net_config": {"hidden_size": [16, 16], "init": "orthogonal"},
            },
            "env": {"id": "CartPole-v1", "num_envs": 4},
            "training": {
                "max_steps": 200,
                "evo_steps": 100,
                "pop_size": 2,
                "hpo": False,
                "learning_delay": 32,
                "eval_loop": 2,
                "eps_schedule": "linear",
                "replay_buffer": {"max_size": 120, **RINGS[ring]},
            },
            "seed": 11,
        }
    )
    loop = build_loop(spec)
    (cohort,) = loop.population.cohorts
    cohort.engine = engine
    loop.run()
    loop.envs.close()
    return loop


def weights_hash(loop: OffPolicy) -> str:
    digest = hashlib.sha256()
    for agent in loop.population.agents:
        for name, array in sorted(agent.state_dict()["bank"].items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def summary(loop: OffPolicy) -> dict[str, Any]:
    """What was done (exact), and what came out (to be compared with a tolerance)."""
    (cohort,) = loop.population.cohorts
    meters = [loop.meter.take(member) for member in range(2)]
    stats = cohort.stats
    assert stats is not None
    return {
        "done": {
            "env_step": loop.env_step.tolist(),
            "update_step": cohort.update_step.tolist(),
            "rows": loop.buffer.sizes.tolist(),
            "episodes": [meter["episodes"] for meter in meters],
            "score": [meter["score"] for meter in meters],
            "counters": loop.streams.state_dict()["counters"],
        },
        "numbers": {
            "loss": [meter["loss"] for meter in meters],
            "q": cohort.outputs("q", np.repeat(PROBES, 2, axis=0)).ravel().tolist(),
            "mean": stats.mean.ravel().tolist(),
            "norms": [
                float(getattr(cohort.bank, role)[row].norm())
                for role in ("weights", "target", "moment1", "moment2")
                for row in range(2)
            ],
            "fitness": [score for agent in loop.population.agents for score in agent.fitness],
        },
    }


def recorded() -> dict[str, Any]:
    return json.loads(FILE.read_text())


@functools.cache
def traced(ring: str, engine: str) -> tuple[str, dict[str, Any]]:
    if engine == "native" and native.compiled_step() is None:
        pytest.skip("no C compiler")
    loop = trace(ring, engine)
    return weights_hash(loop), summary(loop)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ring", RINGS)
def test_what_was_done_and_what_came_out(ring, engine):
    got, want = traced(ring, engine)[1], recorded()["summary"][ring]
    assert got["done"] == want["done"]
    for name, numbers in want["numbers"].items():
        assert np.allclose(got["numbers"][name], numbers, rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ring", RINGS)
def test_every_bit_on_the_machine_that_recorded_it(ring, engine):
    here, there = machine(), recorded()["machine"]
    if here != there:
        other = [name for name in here if here[name] != there[name]]
        pytest.skip(f"recorded with another {', '.join(other)}; the summaries are compared")
    assert traced(ring, engine)[0] == recorded()["weights"][ring][engine]


def test_the_record_tells_the_rings_apart():
    weights = recorded()["weights"]
    assert all(len({weights[ring][engine] for ring in RINGS}) == len(RINGS) for engine in ENGINES)
    losses = {tuple(recorded()["summary"][ring]["numbers"]["loss"]) for ring in RINGS}
    assert len(losses) == len(RINGS)


def record() -> None:
    traces = {ring: {engine: traced(ring, engine) for engine in ENGINES} for ring in RINGS}
    content = {
        "machine": machine(),
        "weights": {ring: {engine: text for engine, (text, _) in of.items()} for ring, of in traces.items()},
        "summary": {ring: of["stacked"][1] for ring, of in traces.items()},
    }
    FILE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    record()
