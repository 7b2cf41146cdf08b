"""What each field of the algorithm, its network and their bases does, in numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from effects import effect
from gymnasium import spaces
from small import contents, ran

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.models.algorithms.dqn import DQNSpec

SPACE = spaces.Box(-10, 10, (3,), np.float32)
B = 6


def agent_of(**fields):
    spec = DQNSpec(**{"net_config": {"hidden_size": [16]}, "batch_size": B, **fields})
    return spec.build_algorithm(SPACE, spaces.Discrete(4), 0)


def batch_of(scale: float = 1.0, gamma: float = 0.9):
    """B transitions of random numbers, the first of them terminal."""
    rng = np.random.default_rng(5)
    ring = ReplayBuffer(B, gamma=gamma)
    for row in range(B):
        obs, next_obs = rng.normal(size=(2, 1, 1, 3)).astype(np.float32)
        reward = scale * rng.normal(size=(1, 1)).astype(np.float32)
        ended, no = np.full((1, 1), row == 0), np.zeros((1, 1), bool)
        ring.add(Transition(obs, np.full((1, 1), row % 4), reward, ended, no, next_obs))
    return ring.sample(B, np.random.default_rng(0))


def role(agent, name):
    return getattr(agent.cohort.bank, name)[agent.row].numpy().copy()


def unlike(agent):
    """Give the target network weights of its own, so that the two networks disagree."""
    with torch.no_grad():
        agent.cohort.bank.target[agent.row].copy_(torch.from_numpy(role(agent_of(), "weights"))).mul_(-1.5)
    return agent


def q_values(agent, name, obs):
    """`(B, A)` float64, by ordinary modules."""
    views = [x[agent.row].double() for x in agent.cohort.bank.views(name)]
    with torch.no_grad():
        return agent.cohort.nets["q"].module(views)(torch.from_numpy(obs[0]).double()).numpy()


def expected_error(agent, batch, double):
    online = q_values(agent, "weights", batch.obs)[np.arange(B), batch.action[0]]
    target = q_values(agent, "target", batch.next_obs)
    chooser = q_values(agent, "weights", batch.next_obs) if double else target
    bootstrap = target[np.arange(B), chooser.argmax(1)]
    return online - (batch.reward[0] + batch.discount[0] * (1 - batch.terminated[0]) * bootstrap)


@effect("RLAlgorithmSpec.gamma", "DQNSpec.double")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_errors_are_those_of_the_textbook_target(double, gamma):
    agent, batch = unlike(agent_of(double=double)), batch_of(gamma=gamma)
    errors = [expected_error(agent, batch, flag) for flag in (double, not double)]
    agent.learn(batch)
    assert agent.td_error[0] == pytest.approx(errors[0], abs=1e-5)
    assert (np.abs(errors[0] - errors[1]).max() > 0.05) == (gamma > 0)  # the two rules differ here


@effect("RLAlgorithmSpec.gamma")
def test_a_run_samples_with_the_gamma_of_the_algorithm():
    for gamma in (0.3, 0.99):
        loop = ran({"algo.gamma": gamma})
        discounts = [drawn["batch"].discount for drawn in loop.buffer.drawn]
        assert np.allclose(discounts, gamma, rtol=1e-6)


@effect("DQNSpec.loss")
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_the_loss_is_the_mean_of_squares_or_of_the_huber_function(scale):
    batch = batch_of(scale)
    for kind in ("mse", "huber"):
        agent = agent_of(loss=kind)
        error = expected_error(agent, batch, False)
        size = np.abs(error)
        value = error**2 if kind == "mse" else np.where(size <= 1, error**2, 2 * size - 1)
        assert agent.learn(batch)["loss"] == pytest.approx(value.mean(), rel=1e-5)
    assert (size > 1).any() == (scale > 1)


@effect("AlgorithmSpec.batch_size")
@pytest.mark.parametrize("size", [1, 8, 33])
def test_batch_size_rows_an_update_and_none_before_the_ring_holds_them(size):
    loop = ran({"algo.batch_size": size, "env.num_envs": 1, "algo.learn_step": 1})
    assert {drawn["batch"].reward.shape for drawn in loop.buffer.drawn} == {(1, size)}
    assert loop.session.first_update() == size
    assert loop.session.updates[-1] == [64 - size + 1]


@effect("RLAlgorithmSpec.learn_step")
@pytest.mark.parametrize(
    ("num_envs", "learn_step", "updates"),
    [(8, 4, 250), (4, 16, 62), (1, 3, 333), (16, 24, 42), (16, 5, 201), (7, 7, 143), (10, 1, 1000)],
)
def test_one_update_every_learn_step_env_steps_whatever_num_envs_is(num_envs, learn_step, updates):
    settings = {"training.max_steps": 1000, "training.evo_steps": 1000, "algo.batch_size": 1}
    loop = ran({**settings, "env.num_envs": num_envs, "algo.learn_step": learn_step, "training.pop_size": 2})
    for step, done in zip(loop.session.env_step, loop.session.updates, strict=True):
        assert done == [s // learn_step for s in step]  # at every boundary, not only at the end
    assert loop.session.updates[-1] == [updates] * 2


def first_move(settings):
    """Largest change of a weight in the first update; Adam's first step is lr wherever a gradient is."""
    watch = ran(settings, weights=True).session
    at = watch.env_step.index([watch.first_update()])
    return np.abs(watch.weights[at] - watch.weights[at - 1]).max()


