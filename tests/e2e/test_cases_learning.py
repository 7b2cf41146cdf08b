"""Faults that users of other libraries reported, as runs that would show them (see tests/cases.md).

Here: what is stored, what is learned from it, how it is scored, which spaces and masks work.
"""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from small import RINGS, contents, job, loop_of, metrics, ran

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.errors import SpaceError
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.training.session import Session

LEARN = {"training.max_steps": 3000, "training.evo_steps": 3000, "algo.learn_step": 2, "algo.lr": 3e-3}
LEARN |= {"algo.lr_schedule": "linear", "env.num_envs": 4}
LEARN |= {"algo.batch_size": 32, "algo.net_config.hidden_size": [32], "algo.normalize_obs": True}
LEARN |= {"training.replay_buffer.max_size": 5000, "algo.tau": 0.05}
EXPLORE = {"training.eps_schedule": "constant", "training.eps_start": 0.5}


def q_of(agent, obs):
    return agent.cohort.outputs("q", np.asarray(obs)[None], np.array([agent.row]))[0]


# What is stored: B03, B05, B09, B15, B18, B22


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize("env", ["Steps", "Scratch"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_b03_b05_rows_join_two_observations_of_one_episode(kind, env, how):
    config = {"cuts": [10]} if env == "Steps" else {"length": 10}
    settings = {"env.id": f"probe/{env}-v0", "env.config": config, "env.vectorization": how}
    settings |= {f"training.replay_buffer.{name}": on for name, on in RINGS[kind].items()}
    settings |= {"training.replay_buffer.max_size": 25, "env.num_envs": 1, "training.max_steps": 60}
    loop = ran(settings)
    batch = contents(loop.buffer)
    length = 3 if RINGS[kind].get("n_step_buffer") else 1
    for view, most in ((batch, length), (batch.one_step or batch, 1)):
        obs, next_obs = view.obs[0], view.next_obs[0]
        expected = np.minimum(obs[:, 0] + most, 10)  # the last observation of the episode, not the next one's
        assert np.array_equal(next_obs[:, 0], expected)
        assert np.array_equal(next_obs[:, 1], obs[:, 1])
        assert (view.terminated == 0).all() and (obs[:, 0] == 9).any()
    drawn = loop.buffer.drawn[-1]["batch"]
    drawn.obs[...] = drawn.next_obs[...] = -1
    assert contents(loop.buffer).obs.min() >= 0


def test_b09_double_precision_observations_train_float32_networks():
    loop = ran({"env.id": "probe/Zoo-v0", "env.config": {"kind": "double"}, "training.max_steps": 400})
    bank = loop.population.cohorts[0].bank
    assert contents(loop.buffer).obs.dtype == np.float32
    assert bank.weights.dtype == torch.float32 and torch.isfinite(bank.weights).all()
    assert loop.session.updates[-1] == [99]


def test_b15_prioritized_learning_waits_for_a_whole_batch():
    settings = {"training.replay_buffer.per_buffer": True, "algo.batch_size": 128, "env.num_envs": 1}
    watch = ran(settings | {"algo.learn_step": 1, "training.max_steps": 256}, weights=True).session
    assert watch.first_update() == 128 and watch.updates[-1] == [129]
    at = watch.env_step.index([127])
    assert all(np.array_equal(watch.weights[0], watch.weights[k]) for k in range(at + 1))
    assert not np.array_equal(watch.weights[at], watch.weights[at + 1])


@pytest.mark.parametrize("how", ["sync", "async"])
def test_b18_reset_steps_are_never_stored_counted_or_learned_from(how):
    config = {"ends": [1], "turns": 2}  # Q(s, a) = a
    settings = {"env.id": "probe/Lever-v0", "env.config": config, "training.max_steps": 2000}
    loop = ran({**LEARN, **EXPLORE, **settings, "training.evo_steps": 2000, "env.vectorization": how})
    batch = contents(loop.buffer)
    assert len(loop.buffer) == 2000 and loop.env_step.tolist() == [2000]
    assert (batch.obs[0, :, 0] == 0).all() and (batch.next_obs[0, :, 0] == 1).all()
    assert (batch.terminated == 1).all() and np.array_equal(batch.reward, batch.action)
    q = q_of(loop.population.agents[0], np.array([[0, 0], [0, 1]], np.float32))
    assert q == pytest.approx(np.array([[0, 1], [0, 1]]), abs=0.05)


@pytest.mark.parametrize("pop", [1, 2])
def test_b18_an_environment_that_resets_in_a_step_of_its_own_is_counted_by_its_real_steps(pop):
    settings = {"env.id": "CartPole-v1", "env.config": {}, "env.num_envs": 5, "training.pop_size": pop}
    settings |= {"env.vectorization": "entry_point", "training.max_steps": 1000, **EXPLORE}
    settings |= {"training.replay_buffer.max_size": 2000}
    loop = ran({**settings, "training.eps_start": 1.0, "training.evo_steps": 1000, "algo.learn_step": 100})
    assert loop.meter.episodes.min() > 20 and len(loop.session.env_step) > 1000 / 5  # some slots only reset
    for member in range(pop):
        obs, next_obs = contents(loop.buffer, member).obs[0], contents(loop.buffer, member).next_obs[0]
        assert loop.env_step[member] == len(obs) >= 1000
        assert next_obs[:, 0] == pytest.approx(obs[:, 0] + 0.02 * obs[:, 1], abs=1e-6)  # the cart moved on


def test_b22_both_flags_count_as_terminated():
    batch = contents(ran({"env.config": {"ends": [4], "cuts": [4]}}).buffer)
    assert np.array_equal(batch.terminated[0], batch.obs[0, :, 0] == 3)


# What is learned: B20, B84, B95, B97


def one_row(reward=1.0, truncated=True, next_mask=None):
    ring = ReplayBuffer(1, gamma=0.9)
    obs, yes, no = np.full((1, 1, 2), 9, np.float32), np.ones((1, 1), bool), np.zeros((1, 1), bool)
    action, reward = np.zeros((1, 1), np.int64), np.full((1, 1), reward, np.float32)
    ring.add(Transition(obs, action, reward, no, yes if truncated else no, obs + 1, next_mask))
    return ring.sample(1, np.random.default_rng(0))


def constant(agent, role, values):
    """Let a network give the same values everywhere."""
    views = [view[agent.row] for view in agent.cohort.bank.views(role)]
    for view in views:
        view.zero_()
    views[-1].copy_(torch.tensor(values, dtype=torch.float32))


def agent_of(actions, **fields):
    spec = DQNSpec(batch_size=1, net_config={"hidden_size": [8]}, **fields)
    return spec.build_algorithm(spaces.Box(-20, 20, (2,), np.float32), spaces.Discrete(actions), 0)


def test_b20_a_time_limit_does_not_stop_the_bootstrap():
    agent = agent_of(2)
    constant(agent, "weights", [0.0, 0.0])
    constant(agent, "target", [10.0, 10.0])
    agent.learn(one_row())
    assert agent.td_error.tolist() == [[-10.0]]  # 0 - (1 + 0.9 * 10)


def test_b20_time_limited_episodes_learn_the_value_of_going_on():
    # The last observation of an episode is also one inside it: its value is learned.
    settings = {"env.id": "probe/Clock-v0", "env.config": {"cuts": [10], "hours": 5}, "algo.gamma": 0.9}
    settings |= {"training.max_steps": 5000, "training.evo_steps": 5000, "algo.normalize_obs": False}
    loop = ran({**LEARN, **EXPLORE, **settings})
    q = q_of(loop.population.agents[0], range(5)).max(1)
    assert q == pytest.approx(np.full(5, 10.0), abs=0.5)  # 6.5 at most where a cut counts as an end


def test_b84_actions_that_do_not_start_at_zero():
    config = {"cuts": [5], "turns": 2}  # the environment refuses all but 5, 6 and 7, and pays the action
    loop = ran({**LEARN, **EXPLORE, "env.id": "probe/Offset-v0", "env.config": config, "algo.gamma": 0.5})
    assert set(contents(loop.buffer).action[0].tolist()) == {0, 1, 2}
    assert loop.session.returns[-1].tolist() == [[35.0]]
    assert loop.population.agents[0].get_action(np.zeros((1, 2), np.float32)).tolist() == [7]


@pytest.mark.parametrize("kind", ["standard", "per_n_step"])
def test_b95_illegal_actions_are_never_tried_and_the_best_legal_ones_are_found(kind):
    settings = {f"training.replay_buffer.{name}": on for name, on in RINGS[kind].items()}
    settings |= {"env.id": "probe/Pair-v0", "env.config": {"cuts": [7]}, "algo.gamma": 0.5}
    settings |= {"training.eval_loop": 2, "algo.normalize_obs": False}
    loop = ran({**LEARN, **EXPLORE, **settings})
    assert (loop.session.returns[-1] > 6).all()  # 7 at most; an illegal action would have ended the run
    batch = contents(loop.buffer)
    legal = (batch.next_obs[0, :, None] + [0, 1]) % 5  # what the target may choose from
    assert np.array_equal(batch.next_mask[0].argsort(axis=1)[:, -2:], np.sort(legal, axis=1))
    assert (batch.next_mask.sum(-1) == 2).all()


@pytest.mark.parametrize("double", [False, True])
def test_b97_the_target_takes_the_best_legal_next_action(double):
    errors = []
    for illegal in (3.0, 1e6):
        agent = agent_of(3, double=double)
        constant(agent, "weights", [0.0, 1.0, illegal])
        constant(agent, "target", [1.0, 2.0, illegal])
        agent.learn(one_row(next_mask=np.array([[[1, 1, 0]]], np.uint8)))
        errors.append(agent.td_error.tolist())
    assert errors[0] == errors[1] == [[pytest.approx(-(1 + 0.9 * 2))]]


# How it is scored: B26, B28, B128


def test_b26_training_scores_are_those_of_whole_episodes(tmp_path):
    settings = {"env.config": {"cuts": [3]}, "training.max_steps": 120, "training.evo_steps": 120}
    for how in ("sync", "async"):
        rows = metrics(job(tmp_path / how, {**settings, "env.vectorization": how}), "train")
        assert {row["score"] for row in rows} == {3.0}
        assert rows[-1]["episodes"] == 40


def test_b28_exploring_is_no_side_effect_of_a_mode():
    settings = {**EXPLORE, "training.eps_start": 1.0, "training.max_steps": 6000, "training.evo_steps": 3000}
    settings |= {"env.id": "probe/Offset-v0", "training.replay_buffer.max_size": 6000, "algo.learn_step": 50}
    loop = loop_of({**settings, "env.num_envs": 10})
    loop.run()
    share = np.bincount(contents(loop.buffer).action[0]) / 6000
    assert share.shape == (3,) and (share > 0.30).all() and (share < 0.37).all()
    before = loop.population.agents[0].state_dict()["bank"]["weights"].copy()
    first, again = (loop.evaluator(loop.population, 0)[0].tolist() for _ in range(2))
    assert first == again
    assert np.array_equal(before, loop.population.agents[0].state_dict()["bank"]["weights"])


def test_b28_evaluating_more_often_changes_nothing_that_is_learned():
    settings = {"env.id": "probe/Noisy-v0", "training.pop_size": 2, "training.replay_buffer.per_buffer": True}
    often, once = (ran(settings | {"training.evo_steps": every}) for every in (8, 64))
    assert len(often.session.returns) == 8 and len(once.session.returns) == 1
    banks = [loop.population.cohorts[0].bank.weights.numpy() for loop in (often, once)]
    assert np.array_equal(*banks)
    assert np.array_equal(contents(often.buffer).obs, contents(once.buffer).obs)


def test_b128_a_saved_agent_loads_with_one_call_and_acts_as_before(tmp_path):
    folder = job(tmp_path / "job", {"algo.normalize_obs": True, "training.pop_size": 2})
    observations = np.random.default_rng(0).normal(3, 2, (50, 2)).astype(np.float32)
    loop = loop_of({"algo.normalize_obs": True, "training.pop_size": 2})
    spec = loop.population.agents[0].spec
    where = (loop.envs.observation_space, loop.envs.action_space)
    best = spec.build_algorithm(*where, 0, str(folder / "checkpoints/best"))
    member = spec.build_algorithm(*where, 1, str(folder / "checkpoints/step-64"))
    best.save_checkpoint(tmp_path / "agent")
    again = spec.build_algorithm(*where, 7, str(tmp_path / "agent"))
    assert (again.get_action(observations) == best.get_action(observations)).all()
    assert np.array_equal(q_of(again, observations), q_of(best, observations))
    assert not np.array_equal(q_of(member, observations), q_of(best, observations)) and member.steps == 64


# Seeding: B32


def test_b32_every_copy_of_every_member_and_run_starts_from_a_seed_of_its_own():
    settings = {"env.id": "probe/Echo-v0", "env.config": {"length": 4}, "env.num_envs": 4}
    starts = {}
    for seed in (1, 2):
        loop = ran(settings | {"seed": seed, "training.pop_size": 2, "training.max_steps": 48})
        for member in range(2):
            batch = contents(loop.buffer, member)
            assert (batch.obs[0, :, 1] == 1).all()  # only the first reset was seeded
            starts[seed, member] = set(batch.obs[0, :, 0].tolist())
            assert len(starts[seed, member]) == 12  # 4 copies, 3 episodes each: no draw comes twice
    assert len(set().union(*starts.values())) == 48


def test_b32_evaluations_start_where_neither_training_nor_an_earlier_evaluation_did():
    settings = {"env.id": "probe/Echo-v0", "env.config": {"length": 4}, "env.num_envs": 4}
    loop = loop_of(settings | {"training.pop_size": 2})
    starts = list(loop.envs.reset()[0][:, :, 0])
    for member in range(2):
        for generation in range(3):
            block = loop.evaluator.make(member, generation, 5)
            starts.append(block.reset()[0][:, 0])
            block.close()
    loop.envs.close()
    assert len(np.unique(np.concatenate(starts))) == 2 * 4 + 2 * 3 * 5


# Spaces: B90, B92


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        ("box", 3),
        ("scalar", 1),
        ("double", 2),
        ("ints", 2),
        ("discrete", 4),
        ("multidiscrete", 7),
        ("multidiscrete2d", 14),
        ("multibinary", 5),
        ("multibinary2d", 6),
        ("tuple", 45),
        ("nested", 8),
    ],
)
def test_b90_b92_every_kind_of_observation_trains(kind, width):
    loop = ran({"env.id": "probe/Zoo-v0", "env.config": {"kind": kind}, "training.max_steps": 200})
    agent = loop.population.agents[0]
    assert agent.cohort.nets["q"].in_width == width
    assert loop.session.updates[-1] == [49]
    assert agent.get_action(loop.envs.observation_space.sample()) in loop.envs.action_space


