"""What a uniform one-step buffer stores and hands back."""

from __future__ import annotations

import numpy as np
import pytest

from agilerl_exp.buffers import ReplayBuffer, Transition, store
from agilerl_exp.errors import ConfigError, SpaceError

NEXT = np.array([1, 0])  # from one [t, episode] to the next


def step(
    obs, next_obs=None, *, reward=None, terminated=None, truncated=None, action=None, **rest
) -> Transition:
    shape = np.shape(reward) if reward is not None else np.shape(obs)[:2]
    flags = np.zeros(shape, bool)
    return Transition(
        obs=obs,
        action=np.zeros(shape, int) if action is None else action,
        reward=np.zeros(shape) if reward is None else reward,
        terminated=flags if terminated is None else terminated,
        truncated=flags if truncated is None else truncated,
        next_obs=obs if next_obs is None else next_obs,
        **rest,
    )


def ids(*shape: int, start: int = 0) -> np.ndarray:
    return (np.arange(np.prod(shape)) + start).reshape(shape).astype(np.float32)


class Visit:
    """Numbers that make a uniform draw visit every row of equally filled rings, oldest position first."""

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.tile((np.arange(shape[1]) + 0.5) / shape[1], (shape[0], 1))


def every_row(buffer: ReplayBuffer, **kwargs):
    return buffer.sample(int(buffer.sizes[0]), Visit(), **kwargs)


def counted_episodes(num_envs: int, steps: int, length: int):
    """Vector steps of envs that show [t, episode] and are cut after `length` steps."""
    for i in range(steps):
        t, episode = i % length, i // length
        obs = np.tile(np.array([t, episode], np.float32), (1, num_envs, 1))
        truncated = np.full((1, num_envs), t == length - 1)
        yield step(obs, obs + NEXT, reward=np.full((1, num_envs), float(i)), truncated=truncated)


def test_batch_of_two_members_by_hand():
    buffer = ReplayBuffer(4, gamma=0.9)
    assert not buffer.allocated and len(buffer) == 0 and buffer.sizes.shape == (0,)
    buffer.add(
        step(
            ids(2, 2),
            ids(2, 2, start=100),
            reward=np.array([[1.0, 2.0], [3.0, 4.0]]),
            terminated=np.array([[True, False], [False, True]]),
            action=np.array([[0, 1], [2, 3]]),
            next_mask=np.ones((2, 2, 3), np.int8),
        )
    )
    batch = every_row(buffer, gamma=np.array([0.9, 0.5]))
    assert buffer.allocated and len(buffer) == 4 and buffer.sizes.tolist() == [2, 2]
    assert batch.obs.tolist() == [[0, 1], [2, 3]]
    assert batch.next_obs.tolist() == [[100, 101], [102, 103]]
    assert batch.action.tolist() == [[0, 1], [2, 3]] and batch.action.dtype == np.int64
    assert batch.reward.tolist() == [[1, 2], [3, 4]] and batch.reward.dtype == np.float32
    assert batch.terminated.tolist() == [[1, 0], [0, 1]] and batch.terminated.dtype == np.float32
    np.testing.assert_array_equal(batch.discount, np.array([[0.9, 0.9], [0.5, 0.5]], np.float32))
    assert batch.next_mask.tolist() == [[[1, 1, 1]] * 2] * 2 and batch.next_mask.dtype == np.uint8
    assert batch.index.tolist() == [[0, 1], [0, 1]]
    assert batch.weight.tolist() == [[1, 1], [1, 1]] and batch.one_step is None


def test_a_ring_smaller_than_an_odd_number_of_envs_keeps_the_newest_rows():
    buffer = ReplayBuffer(100)
    for t in counted_episodes(7, 150, 9):
        buffer.add(t)
    assert len(buffer) == 100
    newest = sorted(every_row(buffer).reward[0].tolist())
    assert newest == sorted([float(i) for i in range(150) for _ in range(7)][-100:])


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
def test_a_step_of_more_envs_than_rows_leaves_the_last_envs(capacity):
    buffer = ReplayBuffer(capacity)
    for start in (0, 10):
        buffer.add(step(ids(2, 5, start=start)))
    batch = every_row(buffer)
    assert sorted(batch.obs[0].tolist()) == list(range(10, 15))[-capacity:]
    assert sorted(batch.obs[1].tolist()) == list(range(15, 20))[-capacity:]