@effect("DQNSpec.lr", "DQNSpec.lr_schedule", "DQNSpec.lr_final_fraction")
@pytest.mark.parametrize(
    ("schedule", "delay", "rate"),
    [
        ({}, 500, 1e-2),
        ({"algo.lr": 3e-3}, 500, 3e-3),
        ({"algo.lr": 0.0}, 500, 0.0),
        ({"algo.lr_schedule": "linear"}, 500, 0.51e-2),
        ({"algo.lr_schedule": "linear"}, 250, 0.755e-2),
        ({"algo.lr_schedule": "linear", "algo.lr_final_fraction": 0.5}, 500, 0.75e-2),
        ({"algo.lr_schedule": "linear", "algo.lr_final_fraction": 0.0}, 750, 0.25e-2),
        ({"algo.lr_schedule": "linear", "algo.lr_final_fraction": 1.0}, 750, 1e-2),
    ],
)
def test_weights_move_by_the_scheduled_rate(schedule, delay, rate):
    settings = {"training.max_steps": 1000, "training.evo_steps": 1000, "env.num_envs": 1}
    settings |= {"algo.learn_step": 250, "training.learning_delay": delay, "algo.lr": 1e-2}
    assert first_move(settings | schedule) == pytest.approx(rate, rel=1e-3, abs=1e-12)


@effect("DQNSpec.tau")
@pytest.mark.parametrize("tau", [0.0, 1e-3, 0.25, 1.0])
def test_each_update_mixes_tau_of_the_weights_into_the_target(tau):
    watch = ran({"algo.tau": tau, "env.num_envs": 1, "algo.lr": 1e-2}, weights=True).session
    target = watch.weights[0].astype(np.float64)
    for k in range(1, len(watch.env_step)):
        if watch.updates[k] > watch.updates[k - 1]:
            target = (1 - tau) * target + tau * watch.weights[k]
        assert watch.target[k] == pytest.approx(target, abs=1e-6)
    assert watch.updates[-1] == [15]


@effect("DQNSpec.target_update_interval")
@pytest.mark.parametrize(
    ("interval", "num_envs", "copied"),
    [(10, 1, [12, 20, 32, 40, 52, 60]), (20, 2, [20, 40, 60]), (100, 1, [])],
)
def test_whole_copies_into_the_target_come_with_the_update_after_each_interval(interval, num_envs, copied):
    settings = {"algo.target_update_interval": interval, "env.num_envs": num_envs, "algo.tau": 0.5}
    watch = ran(settings, weights=True).session
    changed = [
        k for k in range(1, len(watch.target)) if not np.array_equal(watch.target[k], watch.target[k - 1])
    ]
    assert [watch.env_step[k][0] for k in changed] == copied
    assert all(np.array_equal(watch.target[k], watch.weights[k]) for k in changed)


@effect("DQNSpec.max_grad_norm")
def test_the_gradient_is_cut_to_its_norm():
    batch, moments = batch_of(scale=30.0), {}
    for limit in (None, 0.5, 1e9):
        agent = agent_of(max_grad_norm=limit)
        agent.learn(batch)
        moments[limit] = role(agent, "moment1")  # a tenth of the gradient after one step of Adam
    assert np.linalg.norm(moments[None]) > 1
    assert np.array_equal(moments[1e9], moments[None])
    assert np.linalg.norm(moments[0.5]) == pytest.approx(0.05, rel=1e-4)
    direction = moments[None] / np.linalg.norm(moments[None])
    assert moments[0.5] == pytest.approx(0.05 * direction, abs=1e-6)


