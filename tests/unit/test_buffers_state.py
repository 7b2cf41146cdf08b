"""Saving and loading a buffer: everything that later draws depend on comes back bit for bit."""

from __future__ import annotations

import copy
import json
from dataclasses import fields

import numpy as np
import pytest

from agilerl_exp.buffers import Batch, ReplayBuffer, Transition, join
from agilerl_exp.errors import CheckpointError

KINDS = {
    "standard": {},
    "per": {"alpha": 0.6},
    "n_step": {"n_step": 3},
    "per_n_step": {"n_step": 3, "alpha": 0.6, "keep_one_step": True},
    "shared": {"n_step": 3, "alpha": 0.6, "shared": True},
}


def drive(buffer: ReplayBuffer, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(steps):
        obs = {"x": rng.random((2, 3, 4)), "image": rng.integers(0, 255, (2, 3, 5, 5), dtype=np.uint8)}
        ends = rng.random((2, 2, 3)) < 0.05
        mask = rng.integers(0, 2, (2, 3, 2))
        valid = rng.random((2, 3)) > 0.05
        action = rng.integers(0, 2, (2, 3))
        buffer.add(Transition(obs, action, rng.random((2, 3)), ends[0], ends[1], obs, mask, valid))
        if i % 4 == 3 and buffer.sizes.min() > 0:
            batch = buffer.sample(16, rng)
            buffer.update_priorities(batch.index, rng.standard_normal((2, 16)))


def assert_equal(a: Batch, b: Batch) -> None:
    for field in fields(Batch):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, Batch):
            assert_equal(x, y)
        elif isinstance(x, dict):
            assert {k: v.tobytes() for k, v in x.items()} == {k: v.tobytes() for k, v in y.items()}
        else:
            assert (x is None and y is None) or x.tobytes() == y.tobytes(), field.name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 20, 333])
def test_a_loaded_buffer_draws_and_goes_on_bit_for_bit(kind, steps):
    old, new = (ReplayBuffer(200, **KINDS[kind]) for _ in range(2))
    drive(old, steps, 0)
    new.load_state_dict(old.state_dict())
    if old.sizes.min() > 0:
        rngs = [np.random.default_rng(1) for _ in range(2)]
        for _ in range(100):
            assert_equal(old.sample(32, rngs[0]), new.sample(32, rngs[1]))
    for buffer in (old, new):
        drive(buffer, 50, 2)
        buffer.flush()
    assert_equal(*(buffer.sample(64, np.random.default_rng(3)) for buffer in (old, new)))
    states = [buffer.state_dict() for buffer in (old, new)]
    for name, value in states[0].items():
        other = states[1][name]
        assert value.tobytes() == other.tobytes() if isinstance(value, np.ndarray) else value == other, name


def test_a_state_is_arrays_and_plain_json_of_filled_rows_only():
    buffer = ReplayBuffer(1000, alpha=0.6, n_step=3)
    drive(buffer, 20, 0)
    state = buffer.state_dict()
    arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in state.items() if name not in arrays}
    assert json.loads(json.dumps(rest)) == rest
    assert all(array.flags.c_contiguous for array in arrays.values())
    assert (
        sum(array.nbytes for name, array in arrays.items() if name.startswith("rows.")) < buffer.nbytes / 10
    )
    for member, size in enumerate(buffer.sizes):
        assert len(state[f"rows.float32.{member}"]) == len(state[f"priorities.{member}"]) == size


def test_the_order_of_keys_survives_a_json_file_with_sorted_keys():
    old, new = ReplayBuffer(50), ReplayBuffer(50)
    drive(old, 5, 0)
    state = old.state_dict()
    text = json.dumps({k: v for k, v in state.items() if not isinstance(v, np.ndarray)}, sort_keys=True)
    new.load_state_dict({**state, **json.loads(text)})
    assert_equal(*(buffer.sample(8, np.random.default_rng(0)) for buffer in (old, new)))
    assert list(new.sample(8, np.random.default_rng(0)).obs) == ["x", "image"]


def test_rows_written_before_a_save_keep_their_place_after_it():
    buffer = ReplayBuffer(1000)
    drive(buffer, 20, 0)
    before = copy.deepcopy(buffer.state_dict())
    drive(buffer, 20, 1)
    after = buffer.state_dict()
    for name in ("rows.float32.0", "rows.uint8.1", "rows.int32.0"):
        assert after[name][: len(before[name])].tobytes() == before[name].tobytes()


def test_windows_that_are_out_of_step_are_saved_too():
    def step(t, members=2):
        no = np.zeros((members, 1), bool)
        value = np.full((members, 1), float(t))
        return Transition(value, no.astype(int), value, no, no, value + 1)

    old, new = (ReplayBuffer(20, n_step=3, gamma=0.5) for _ in range(2))
    old.add(step(0))
    old.add(step(1, members=1), np.array([0]))
    new.load_state_dict(old.state_dict())
    for buffer in (old, new):
        for t in (2, 3):
            buffer.add(step(t))
        batch = buffer.sample(40, np.random.default_rng(0))
        rows = [set(zip(batch.obs[m].tolist(), batch.reward[m].tolist(), strict=True)) for m in (0, 1)]
        assert rows == [{(0, 0 + 0.5 + 0.5), (1, 1 + 1 + 0.75)}, {(0, 0 + 1 + 0.75)}]
    assert old.state_dict()["windows.head"].tolist() == new.state_dict()["windows.head"].tolist()


def test_an_empty_buffer_saves_and_loads():
    new = ReplayBuffer(8, alpha=0.5)
    new.load_state_dict(ReplayBuffer(8, alpha=0.5).state_dict())
    assert not new.allocated and len(new) == 0
    drive(new, 5, 0)
    new.load_state_dict(ReplayBuffer(8, alpha=0.5).state_dict())
    assert not new.allocated and len(new) == 0 and new.sizes.shape == (0,)


def test_a_pair_is_saved_by_its_memory():
    pairs = [
        (ReplayBuffer(200, alpha=0.6), ReplayBuffer(200, n_step=3, keep_one_step=True)) for _ in range(2)
    ]
    old, new = (join(*pair) for pair in pairs)
    drive(old, 50, 0)
    new.load_state_dict(old.state_dict())
    assert len(pairs[1][1]) == len(old)
    assert_equal(*(buffer.sample(32, np.random.default_rng(0)) for buffer in (old, new)))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("max_size=200, this run 100", {"max_size": 100, "alpha": 0.6}),
        ("n_step=1, this run 3", {"max_size": 200, "alpha": 0.6, "n_step": 3}),
        ("prioritized=True, this run False", {"max_size": 200}),
        ("shared=False, this run True", {"max_size": 200, "alpha": 0.6, "shared": True}),
    ],
)
def test_a_state_of_other_settings_is_refused(name, settings):
    old = ReplayBuffer(200, alpha=0.6)
    drive(old, 5, 0)
    with pytest.raises(CheckpointError, match=name):
        ReplayBuffer(**settings).load_state_dict(old.state_dict())