@pytest.mark.parametrize("ring", RINGS)
def test_b92_nested_observations_come_back_from_every_ring_as_they_went_in(ring):
    settings = {f"training.replay_buffer.{name}": on for name, on in RINGS[ring].items()}
    loop = ran({**settings, "env.id": "probe/Zoo-v0", "env.config": {"kind": "nested"}})
    batch, space = contents(loop.buffer), loop.envs.observation_space
    for tree in (batch.obs, batch.next_obs):
        for row in range(int(loop.buffer.sizes[0])):
            one = {"z": {name: leaf[0, row] for name, leaf in tree["z"].items()}, "a": tree["a"][0, row]}
            one["z"]["c"] = one["z"]["c"].astype(np.int8)
            assert space.contains(one | {"a": np.int64(one["a"])})


def test_b92_blackjack():
    loop = ran({"env.id": "Blackjack-v1", "env.config": {}, "training.max_steps": 2000})
    assert loop.population.agents[0].cohort.nets["q"].in_width == 45
    assert loop.env_step.tolist() == [2000]


# Images: B93


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    ("shape", "planes"),
    [
        ([3, 12, 16], (3, 12, 16)),
        ([12, 16, 3], (3, 12, 16)),
        ([12, 16, 1], (1, 12, 16)),
        ([4, 84, 84], (4, 84, 84)),
    ],
)
def test_b93_the_convolutions_see_channels_height_width(shape, planes, alone, monkeypatch):
    seen, real = [], torch.nn.functional.conv2d

    def conv2d(x, weight, *args, **options):
        seen.append(x)
        return real(x, weight, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    net = {"channels": [8], "kernel_size": [3], "stride": [2], "arch": "cnn" if alone else "multi_input"}
    settings = {"env.id": "probe/Camera-v0", "env.config": {"shape": shape, "alone": alone}}
    loop = loop_of(settings | {"algo.net_config": net, "training.max_steps": 32})
    loop.run()
    loop.envs.close()
    assert {tuple(x.shape[1:]) for x in seen} == {planes}
    levels = np.unique(np.concatenate([x.flatten().numpy() for x in seen]))
    assert levels == pytest.approx(np.arange(7) / 255)  # pixels are the time, 0 to 6


def test_b93_an_image_that_may_be_read_both_ways_is_refused_unless_it_is_told():
    settings = {"env.id": "probe/Camera-v0", "env.config": {"shape": [3, 5, 3]}, "algo.net_config": {}}
    with pytest.raises(SpaceError, match=r"^algo.net_config.channels_last=null: .* may be read both ways"):
        loop_of(settings)
    told = {"arch": "multi_input", "channels_last": False, "channels": [8]}
    assert ran(settings | {"algo.net_config": told}).env_step.tolist() == [64]


# Memory: B121


class _Memory(Session):
    """Resident bytes at two moments."""

    def __init__(self):
        self.at = {}

    def at_boundary(self, loop):
        for step in (20_000, 60_000):
            if step not in self.at and loop.env_step[0] >= step:
                self.at[step] = psutil.Process(os.getpid()).memory_info().rss


def test_b121_memory_stays_flat_once_the_ring_is_full():
    settings = {"training.max_steps": 60_000, "training.evo_steps": 30_000, "env.num_envs": 16}
    settings |= {"training.replay_buffer.max_size": 2500, "algo.learn_step": 64, "env.id": "CartPole-v1"}
    loop = loop_of({**settings, "env.config": {}, "training.replay_buffer.per_buffer": True})
    loop.session, loop.buffer = _Memory(), loop.buffer._buffer
    loop.run()
    loop.envs.close()
    assert loop.session.at[60_000] - loop.session.at[20_000] < 5e6
    assert len(loop.buffer) == 2500
