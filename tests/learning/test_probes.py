"""DQN learns the action values that are known beforehand, within 0.1, on each probe and with each ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import value_probes as probes
from gymnasium.vector import AutoresetMode
from value_probes import Probe, stacked

from agilerl_exp.envs import MemberEnvs
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.training import ReplayBufferSpec, TrainingSpec

RINGS: dict[str, dict[str, Any]] = {
    "standard": {},
    "n_step": {"n_step_buffer": True},
    "per": {"per_buffer": True},
    "per_n_step": {"per_buffer": True, "n_step_buffer": True},
}
ALL = {name.lower(): value for name, value in vars(probes).items() if isinstance(value, Probe)}
SIMPLE = [name for name in ALL if name != "rare"]
LONGER = {"always_truncates": 1600}
ANY_ACTION = ["terminates", "cycle"]  # n-step windows follow the random actions of the ring


def learn(
    probe: Probe,
    *,
    ring: dict[str, Any] | None = None,
    engine: str | None = None,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
    gammas: tuple[float, ...] = (),
    steps: int = 800,
    **algo: Any,
) -> list[np.ndarray]:
    """Train by random actions; returns the learned values [state, action] of each member."""
    settings = {
        "lr": 1e-2,
        "lr_schedule": "linear",
        "tau": 0.1,
        "learn_step": 2,
        "batch_size": 32,
        "net_config": {"hidden_size": [32, 32]},
        "normalize_obs": probe is probes.FAR_AWAY,
    }
    specs = [DQNSpec(gamma=gamma, **settings | algo) for gamma in gammas or (probe.gamma,)]
    envs = MemberEnvs(probe.vector(mode=mode))
    agents = [
        spec.build_algorithm(envs.observation_space, envs.action_space, i) for i, spec in enumerate(specs)
    ]
    for agent in agents:
        agent.cohort.engine = engine or agent.cohort.engine
    buffers = ReplayBufferSpec(max_size=2000, **ring or {})
    training = TrainingSpec(max_steps=steps, pop_size=len(specs), eps_schedule="constant", eval_steps=10)
    kwargs = specs[0].get_training_kwargs(
        training=training,
        env_spec=EnvSpec(entrypoint="value_probes.py:TableEnv"),
        memory=buffers.init_buffer(specs[0]),
        n_step_memory=buffers.init_n_step_buffer(specs[0]),
    )
    specs[0].get_training_fn()(lambda member: probe.vector(mode=mode), agents, **kwargs)
    return [agent.cohort.outputs("q", _lead(stacked(probe)), np.array([agent.row]))[0] for agent in agents]


def _lead(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: leaf[None] for key, leaf in tree.items()}
    return tuple(leaf[None] for leaf in tree) if isinstance(tree, tuple) else tree[None]


def close(got: np.ndarray, q: Any, tolerance: float = 0.1) -> bool:
    known = ~np.isnan(q)
    return bool(np.abs(got - np.array(q))[known].max() <= tolerance)


@pytest.mark.parametrize("name", ALL)
def test_the_values_worked_out_by_hand_solve_the_bellman_equation(name):
    assert np.allclose(ALL[name].bellman(), ALL[name].q, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", SIMPLE)
def test_every_probe_is_learned(name):
    slower = {"lr": 3e-3} if "image" in name else {}  # ReLUs of convolutions die at 1e-2
    (got,) = learn(ALL[name], steps=LONGER.get(name, 800), **slower)
    assert close(got, ALL[name].q), got


@pytest.mark.parametrize("engine", ["stacked", "autograd"])
@pytest.mark.parametrize("name", ["cycle", "masked"])
def test_the_torch_engines_give_the_same_values(name, engine):
    (got,) = learn(ALL[name], engine=engine)
    assert close(got, ALL[name].q), got


@pytest.mark.parametrize("ring", ["n_step", "per", "per_n_step"])
@pytest.mark.parametrize("name", ANY_ACTION)
def test_every_ring_gives_the_same_values(name, ring):
    (got,) = learn(ALL[name], ring=RINGS[ring])
    assert close(got, ALL[name].q), got


OWN = {"arch": "custom", "entrypoint": "test_probes:Own", "hidden_size": [32]}


class Own(torch.nn.Module):
    """A user's encoder of images of 8 x 6 x 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(48, 16)

    def forward(self, x):
        return torch.tanh(self.layer(x.flatten(1)))


@pytest.mark.parametrize(
    ("name", "net"),
    [
        ("image", {"arch": "cnn"}),
        ("image", {"arch": "resnet", "channels": 8}),
        ("image", {"arch": "mlp"}),
        ("image", OWN),
        ("dict_with_image", {"arch": "multi_input", "vector_hidden_size": [16]}),
        ("cycle", {"arch": "simba", "width": 32}),
        ("masked", {"arch": "simba", "width": 32, "init": "orthogonal"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["arch"],
)
def test_every_network_gives_the_same_values(name, net):
    (got,) = learn(ALL[name], net_config=net, lr=3e-3)
    assert close(got, ALL[name].q), got


def test_normalised_observations_leave_images_alone():
    (got,) = learn(probes.DICT_WITH_IMAGE, normalize_obs=True, lr=3e-3)
    assert close(got, probes.DICT_WITH_IMAGE.q), got


@pytest.mark.parametrize("ring", RINGS)
def test_a_cut_episode_bootstraps_from_its_own_last_observation_in_the_other_reset_mode_too(ring):
    (got,) = learn(probes.CYCLE, ring=RINGS[ring], mode=AutoresetMode.NEXT_STEP)
    assert close(got, probes.CYCLE.q), got


@pytest.mark.parametrize(
    "algo",
    [
        {"double": True},
        {"loss": "huber"},
        {"max_grad_norm": 1.0},
        {"target_update_interval": 50},
        {"net_config": {"hidden_size": [32], "layer_norm": True, "activation": "Tanh"}},
    ],
    ids=lambda algo: next(iter(algo)),
)
@pytest.mark.parametrize("name", ["masked", "cycle"])
def test_every_variant_gives_the_same_values(name, algo):
    (got,) = learn(ALL[name], **algo)
    assert close(got, ALL[name].q), got


@pytest.mark.parametrize("ring", ["standard", "n_step"])
def test_members_of_one_cohort_learn_the_values_of_their_own_discount(ring):
    gammas = (0.0, 0.5, 0.7)
    for gamma, got in zip(gammas, learn(probes.CYCLE, ring=RINGS[ring], gammas=gammas), strict=True):
        assert close(got, probes.CYCLE.bellman(gamma)), (gamma, got)


def test_importance_weights_undo_the_bias_of_prioritized_draws():
    per = {"per_buffer": True, "per_buffer_args": {"alpha": 1.0, "beta": 1.0}}
    (got,) = learn(probes.RARE, ring=per)
    assert close(got, probes.RARE.q, tolerance=0.05), got
