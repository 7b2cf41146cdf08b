"""The cohort law: the stacked update of member i equals that of member i alone, and no member touches another."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.population.native import compiled_step
from agilerl_exp.population.population import Population

OBS, ACT = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)


def agents(spec, pop):
    return [spec.build_algorithm(OBS, ACT, i) for i in range(pop)]


def filled_buffer(pop, alpha=None, masks=True, seed=0):
    rng = np.random.default_rng(seed)
    buffer = ReplayBuffer(64, alpha=alpha)
    for _ in range(8):
        mask = (rng.random((pop, 4, 4)) < 0.6).astype(np.uint8)
        buffer.add(
            Transition(
                rng.standard_normal((pop, 4, 3)).astype(np.float32),
                rng.integers(0, 4, (pop, 4)),
                rng.standard_normal((pop, 4)).astype(np.float32),
                rng.random((pop, 4)) < 0.2,
                np.zeros((pop, 4), bool),
                rng.standard_normal((pop, 4, 3)).astype(np.float32),
                mask if masks else None,
            )
        )
    return buffer


def weights(agent):
    return agent.cohort.bank.weights[agent.row].numpy().copy()


SPECS = st.builds(
    DQNSpec,
    lr=st.sampled_from([1e-3, 1e-2]),
    batch_size=st.sampled_from([1, 7, 16]),
    tau=st.sampled_from([0.01, 0.5]),
    double=st.booleans(),
    loss=st.sampled_from(["mse", "huber"]),
    max_grad_norm=st.sampled_from([None, 0.1]),
    normalize_obs=st.booleans(),
    target_update_interval=st.sampled_from([None, 3]),
    net_config=st.builds(
        dict,
        hidden_size=st.sampled_from([[8], [8, 6]]),
        activation=st.sampled_from(["ReLU", "Tanh", "ELU"]),
        layer_norm=st.booleans(),
    ),
)


@settings(max_examples=25, deadline=None)
@given(spec=SPECS, pop=st.integers(2, 5), prioritized=st.booleans(), masks=st.booleans())
def test_member_of_a_cohort_learns_as_it_would_alone(spec, pop, prioritized, masks):
    alone, together = agents(spec, pop), agents(spec, pop)
    cohort = Population(together).cohorts[0]
    assert cohort.pop == pop
    # members of one cohort may differ in every column
    for i, agent in enumerate(alone):
        for name, factor in (("lr", 1 + i), ("tau", 1 / (1 + i)), ("batch_size", 1)):
            agent.cohort.hyper[name][0] *= factor
            cohort.hyper[name][i] *= factor
    buffer = filled_buffer(pop, 0.5 if prioritized else None, masks)
    for step in range(1, 4):
        everyone = np.arange(pop)
        sizes = spec.batch_size + everyone % 3
        batch = buffer.sample(sizes, np.random.default_rng(step), members=everyone)
        cohort.env_step[:] = step
        if spec.normalize_obs:
            cohort.observe(batch.obs, None, np.ones(batch.reward.shape, bool))
        rows = None if step != 2 else everyone[1:]  # a partial update in between
        chosen = everyone if rows is None else rows
        part = batch.part(chosen)
        loss = cohort.update(together[0], part, rows)
        for k, i in enumerate(chosen.tolist()):
            lone = alone[i].cohort
            lone.env_step[:] = step
            one = batch.part(np.array([i]))
            if spec.normalize_obs:
                lone.stats.load_state_dict({k2: v[i] for k2, v in cohort.stats.state_dict().items()})
            single = lone.update(alone[i], one, None)
            assert np.allclose(single.value[0], loss.value[k], rtol=1e-5, atol=1e-6)
            errors = loss.td_error[k, : sizes[i]]
            assert np.allclose(single.td_error[0], errors, rtol=1e-4, atol=1e-5)
    for a, b in zip(alone, together, strict=True):
        assert np.allclose(weights(a), weights(b), rtol=1e-5, atol=1e-5)
        assert np.allclose(a.cohort.bank.target[0], b.cohort.bank.target[b.row], rtol=1e-5, atol=1e-5)
        assert a.cohort.update_step[0] == b.cohort.update_step[b.row]


def test_changing_one_member_never_changes_another():
    spec = DQNSpec(lr=1e-2, double=True, net_config={"hidden_size": [8, 8]})
    left, right = Population(agents(spec, 3)), Population(agents(spec, 3))
    for view in right.cohorts[0].bank.views("weights"):
        view[1] += 100.0
    right.cohorts[0].hyper["lr"][1] = 1.0
    for population in (left, right):
        batch = filled_buffer(3).sample(16, np.random.default_rng(0))
        if population is right:
            batch.reward[1] = 1e6
        population.cohorts[0].update(population.agents[0], batch)
    for i in (0, 2):
        assert weights(left.agents[i]).tobytes() == weights(right.agents[i]).tobytes()
    assert weights(left.agents[1]).tobytes() != weights(right.agents[1]).tobytes()


ENGINES = [
    pytest.param(
        "native",
        {"hidden_size": [20, 16], "layer_norm": True, "init": "orthogonal"},
        marks=pytest.mark.skipif(compiled_step() is None, reason="no compiler"),
    ),
    ("stacked", {"hidden_size": [8, 8], "activation": "Tanh", "init": "orthogonal"}),
    pytest.param(
        "native",
        {"hidden_size": [20, 16], "init": "orthogonal"},
        marks=pytest.mark.skipif(compiled_step() is None, reason="no compiler"),
    ),
]


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(("double", "loss"), [(False, "mse"), (True, "mse"), (True, "huber")])
@pytest.mark.parametrize(("engine", "net"), ENGINES)
def test_engines_equal_autograd(engine, net, double, loss, masks):
    spec = DQNSpec(
        double=double, loss=loss, lr=1e-2, tau=0.1, max_grad_norm=0.5, normalize_obs=True, net_config=net
    )
    fast, reference = Population(agents(spec, 3)), Population(agents(spec, 3))
    fast.cohorts[0].engine, reference.cohorts[0].engine = engine, "autograd"
    buffer = filled_buffer(3, alpha=0.5, masks=masks)
    for step in range(20):
        rows = None if step % 3 else np.array([0, 2])
        members = np.arange(3) if rows is None else rows
        batch = buffer.sample(16, np.random.default_rng(step), members=members)
        outs = []
        for population in (fast, reference):
            cohort = population.cohorts[0]
            cohort.observe(batch.obs, rows, np.ones(batch.reward.shape, bool))
            outs.append(cohort.update(population.agents[0], batch, rows))
        for a, b in ((outs[0].value, outs[1].value), (outs[0].td_error, outs[1].td_error)):
            assert np.allclose(a, b, rtol=1e-3, atol=1e-4)
        assert np.allclose(outs[0].metrics["q_value"], outs[1].metrics["q_value"], rtol=1e-3, atol=1e-4)
        for role in ("weights", "target", "moment1", "moment2", "adam_step"):
            a, b = (getattr(population.cohorts[0].bank, role) for population in (fast, reference))
            # Adam turns rounding of a gradient near zero into whole steps of lr
            assert torch.allclose(a, b, rtol=1e-3, atol=5e-4), role


def test_engine_is_chosen_by_the_network():
    def chosen(**net):
        return agents(DQNSpec(net_config=net), 1)[0].cohort.engine

    assert chosen(hidden_size=[8]) == ("native" if compiled_step() is not None else "stacked")
    assert chosen(hidden_size=[8], activation="Tanh") == "stacked"
    assert chosen(hidden_size=[8], layer_norm=True) == chosen(hidden_size=[8])
    assert chosen(hidden_size=[1024]) == "stacked"


def test_batch_sizes_may_differ_inside_a_cohort():
    spec = DQNSpec(lr=1e-2, net_config={"hidden_size": [8]})
    alone, together = agents(spec, 2), agents(spec, 2)
    cohort = Population(together).cohorts[0]
    sizes = np.array([5, 16])
    cohort.hyper["batch_size"][:] = sizes
    batch = filled_buffer(2).sample(sizes, np.random.default_rng(0))
    cohort.update(together[0], batch)
    for i, agent in enumerate(alone):
        agent.cohort.hyper["batch_size"][0] = sizes[i]
        own = batch.part(np.array([i]))
        for name in own.__dataclass_fields__:  # cut the padding away
            value = getattr(own, name)
            if isinstance(value, np.ndarray):
                setattr(own, name, np.ascontiguousarray(value[:, : sizes[i]]))
        agent.cohort.update(agent, own)
        assert np.allclose(weights(agent), weights(together[i]), rtol=1e-5, atol=1e-6)
