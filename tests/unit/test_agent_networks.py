"""Agents and whole jobs with each family of networks: saved, loaded, cloned, normalised, evolved, resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from nets import CASES, IMAGE, MIXED, VECTOR
from small import loop_of, ran, spec_of

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.errors import CheckpointError
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.networks import morph
from agilerl_exp.population.native import compiled_step
from agilerl_exp.population.population import Population
from agilerl_exp.training.run import run

ACTIONS = spaces.Discrete(3)


def agent_of(name, **fields):
    space, net = CASES[name]
    spec = DQNSpec(**{"net_config": net.model_dump(), "batch_size": 8, "lr": 1e-3} | fields)
    return spec.build_algorithm(space, ACTIONS, 0)


def seen(space, lead, seed=0):
    """Observations of a space with leading axes, as an adapter hands them out."""
    space.seed(seed)

    def drawn(part, leaf_of):
        if isinstance(part, spaces.Dict):
            return {key: drawn(sub, lambda o, k=key: leaf_of(o)[k]) for key, sub in part.items()}
        if isinstance(part, spaces.Tuple):
            return tuple(drawn(sub, lambda o, k=k: leaf_of(o)[k]) for k, sub in enumerate(part))
        return np.array([leaf_of(one) for one in samples]).reshape(*lead, *part.shape)

    samples = [space.sample() for _ in range(int(np.prod(lead)))]
    return drawn(space, lambda one: one)


def batch_of(space, pop=1, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    ring = ReplayBuffer(rows)
    for k in range(rows // 4):
        obs, after = (seen(space, (pop, 4), seed=10 * k + j + seed) for j in (0, 1))
        reward, no = rng.normal(size=(pop, 4)).astype(np.float32), np.zeros((pop, 4), bool)
        ring.add(Transition(obs, rng.integers(0, 3, (pop, 4)), reward, rng.random((pop, 4)) < 0.3, no, after))
    return ring.sample(rows, np.random.default_rng(seed), members=np.arange(pop))


def rows_of(agent):
    bank = agent.cohort.bank
    return {role: getattr(bank, role)[agent.row].numpy().copy() for role in ("weights", "target", "moment1")}


@pytest.mark.parametrize("name", CASES)
def test_an_agent_is_saved_loaded_and_cloned(name, tmp_path):
    agent, space = agent_of(name, normalize_obs=True), CASES[name][0]
    agent.observe(seen(space, (20,)))
    agent.learn(batch_of(space))
    agent.save_checkpoint(tmp_path / "agent")
    loaded = agent.spec.build_algorithm(space, ACTIONS, 3, str(tmp_path / "agent"))
    fresh = agent_of(name, normalize_obs=True)
    fresh.load_checkpoint(tmp_path / "agent")
    obs = seen(space, (50,), seed=3)
    for twin in (loaded, fresh, agent.clone()):
        assert (twin.get_action(obs) == agent.get_action(obs)).all()
        agent_rows = rows_of(agent)
        assert all(np.array_equal(value, agent_rows[role]) for role, value in rows_of(twin).items())
    agent.learn(batch_of(space, seed=1))
    loaded.learn(batch_of(space, seed=1))
    assert np.allclose(rows_of(loaded)["weights"], rows_of(agent)["weights"], atol=1e-6)
    other = agent_of("mlp" if name != "mlp" else "simba")
    if space is not CASES["mlp"][0]:
        with pytest.raises(CheckpointError):
            other.load_checkpoint(tmp_path / "agent")
    assert agent.get_action(space.sample()).shape == ()


@pytest.mark.parametrize("name", CASES)
def test_members_of_a_cohort_learn_as_they_would_alone(name):
    space = CASES[name][0]
    alone = [agent_of(name) for _ in range(3)]
    for i, agent in enumerate(alone):
        agent.cohort.bank.weights[0] += 0.01 * i
    together = [agent.clone() for agent in alone]
    cohort = Population(together).cohorts[0]
    assert cohort.pop == 3
    batch = batch_of(space, pop=3)
    cohort.update(together[0], batch)
    for i, agent in enumerate(alone):
        own = {
            key: _rows(value, i)
            if isinstance(value := getattr(batch, key), np.ndarray | dict | tuple)
            else value
            for key in batch.__dataclass_fields__
        }
        agent.cohort.update(agent, type(batch)(**own))
        assert np.allclose(rows_of(agent)["moment1"], rows_of(together[i])["moment1"], rtol=1e-4, atol=1e-6)


def _rows(tree, i):
    if isinstance(tree, dict):
        return {key: _rows(part, i) for key, part in tree.items()}
    return tuple(_rows(part, i) for part in tree) if isinstance(tree, tuple) else tree[i : i + 1]


def test_statistics_scale_vectors_and_leave_images():
    agent = agent_of("multi_input", normalize_obs=True)
    many = seen(MIXED, (40,))
    agent.observe(many)
    x = agent.cohort.encode({key: _first_axis(part) for key, part in many.items()}, None)[0]
    assert x[:, :8].mean(0) == pytest.approx(0, abs=1e-4) and x[:, 3:8].std(0) == pytest.approx(1, abs=1e-3)
    assert np.allclose(x[:, 8:92], many["cam"].reshape(40, -1) / 255)
    assert np.allclose(x[:, 92:], many["deep"][0].reshape(40, -1) / 255)
    assert agent.cohort.stats.mean.shape == (1, 8)
    assert agent_of("cnn", normalize_obs=True).cohort.stats is None


def _first_axis(tree):
    return tuple(_first_axis(part) for part in tree) if isinstance(tree, tuple) else tree[None]


@pytest.mark.skipif(compiled_step() is None, reason="no C compiler")
@pytest.mark.parametrize("space", [MIXED, IMAGE, VECTOR], ids=["mixed", "image", "vector"])
def test_the_compiled_step_sees_the_same_inputs(space):
    """A flattened image beside vectors: only the vectors are scaled, by every engine."""
    after = {}
    for engine in ("native", "autograd"):
        spec = DQNSpec(
            net_config={"arch": "mlp", "hidden_size": [16]}, normalize_obs=True, batch_size=8, lr=1e-3
        )
        agent = spec.build_algorithm(space, ACTIONS, 0)
        assert agent.cohort.engine == "native"
        agent.cohort.engine = engine
        agent.observe(seen(space, (20,)))
        agent.learn(batch_of(space))
        after[engine] = rows_of(agent)["moment1"]
    assert np.allclose(after["native"], after["autograd"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name != "mlp"])
def test_an_agent_goes_on_with_another_architecture(name, tmp_path):
    agent, space, rng = agent_of(name), CASES[name][0], np.random.default_rng(0)
    agent.learn(batch_of(space))
    obs = seen(space, (1, 30))
    for _ in range(25):
        change = morph.draw(agent.spec.net_config, rng, 0.5)
        twin = agent.morphed(change.spec, rng)
        if change.kind.startswith("add") and not (name == "simba" and change.kind == "add_node"):
            before, now = (one.cohort.outputs("q", obs) for one in (agent, twin))
            assert np.abs(before - now).max() <= 1e-5 * np.abs(before).max() + 1e-7
        agent = twin
    agent.learn(batch_of(space))
    agent.save_checkpoint(tmp_path / "agent")
    loaded = agent_of(name)
    loaded.load_checkpoint(tmp_path / "agent")
    assert np.array_equal(loaded.cohort.outputs("q", obs), agent.cohort.outputs("q", obs))
    clone = agent.clone()
    assert np.array_equal(clone.cohort.outputs("q", obs), agent.cohort.outputs("q", obs))


SMOKE = {
    "mlp": ({"kind": "box"}, {}),
    "simba": ({"kind": "nested"}, {"width": 32}),
    "cnn": ({"alone": True}, {}),
    "resnet": ({"alone": True}, {"channels": 8}),
    "multi_input": ({"alone": False}, {"channels": [8], "vector_hidden_size": [8]}),
    "custom": ({"kind": "box"}, {"entrypoint": "test_agent_networks:Wide"}),
    "auto": ({"alone": False}, {"hidden_size": None}),
}


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 9)

    def forward(self, x):
        return self.layer(x).tanh()


def settings_of(arch):
    config, net = SMOKE[arch]
    settings = {"algo.net_config": {"arch": arch, "hidden_size": [16], **net}, "algo.normalize_obs": True}
    if arch == "simba":
        settings["algo.net_config"].pop("hidden_size")
    return settings | {"env.id": f"probe/{'Zoo' if 'kind' in config else 'Camera'}-v0", "env.config": config}


@pytest.mark.parametrize("arch", SMOKE)
def test_every_network_trains_from_an_experiment(arch, tmp_path):
    kinds = {"no_mut": 0, "arch": 1, "params": 0, "rl_hp": 0}
    settings = settings_of(arch) | {"evolution": {"name": "tournament", "probabilities": kinds}}
    settings |= {"training.pop_size": 3, "training.hpo": True}
    run(spec_of(settings), tmp_path / "job")
    rows = [json.loads(line) for line in (tmp_path / "job/lineage.jsonl").read_text().splitlines()]
    assert any(row["kind"] == "arch" for row in rows)
    loop = loop_of(settings)
    agent = loop.population.agents[0].spec.build_algorithm(
        loop.envs.observation_space, loop.envs.action_space, 0, str(tmp_path / "job/checkpoints/step-64")
    )
    loop.envs.close()
    assert agent.steps == 64 and agent.spec.net_config.arch == ("multi_input" if arch == "auto" else arch)


def test_two_runs_of_a_module_of_the_user_start_alike():
    weights = [ran(settings_of("custom")).population.cohorts[0].bank.weights for _ in range(2)]
    assert torch.equal(*weights)