def test_the_observation_after_a_cut_is_the_last_of_its_episode():
    buffer = ReplayBuffer(25)
    for t in counted_episodes(1, 60, 10):
        buffer.add(t)
    batch = every_row(buffer)
    np.testing.assert_array_equal(batch.next_obs, batch.obs + NEXT)
    cut = batch.obs[0, :, 0] == 9
    assert cut.sum() == 3 and (batch.next_obs[0, cut, 0] == 10).all() and (batch.terminated == 0).all()


def test_reset_slots_are_neither_stored_nor_counted():
    buffer = ReplayBuffer(8)
    buffer.add(step(ids(2, 3), valid=np.array([[True, False, True], [False, False, True]])))
    buffer.add(step(ids(2, 3, start=6), valid=np.zeros((2, 3), bool)))
    assert buffer.sizes.tolist() == [2, 1]
    first = buffer.sample(2, Visit(), members=np.array([0]))
    assert first.obs.tolist() == [[0, 2]]
    assert buffer.sample(1, Visit(), members=np.array([1])).obs.tolist() == [[5]]


def test_members_name_the_rings_of_the_leading_axis():
    buffer = ReplayBuffer(8)
    buffer.add(step(ids(3, 1)))
    buffer.add(step(ids(2, 1, start=10)), members=np.array([2, 0]))
    assert buffer.sizes.tolist() == [2, 1, 2]
    batch = buffer.sample(2, Visit(), members=np.array([0, 2]))
    assert batch.obs.tolist() == [[0, 11], [2, 10]]


def test_a_shared_ring_is_fed_and_drawn_by_all():
    buffer = ReplayBuffer(5, shared=True)
    buffer.add(step(ids(2, 2)))
    assert len(buffer) == 4 and buffer.sizes.tolist() == [4, 4]
    batch = every_row(buffer, gamma=np.array([0.5, 0.25]))
    assert batch.obs.tolist() == [[0, 1, 2, 3]] * 2
    assert batch.discount[:, 0].tolist() == [0.5, 0.25]
    buffer.add(step(ids(2, 2, start=4)))
    assert every_row(buffer).obs[0].tolist() == [5, 6, 7, 3, 4]


def test_observation_trees_keep_structure_shapes_and_kinds():
    obs = {
        "z": np.arange(12, dtype=np.float64).reshape(1, 2, 2, 3),
        "a": (np.array([[1, 0]], bool), np.array([[[7, 8], [9, 10]]], np.int64)),
        "img": np.arange(16, dtype=np.uint8).reshape(1, 2, 2, 2, 2),
    }
    buffer = ReplayBuffer(3)
    buffer.add(step(obs, reward=np.zeros((1, 2)), action=np.array([[[0.5, -0.5], [0.25, 1.0]]])))
    batch = every_row(buffer)
    assert list(batch.obs) == ["z", "a", "img"] and isinstance(batch.obs["a"], tuple)
    for got, put, dtype in (
        (batch.obs["z"], obs["z"], np.float32),
        (batch.obs["a"][0], obs["a"][0], np.uint8),
        (batch.obs["a"][1], obs["a"][1], np.int32),
        (batch.next_obs["img"], obs["img"], np.uint8),
    ):
        assert got.dtype == dtype and got.shape == put.shape
        np.testing.assert_array_equal(got, put)
    assert batch.action.dtype == np.float32
    assert batch.action.tolist() == [[[0.5, -0.5], [0.25, 1.0]]]


def test_images_take_one_byte_a_pixel():
    shape = (84, 84, 4)
    obs = {
        "cam": np.zeros((1, 1, *shape), np.uint8),
        "vec": np.zeros((1, 1, 3)),
        "mode": np.zeros((1, 1), int),
    }
    buffer = ReplayBuffer(1000)
    buffer.add(step(obs, reward=np.zeros((1, 1))))
    assert buffer.nbytes <= 2 * 1000 * 84 * 84 * 4 * 1.02 + 1e6