@effect("DQNSpec.normalize_obs")
def test_observations_are_scaled_by_the_members_own_statistics():
    settings = {"training.pop_size": 2, "env.id": "probe/Noisy-v0", "algo.learn_step": 64}
    for flag in (True, False):
        loop = ran(settings | {"algo.normalize_obs": flag})
        for agent in loop.population.agents:
            seen = contents(loop.buffer, agent.index).obs[0].astype(np.float64)  # all that it ever saw
            mean, deviation = (seen.mean(0), seen.std(0)) if flag else (0.0, 1.0)
            x = np.clip((seen - mean) / deviation, -10, 10)
            q = q_values(agent, "weights", x[None])
            assert agent.cohort.outputs("q", seen[None].astype(np.float32), np.array([agent.row]))[
                0
            ] == pytest.approx(q, abs=1e-4)
            assert (agent.get_action(seen.astype(np.float32)) == q.argmax(1)).all()
            assert agent.hyperparameters["batch_size"] == 8


@effect("DQNSpec.normalize_obs")
def test_samples_are_scaled_too():
    agents = {flag: agent_of(normalize_obs=flag) for flag in (False, True)}
    batch, seen = batch_of(), np.random.default_rng(1).normal(3.0, 2.0, size=(1, 50, 3)).astype(np.float32)
    agents[True].cohort.observe(seen, None, np.ones((1, 50), bool))
    scaled = [(x - seen.mean(1)) / seen.std(1) for x in (batch.obs, batch.next_obs)]
    twin = replace(batch, obs=scaled[0].astype(np.float32), next_obs=scaled[1].astype(np.float32))
    agents[False].learn(twin)
    agents[True].learn(batch)
    assert agents[True].td_error == pytest.approx(agents[False].td_error, abs=1e-5)


@effect("AutoSpec.arch", "MlpSpec.arch")
def test_vectors_take_an_mlp_with_the_same_settings():
    auto, mlp = (agent_of(net_config={"arch": arch, "hidden_size": [7]}) for arch in ("auto", "mlp"))
    assert auto.spec.net_config == mlp.spec.net_config and auto.spec.net_config.arch == "mlp"


@effect("HeadSpec.hidden_size", "RLAlgorithmSpec.net_config")
@pytest.mark.parametrize(("hidden", "shapes"), [([7], [(7, 3), (4, 7)]), ([5, 6], [(5, 3), (6, 5), (4, 6)])])
def test_hidden_sizes_are_the_widths_of_the_layers(hidden, shapes):
    weights = agent_of(net_config={"hidden_size": hidden}).networks_as_modules()["q"].state_dict()
    assert [tuple(w.shape) for name, w in weights.items() if name.endswith("weight")] == shapes


@effect("RLAlgorithmSpec.net_config")
def test_without_a_network_config_the_default_network_is_taken():
    default, given = (agent_of(net_config=config).networks_as_modules()["q"] for config in (None, {}))
    assert str(default) == str(given) and default[0].out_features == default[2].out_features == 64


@effect("HeadSpec.activation", "HeadSpec.layer_norm")
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(
    "name", ["ReLU", "Tanh", "ELU", "GELU", "LeakyReLU", "Sigmoid", "Softplus", "Identity"]
)
def test_actions_are_those_of_the_ordinary_network(name, layer_norm):
    agent = agent_of(net_config={"hidden_size": [16, 16], "activation": name, "layer_norm": layer_norm})
    agent.learn(batch_of())  # off the values that initialisation gives
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    linear = [m for m in agent.networks_as_modules()["q"] if isinstance(m, torch.nn.Linear)]
    norms = [m for m in agent.networks_as_modules()["q"] if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 2 * layer_norm
    h = x
    with torch.no_grad():
        for k, layer in enumerate(linear):
            h = layer(h)
            if k < 2:
                h = norms[k](h) if layer_norm else h
                h = getattr(torch.nn, name)()(h)
    assert (agent.get_action(x.numpy()) == h.argmax(1).numpy()).all()
    q = agent.cohort.outputs("q", x.numpy()[None], np.array([0]))[0]
    assert q == pytest.approx(h.numpy(), abs=1e-5)


@effect("HeadSpec.init")
def test_each_way_of_starting_gives_its_own_weights():
    first = {
        init: agent_of(net_config={"hidden_size": [64], "init": init}).networks_as_modules()["q"][0]
        for init in ("orthogonal", "torch", "he")
    }
    gram = first["orthogonal"].weight.T @ first["orthogonal"].weight
    assert gram.detach().numpy() == pytest.approx(2 * np.eye(3), abs=1e-5)  # gain sqrt(2)
    for init, bound in (("torch", (1 / 3) ** 0.5), ("he", 2**0.5)):  # uniform over 192 weights
        largest = first[init].weight.abs().max().item()
        assert 0.95 * bound < largest <= bound
    assert first["torch"].bias.abs().max() > 0
    assert all(first[init].bias.abs().max() == 0 for init in ("orthogonal", "he"))
