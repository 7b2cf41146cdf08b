"""What a user adds in a folder of their own: an algorithm, a hyperparameter, an environment. Nothing else changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli import command

ALGORITHM = '''
"""A dueling network: Q(s, a) = V(s) + A(s, a) - mean A(s, .), from two networks."""

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from agilerl_exp.algorithms.base import RLAlgorithm
from agilerl_exp.functional.td import legal_only, pick, td_target
from agilerl_exp.models import _resolve
from agilerl_exp.models.algo import RLAlgorithmSpec, register
from agilerl_exp.models.base import Tunable
from agilerl_exp.networks.build import build
from agilerl_exp.population.cohort import Loss


@register()
class ToySpec(RLAlgorithmSpec):
    """A toy with two networks."""

    off_policy: ClassVar[bool] = True
    uses_epsilon: ClassVar[bool] = True

    lr: Annotated[float, Field(ge=0), Tunable(1e-5, 1e-1, "log")] = 3e-3
    """Learning rate."""
    tau: Annotated[float, Field(ge=0, le=1), Tunable(1e-4, 0.5, "log")] = 0.05
    """Share of the online weights in the target."""
    pull: Annotated[float, Field(ge=0), Tunable(0.001, 0.1)] = 0.01
    """Weight of the advantages' size in the loss."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """How the learning rate falls."""
    lr_final_fraction: float = 1.0
    """What is left of it."""
    target_update_interval: int | None = None
    """Env steps between whole copies."""
    max_grad_norm: float | None = None
    """Limit of the gradient."""
    normalize_obs: bool = False
    """Scale observations."""

    @staticmethod
    def get_training_fn():
        """Train off-policy."""
        return _resolve.attribute("training.library", "train_off_policy")


class Toy(RLAlgorithm):
    """The maths of it."""

    @staticmethod
    def networks(spec, inputs, action_space):
        net = spec.net_config
        return {"v": build(net, inputs, 1), "a": build(net, inputs, int(action_space.n))}

    @staticmethod
    def act(cohort, obs, mask, epsilon, noise, rows=None):
        greedy = cohort.outputs("a", obs, rows).argmax(-1)
        if noise is None:
            return greedy
        n = greedy.shape[1]
        return np.where(noise[:, :n] < epsilon[:, None], (noise[:, n:] * 2).astype(np.int64), greedy)

    @staticmethod
    def loss(nets, params, target, batch, spec):
        def q(weights, obs):
            advantage = nets["a"].apply(weights["a"], obs)
            return nets["v"].apply(weights["v"], obs) + advantage - advantage.mean(-1, keepdim=True), advantage

        with torch.no_grad():
            next_q = legal_only(q(target, batch.next_obs)[0], batch.next_mask)
            y = td_target(batch.reward, batch.discount, batch.terminated, next_q)
        values, advantage = q(params, batch.obs)
        error = pick(values, batch.action) - y
        size = (advantage**2).mean(-1)
        return Loss((batch.scale * (error**2 + spec.pull * size)).sum(-1), error, {"size": size.mean(-1)})
'''
ALGORITHM_OPTION = """\
# Two networks
defaults:
  - /spec/algo/toy@_here_
  - _self_
  - override /env@_global_.env: corridor

learn_step: 4
batch_size: 32
"""
ENVIRONMENT = '''
import gymnasium
import numpy


class Corridor(gymnasium.Env):
    """Cells 0..length; 1 is paid at the last one, each step costs 0.1; action 1 goes right, 0 left."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return self.look(), {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        there = self.cell == self.length
        return self.look(), float(there) - 0.1, there, False, {}

    def look(self):
        return numpy.array([self.cell / self.length], numpy.float32)


class Generous(gymnasium.RewardWrapper):
    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward
'''
ENVIRONMENT_OPTION = """\
# Walk to the right
defaults:
  - /spec/env@_here_
  - _self_

entrypoint: world.py:Corridor
config: {length: 5}
wrappers:
  - {path: gymnasium.wrappers.TimeLimit, kwargs: {max_episode_steps: 40}}
  - {path: "world.py:Generous", kwargs: {factor: 10}}
num_envs: 4
"""
BEST = 10 * (1 - 5 * 0.1)  # five steps
TRAIN = [
    "training.max_steps=2000",
    "training.learning_delay=200",
    "training.eval_steps=40",
    "training.eval_loop=2",
]


@pytest.fixture
def folder(tmp_path) -> Path:
    files = {
        "toy.py": ALGORITHM,
        "world.py": ENVIRONMENT,
        "conf/algo/toy.yaml": ALGORITHM_OPTION,
        "conf/env/corridor.yaml": ENVIRONMENT_OPTION,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def rows(job: Path, kind: str) -> list[dict]:
    lines = (json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_an_algorithm_with_its_hyperparameters_is_a_spec_a_class_and_an_option(folder):
    add = ["plugins=[toy.py]", "algo=toy", "buffer=per_n_step", "training.pop_size=2"]
    add += ["algo.pull=0.02", "evolution=none"]
    result = command(folder, *add, *TRAIN, "training.evo_steps=600", "hydra.run.dir=job")
    assert result.returncode == 0, result.stderr
    assert json.loads((folder / "job/result.json").read_text())["score"] == pytest.approx(BEST)
    trained = rows(folder / "job", "train")
    assert {row["member"] for row in trained} == {0, 1}
    assert all(row["pull"] == 0.02 for row in trained)  # a column beside the bank, reported with the others
    assert any(row.get("size", 0) > 0 for row in trained)
    assert (folder / "job/checkpoints/step-1200/manifest.json").exists()
    refused = command(folder, *add, "algo.pull=-1")
    assert refused.returncode == 2 and "algo.pull=-1" in refused.stderr
    helped = command(folder, "plugins=[toy.py]", "algo=toy", "--help")
    assert re.search(r"algo.pull=0.01 +Weight of the advantages", helped.stdout)


def test_an_environment_is_a_file_and_an_option(folder):
    settings = ["algo.learn_step=4", "algo.lr=3e-3", "algo.normalize_obs=false", "env.config.length=4"]
    result = command(folder, "env=corridor", *settings, *TRAIN, "hydra.run.dir=job")
    assert result.returncode == 0, result.stderr
    assert json.loads((folder / "job/result.json").read_text())["score"] == pytest.approx(10 * (1 - 4 * 0.1))