@pytest.mark.parametrize("n_step", [1, 3])
def test_neither_the_env_nor_a_batch_shares_memory_with_the_ring(n_step):
    buffer = ReplayBuffer(64, n_step=n_step)
    reused = np.zeros((1, 1, 2), np.float32)
    for i in range(64):
        t = i % 8
        reused[:] = (t, i // 8)
        transition = step(reused, reused + NEXT, truncated=np.array([[t == 7]]))
        buffer.add(transition)
        reused[:] = -5
    batch = every_row(buffer)
    span = batch.next_obs[0, :, 0] - batch.obs[0, :, 0]
    assert span.tolist() == np.minimum(n_step, 8 - batch.obs[0, :, 0]).tolist()
    for array in (batch.obs, batch.next_obs, batch.reward, batch.terminated, batch.index, batch.weight):
        array.fill(-1)
    assert every_row(buffer).obs.min() >= 0 and every_row(buffer).next_obs[..., 0].min() >= 1


def test_uniform_draws_are_uniform():
    buffer = ReplayBuffer(10)
    buffer.add(step(ids(1, 7)))
    index = buffer.sample(70_000, np.random.default_rng(0)).index
    counts = np.bincount(index[0], minlength=10)
    assert (counts[7:] == 0).all() and (abs(counts[:7] - 10_000) < 500).all()  # 500 = 5.4 sigma


def test_the_largest_number_below_one_draws_the_last_row():
    class Top:
        def random(self, shape):
            return np.full(shape, np.nextafter(1.0, 0.0))

    buffer = ReplayBuffer(10)
    buffer.add(step(ids(1, 7)))
    assert buffer.sample(3, Top()).index.tolist() == [[6, 6, 6]]


@pytest.mark.parametrize("batch_size", [0, np.array([4, 0])])
def test_drawing_nothing_is_refused(batch_size):
    buffer = ReplayBuffer(8)
    buffer.add(step(ids(2, 3)))
    with pytest.raises(ValueError, match="cannot draw batches"):
        buffer.sample(batch_size, np.random.default_rng(0))


def test_drawing_from_a_member_without_rows_is_refused():
    buffer = ReplayBuffer(8)
    buffer.add(step(ids(2, 1), valid=np.array([[True], [False]])))
    assert buffer.sample(2, np.random.default_rng(0), members=np.array([0])).obs.tolist() == [[0, 0]]
    with pytest.raises(ValueError, match=r"hold \[1, 0\] rows"):
        buffer.sample(2, np.random.default_rng(0))


def test_the_first_step_must_show_all_members():
    with pytest.raises(ValueError, match="all members"):
        ReplayBuffer(8).add(step(ids(1, 1)), members=np.array([0]))
    buffer = ReplayBuffer(8)
    buffer.add(step(ids(2, 1)))
    with pytest.raises(ValueError, match="3 members given"):
        buffer.add(step(ids(3, 1)))


@pytest.mark.parametrize(
    ("name", "settings"), [("max_size=0", {"max_size": 0}), ("n_step=0", {"max_size": 4, "n_step": 0})]
)
def test_sizes_below_one_are_refused(name, settings):
    with pytest.raises(ConfigError, match=name):
        ReplayBuffer(**settings)


def test_dtypes_that_are_not_numbers_are_refused():
    with pytest.raises(SpaceError, match="complex128"):
        ReplayBuffer(4).add(step(np.zeros((1, 1), complex)))


@pytest.mark.parametrize("first", [None, np.ones((1, 1, 2), np.uint8)])
def test_masks_come_always_or_never(first):
    buffer = ReplayBuffer(4)
    buffer.add(step(ids(1, 1), next_mask=first))
    with pytest.raises(ValueError, match="next_mask"):
        buffer.add(step(ids(1, 1), next_mask=None if first is not None else np.ones((1, 1, 2), np.uint8)))


def test_rings_that_do_not_fit_are_refused_with_the_size_that_does(monkeypatch):
    monkeypatch.setattr(store, "free_bytes", lambda: 100_000)
    # a row: obs 4, next_obs 4, reward, terminated, action = 11 words = 44 bytes; two rings: 88 bytes
    obs = np.zeros((2, 1, 4), np.float32)
    with pytest.raises(ConfigError, match=r"max_size=796: 2 ring.* fits is 795"):
        ReplayBuffer(796).add(step(obs))
    ReplayBuffer(795).add(step(obs))
    with pytest.raises(ConfigError, match="fits is 460"):  # and two trees of at most 32 bytes a row
        ReplayBuffer(796, alpha=0.5).add(step(obs))
