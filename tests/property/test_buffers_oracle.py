"""Rows of a buffer against a plain Python oracle: random episodes, reset slots, absent members, resumes."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl_exp.buffers import Batch, ReplayBuffer, Transition, join
from agilerl_exp.buffers.sum_tree import SumTrees, compiled_loops

GAMMA = 0.5  # with small integer rewards every return is exact in float32


@dataclass
class Oracle:
    """Rows (obs, reward, next_obs, terminated, discount, one-step next_obs) of each ring since the start."""

    n_step: int
    rings: dict[int, list] = field(default_factory=dict)
    lanes: dict[tuple[int, int], list] = field(default_factory=dict)
    shared: bool = False

    def step(self, member, env, obs, reward, next_obs, terminated, truncated):
        steps = self.lanes.setdefault((member, env), [])
        steps.append((obs, reward, next_obs, terminated))
        if terminated or truncated:
            self.flush(member, env)
        elif len(steps) == self.n_step:
            self.emit(member, steps)
            steps.pop(0)

    def flush(self, member, env):
        steps = self.lanes.get((member, env), [])
        while steps:
            self.emit(member, steps)
            steps.pop(0)

    def emit(self, member, steps):
        reward = sum(GAMMA**k * step[1] for k, step in enumerate(steps))
        last = steps[-1]
        row = (steps[0][0], reward, last[2], float(last[3]), GAMMA ** len(steps), steps[0][2])
        self.rings.setdefault(0 if self.shared else member, []).append(row)


class EveryRow:
    """A source of numbers that makes a uniform draw visit positions 0, 1, 2, ... of each ring."""

    def __init__(self, sizes: np.ndarray) -> None:
        self.sizes = sizes

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return (np.arange(shape[1])[None] + 0.5) / self.sizes[:, None]


def rows_of(buffer: ReplayBuffer, member: int) -> list:
    size = int(buffer.sizes[member])
    batch = buffer.sample(size, EveryRow(np.array([size])), members=np.array([member]))
    one = batch.one_step or batch
    columns = (batch.obs, batch.reward, batch.next_obs, batch.terminated, batch.discount, one.next_obs)
    return [tuple(float(v) for v in row) for row in zip(*(c[0] for c in columns), strict=True)]


def in_ring(rows: list, capacity: int) -> list:
    """Where a ring of `capacity` that saw `rows` has them."""
    ring = rows[:capacity]
    for k in range(capacity, len(rows)):
        ring[k % capacity] = rows[k]
    return ring


@st.composite
def plans(draw):
    P, N = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        "P": P,
        "N": N,
        "n_step": draw(st.integers(1, 4)),
        "capacity": draw(st.integers(1, 17)),
        "shared": draw(st.booleans()),
        "calls": draw(st.integers(1, 30)),
        "seed": draw(st.integers(0, 2**16)),
        "end": draw(st.sampled_from([0.0, 0.15, 0.5])),
        "invalid": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "absent": draw(st.sampled_from([0.0, 0.3])),
    }


def run(plan: dict, buffer: ReplayBuffer) -> tuple[Oracle, ReplayBuffer]:
    """Drive a buffer and the oracle with the same random steps, flushes and save-and-load cycles."""
    rng = np.random.default_rng(plan["seed"])
    P, N = plan["P"], plan["N"]
    oracle = Oracle(plan["n_step"], shared=plan["shared"])
    ids = iter(range(1, 1 << 20))
    for call in range(plan["calls"]):
        members = np.arange(P)
        if call and rng.random() < plan["absent"]:
            members = rng.permutation(P)[: rng.integers(1, P + 1)]
        shape = (len(members), N)
        obs = np.array([next(ids) for _ in range(len(members) * N)], np.float32).reshape(shape)
        reward = rng.integers(-8, 8, shape).astype(np.float32)
        terminated, truncated = rng.random(shape) < plan["end"] / 2, rng.random(shape) < plan["end"] / 2
        valid = rng.random(shape) >= plan["invalid"]
        action = obs.astype(np.int64)
        buffer.add(
            Transition(obs, action, reward, terminated, truncated, obs + 0.5, valid=valid),
            members if call else None,
        )
        for r, e in np.argwhere(valid):
            step = (obs[r, e], reward[r, e], obs[r, e] + 0.5, terminated[r, e], truncated[r, e])
            oracle.step(members[r], e, *step)
        if rng.random() < 0.1:
            buffer.flush(members)
            for member in members:
                for e in range(N):
                    oracle.flush(member, e)
        if rng.random() < 0.1:
            state = copy.deepcopy(buffer.state_dict())
            buffer = make(plan)
            buffer.load_state_dict(state)
    return oracle, buffer


def make(plan: dict) -> ReplayBuffer:
    return ReplayBuffer(
        plan["capacity"],
        n_step=plan["n_step"],
        keep_one_step=True,
        gamma=GAMMA,
        shared=plan["shared"],
    )


@given(plans())
def test_rows_equal_the_oracle_in_content_and_order(plan):
    oracle, buffer = run(plan, make(plan))
    for member in range(plan["P"]):
        expected = oracle.rings.get(0 if plan["shared"] else member, [])
        assert buffer.sizes[member] == min(len(expected), plan["capacity"])
        if expected:
            assert rows_of(buffer, member) == in_ring(expected, plan["capacity"])


@given(plans(), st.integers(1, 9))
def test_a_prioritized_pair_holds_the_rows_of_its_companion(plan, batch_size):
    memory = ReplayBuffer(plan["capacity"], alpha=0.6, gamma=GAMMA, shared=plan["shared"])
    buffer = join(memory, make(plan))
    plan = plan | {"calls": max(plan["calls"], 2 * plan["n_step"]), "absent": 0.0, "invalid": 0.0}
    oracle, buffer = run_without_resume(plan, buffer)
    if buffer.sizes.min() < 1:
        return
    batch = buffer.sample(batch_size, np.random.default_rng(1))
    for member in range(plan["P"]):
        ring = in_ring(oracle.rings[0 if plan["shared"] else member], plan["capacity"])
        drawn = [ring[i] for i in batch.index[member]]
        assert batch.obs[member].tolist() == [row[0] for row in drawn]
        assert batch.reward[member].tolist() == [row[1] for row in drawn]
        assert batch.one_step.next_obs[member].tolist() == [row[5] for row in drawn]


def run_without_resume(plan: dict, buffer: ReplayBuffer) -> tuple[Oracle, ReplayBuffer]:
    rng = np.random.default_rng(plan["seed"])
    shape = (plan["P"], plan["N"])
    oracle = Oracle(plan["n_step"], shared=plan["shared"])
    for call in range(plan["calls"]):
        obs = (np.arange(np.prod(shape), dtype=np.float32) + 1000 * call).reshape(shape)
        reward = rng.integers(-8, 8, shape).astype(np.float32)
        terminated, truncated = rng.random(shape) < plan["end"] / 2, rng.random(shape) < plan["end"] / 2
        buffer.add(Transition(obs, obs.astype(int), reward, terminated, truncated, obs + 0.5))
        for r, e in np.ndindex(shape):
            oracle.step(r, e, obs[r, e], reward[r, e], obs[r, e] + 0.5, terminated[r, e], truncated[r, e])
    return oracle, buffer


@given(
    capacity=st.integers(1, 70),
    trees=st.integers(1, 3),
    rounds=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2**16)), min_size=1, max_size=6),
)
def test_compiled_and_numpy_trees_agree_bit_for_bit(capacity, trees, rounds):
    if compiled_loops() is None:
        pytest.skip("no C compiler here")
    compiled, plain = SumTrees(trees, capacity, True), SumTrees(trees, capacity, False)
    for count, seed in rounds:
        rng = np.random.default_rng(seed)
        row, leaf = rng.integers(0, trees, count), rng.integers(0, capacity, count)
        value = rng.random(count) * 10.0 ** rng.integers(-9, 9, count)
        for tree in (compiled, plain):
            tree.set(row, leaf, value)
        assert compiled.nodes.tobytes() == plain.nodes.tobytes()
        target = rng.random(count) * compiled.totals[row] * (1 + 1e-12)
        for mine, theirs in zip(compiled.find(row, target), plain.find(row, target), strict=True):
            assert mine.tobytes() == theirs.tobytes()


@given(
    values=st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=40).filter(
        lambda v: sum(v) > 0
    ),
    numbers=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_a_tree_finds_the_leaf_of_the_running_sum(values, numbers):
    tree = SumTrees(1, len(values), False)
    tree.load(0, np.array(values))
    target = np.array(numbers) * tree.totals[0]
    leaf, value = tree.find(np.zeros(len(target), np.int64), target)
    ends = np.cumsum(values)
    slack = 1e-9 * ends[-1]
    assert value.tolist() == [values[i] for i in leaf]
    assert (value > 0).all()
    assert (target < ends[leaf] + slack).all() and (target >= ends[leaf] - value - slack).all()


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_padding_is_marked_and_the_rest_does_not_depend_on_it(sizes, seed):
    P = len(sizes)
    buffer = ReplayBuffer(30, alpha=0.7)
    rng = np.random.default_rng(seed)
    for _ in range(9):
        obs = rng.random((P, 4, 2))
        zero = np.zeros((P, 4), bool)
        buffer.add(Transition(obs, zero.astype(int), obs[..., 0], zero, zero, obs))
    buffer.update_priorities(np.tile(np.arange(30), (P, 1)), rng.random((P, 30)))
    batch = buffer.sample(np.array(sizes), Keyed(seed))
    for member, size in enumerate(sizes):
        assert (batch.index[member, size:] == -1).all() and (batch.weight[member, size:] == 0).all()
        alone = buffer.sample(size, Keyed(seed + member), members=np.array([member]))
        assert_same(batch, member, size, alone)


class Keyed:
    """Row i of a block depends on its number only, and number j of a row not on the width."""

    def __init__(self, key: int) -> None:
        self.key = key

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.stack([np.random.default_rng(self.key + i).random(shape[1]) for i in range(shape[0])])


def assert_same(batch: Batch, member: int, size: int, alone: Batch) -> None:
    for name in ("obs", "action", "reward", "terminated", "next_obs", "discount", "index", "weight"):
        assert getattr(batch, name)[member, :size].tobytes() == getattr(alone, name)[0].tobytes(), name
