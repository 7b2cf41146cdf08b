"""Selection as gathers: who goes on where, what of a member travels, how cohorts regroup."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.network import MlpSpec
from agilerl_exp.population.population import Population

OBS, ACT = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)


def agents(pop, seed=0, **net):
    spec = DQNSpec(net_config={"hidden_size": [16, 16], **net}, normalize_obs=True, lr=1e-2, batch_size=8)
    out = [spec.build_algorithm(OBS, ACT, i) for i in range(pop)]
    rng = np.random.default_rng(seed)
    for i, agent in enumerate(out):  # every kind of state differs from member to member
        for role in ("weights", "target", "moment1", "moment2"):
            for view in agent.cohort.bank.views(role):
                view += torch.from_numpy(rng.normal(size=view.shape)).float().abs()
        agent.cohort.bank.adam_step[:] = i + 1
        agent.observe(rng.normal(i, 1 + i, (10, 3)).astype(np.float32))
        agent.cohort.hyper["lr"][:] = 1e-3 * (i + 1)
        agent.cohort.update_step[:], agent.steps, agent.fitness = 100 * (i + 1), 1000 + i, [float(i)]
    return out


def state(agent, *without):
    tree = agent.cohort.state_dict(agent.row)
    flat = {f"{a}.{b}": np.asarray(value) for a, part in tree.items() for b, value in part.items()}
    return {name: value.tobytes() for name, value in flat.items() if not name.startswith(without)}


CLOCK = ("counters.env_step", "counters.target_mark")


def test_a_slot_goes_on_with_all_of_its_parent_but_the_clock():
    population = Population(agents(4))
    before = [state(agent, *CLOCK) for agent in population.agents]
    bank = population.cohorts[0].bank
    population.evolve(np.array([0, 0, 3, 3]))
    assert population.cohorts[0].bank is bank  # in place: the compiled step holds its addresses
    assert [state(agent, *CLOCK) for agent in population.agents] == [before[i] for i in (0, 0, 3, 3)]
    assert [agent.steps for agent in population.agents] == [1000, 1001, 1002, 1003]
    assert [agent.fitness for agent in population.agents] == [[0.0], [0.0], [3.0], [3.0]]
    population.agents[1].fitness.append(9.0)
    assert population.agents[0].fitness == [0.0]  # nothing mutable is shared


def test_members_may_change_places():
    population = Population(agents(3))
    before = [state(agent, *CLOCK) for agent in population.agents]
    population.evolve(np.array([1, 2, 0]))
    assert [state(agent, *CLOCK) for agent in population.agents] == [before[i] for i in (1, 2, 0)]


def test_hyperparameters_may_come_from_somebody_else():
    population = Population(agents(3))
    population.evolve(np.array([0, 2, 2]), np.array([0, 1, 2]))
    assert population.column("lr") == pytest.approx([1e-3, 2e-3, 3e-3])
    assert population.agents[1].update_step == 300


def test_a_newcomer_of_another_architecture_gets_a_cohort_and_equal_ones_share_it():
    population = Population(agents(4))
    rng = np.random.default_rng(0)
    wide = population.agents[0].spec.net_config.model_copy(update={"hidden_size": [32, 16]})
    newcomers = {slot: population.agents[0].morphed(wide, rng) for slot in (1, 3)}
    obs = rng.normal(size=(1, 20, 3)).astype(np.float32)
    expected = population.agents[0].cohort.outputs("q", obs, np.array([0]))
    population.evolve(np.array([0, 0, 2, 0]), newcomers=newcomers)
    assert [cohort.slots.tolist() for cohort in population.cohorts] == [[0, 2], [1, 3]]
    child = population.agents[3]
    assert (
        child.spec.net_config.hidden_size == [32, 16] and child.fitness == [0.0] and child.update_step == 100
    )
    assert child.cohort.outputs("q", obs, np.array([child.row])) == pytest.approx(expected, rel=1e-5)
    assert child.steps == 1003
    back = [cohort.state_dict(0)["bank"]["state"][0].clone() for cohort in population.cohorts]
    population.evolve(np.array([0, 1, 2, 2]))  # the only other one of its kind goes
    assert [cohort.slots.tolist() for cohort in population.cohorts] == [[0, 2, 3], [1]]
    for slot, weights in zip((0, 1), back, strict=True):
        agent = population.agents[slot]
        assert torch.equal(agent.cohort.bank.weights[agent.row], weights)


def test_learning_goes_on_as_if_a_child_had_always_been_there():
    population, lone = Population(agents(3)), agents(3)[2].clone()
    population.evolve(np.array([0, 2, 2]))
    batch = filled(1).sample(8, np.random.default_rng(0))
    assert population.agents[1].learn(batch) == pytest.approx(lone.learn(batch), rel=1e-5)
    other = state(population.agents[2])
    population.agents[1].learn(batch)
    assert state(population.agents[2]) == other


def test_restored_members_of_several_architectures_are_stacked_as_they_were():
    population = Population(agents(3))
    wide = MlpSpec(hidden_size=[32, 16], init="torch")
    population.evolve(
        np.arange(3), newcomers={1: population.agents[1].morphed(wide, np.random.default_rng(0))}
    )
    saved = {str(i): agent.state_dict() for i, agent in enumerate(population.agents)}
    fresh = Population(agents(3, seed=5))
    fresh.load_state_dict(saved)
    assert [c.slots.tolist() for c in fresh.cohorts] == [c.slots.tolist() for c in population.cohorts]
    assert [state(agent) for agent in fresh.agents] == [state(agent) for agent in population.agents]


def test_an_activation_changes_the_cohort_and_no_weight():
    population = Population(agents(2))
    net = population.agents[1].spec.net_config.model_copy(update={"activation": "GELU"})
    before = state(population.agents[1])
    population.evolve(
        np.arange(2), newcomers={1: population.agents[1].morphed(net, np.random.default_rng(0))}
    )
    assert len(population.cohorts) == 2 and state(population.agents[1]) == before
    assert population.agents[1].cohort.nets["q"].activation == "GELU"


def filled(pop, shared=False, steps=6, **kind):
    buffer, rng = ReplayBuffer(16, shared=shared, **kind), np.random.default_rng(0)
    for _ in range(steps):
        obs = rng.normal(size=(pop, 2, 3)).astype(np.float32)
        ends = np.zeros((pop, 2), bool)
        action, reward = rng.integers(4, size=(pop, 2)), rng.normal(size=(pop, 2)).astype(np.float32)
        buffer.add(Transition(obs, action, reward, ends, ends, obs + 1))
    return buffer


@pytest.mark.parametrize("kind", [{}, {"alpha": 0.5}, {"n_step": 3}, {"alpha": 0.5, "n_step": 3}])
def test_experience_goes_with_the_member_through_chains(kind):
    buffer = filled(4, **kind)
    members = np.arange(4)
    index = np.tile(np.arange(8), (4, 1))
    if "alpha" in kind:
        buffer.update_priorities(index, np.random.default_rng(1).random((4, 8)), members)
    draw = [buffer.sample(8, np.random.default_rng(2), members=np.array([i])) for i in range(4)]
    buffer.copy_members(np.array([3, 2, 1]), np.array([2, 1, 0]))  # each gets what the next one had before
    for member, source in ((0, 0), (1, 0), (2, 1), (3, 2)):
        again = buffer.sample(8, np.random.default_rng(2), members=np.array([member]))
        assert again.obs.tobytes() == draw[source].obs.tobytes()
        assert again.weight.tobytes() == draw[source].weight.tobytes()


def test_members_of_one_ring_hand_on_priorities_alone():
    buffer = filled(2, shared=True, alpha=0.5)
    rows = buffer.state_dict()["rows.float32.0"].copy()
    index = np.tile(np.arange(8), (2, 1))
    buffer.update_priorities(index, np.array([[1.0] * 8, [5.0] * 8]), np.arange(2))
    buffer.copy_members(np.array([0]), np.array([1]))
    state = buffer.state_dict()
    assert np.array_equal(state["rows.float32.0"], rows)
    assert np.array_equal(state["priorities.0"], state["priorities.1"])


def test_nothing_is_copied_before_the_first_transition():
    buffer = ReplayBuffer(16)
    buffer.copy_members(np.array([0]), np.array([1]))
    assert not buffer.allocated
