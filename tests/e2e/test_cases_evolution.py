"""Reported faults of other libraries in the area of evolution, as tests; ids as in `tests/cases.md`."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.evolution.evolve import Evolution
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.evolution import TournamentSpec, mutable
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.population.population import Population
from agilerl_exp.run.random import Streams

OBS, ACT = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
KINDS = ("no_mut", "arch", "params", "activation", "rl_hp")
SPEC = DQNSpec(net_config={"hidden_size": [16, 16]}, batch_size=32, normalize_obs=True, lr=1e-2)
TRAINING = TrainingSpec(pop_size=2, eps_schedule="constant")


def population() -> Population:
    made = Population([SPEC.build_algorithm(OBS, ACT, i) for i in range(2)])
    for name, value in zip(("eps_start", "eps_end", "eps_decay"), TRAINING.epsilon, strict=True):
        made.set_column(name, np.full(2, value))
    return made


def evolution_by(*kinds: str) -> Evolution:
    spec = TournamentSpec(
        probabilities={kind: float(kind in kinds) for kind in KINDS}, mutate_elite=True, tournament_size=8
    )
    return Evolution(spec, mutable(SPEC, TRAINING, spec), Streams(0, range(2)).generator)


def experience() -> ReplayBuffer:
    buffer, rng = ReplayBuffer(64), np.random.default_rng(0)
    for _ in range(64):
        obs, next_obs = rng.normal(size=(2, 2, 1, 3)).astype(np.float32)
        flags = np.zeros((2, 1), bool)
        buffer.add(
            Transition(obs, rng.integers(0, 2, (2, 1)), rng.normal(size=(2, 1)), flags, flags, next_obs)
        )
    return buffer


def weights(agent) -> list[np.ndarray]:
    return [view[agent.row].numpy().copy() for view in agent.cohort.bank.views("weights")]


@pytest.mark.parametrize("kind", KINDS)
def test_b48_every_tensor_is_trained_after_every_kind_of_mutation(kind):
    members, evolution, buffer = population(), evolution_by(kind), experience()
    rng = np.random.default_rng(1)
    for generation in range(1, 21):
        evolution.step(
            members, np.array([1.0, 0.0]), generation, lambda slot: np.zeros((1, 4, 3), np.float32)
        )
        child = members.agents[1].clone()
        for agent in (*members.agents, child):
            agent.cohort.hyper["lr"][:] = 1e-2
            before, row = weights(agent), np.array([1 if agent is child else agent.index])
            agent.learn(buffer.sample(32, rng, members=row))
            changed = [(old != new).any() for old, new in zip(before, weights(agent), strict=True)]
            assert all(changed), (generation, agent.spec.net_config, changed)


def test_b50_a_clone_shares_nothing_with_its_parent():
    members, evolution, buffer = population(), evolution_by(*KINDS), experience()
    parent = members.agents[0]
    before, spec = parent.state_dict(), parent.spec.model_dump()
    arrays = {name: value.tobytes() for name, value in before["bank"].items()}
    twins = Population([parent.clone(0), parent.clone(1)])
    rng = np.random.default_rng(1)
    for generation in range(1, 11):
        evolution.step(twins, np.array([1.0, 0.0]), generation, lambda slot: np.zeros((1, 4, 3), np.float32))
        for agent in twins.agents:
            for _ in range(5):
                agent.learn(buffer.sample(32, rng, members=np.array([agent.index])))
    after = parent.state_dict()
    assert {name: value.tobytes() for name, value in after["bank"].items()} == arrays
    assert parent.spec.model_dump() == spec
    assert {k: after[k] for k in ("hyper", "counters", "fitness", "net_config")} == {
        k: before[k] for k in ("hyper", "counters", "fitness", "net_config")
    }
    assert any(twin.state_dict()["net_config"] != before["net_config"] for twin in twins.agents)
