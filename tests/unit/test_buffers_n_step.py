"""n-step rows by hand: where windows end, what they sum, how they are discounted."""

from __future__ import annotations

import numpy as np
import pytest

from agilerl_exp.buffers import ReplayBuffer, Transition, join
from agilerl_exp.errors import ConfigError


class Visit:
    """Numbers that make a uniform draw visit every row of equally filled rings, oldest position first."""

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.tile((np.arange(shape[1]) + 0.5) / shape[1], (shape[0], 1))


def feed(buffer, rewards, terminated=(), truncated=(), valid=None, start=0):
    """One member; rewards[env][t], ends as (env, t). obs counts t, the action is 10 * env + t."""
    rewards = np.array(rewards, float)
    N, T = rewards.shape
    for t in range(T):
        ends = [np.array([[(e, t) in end for e in range(N)]]) for end in (terminated, truncated)]
        obs = np.full((1, N), float(t + start))
        action = 10 * np.arange(N)[None] + t
        mask = np.full((1, N, 2), t % 2)
        ok = None if valid is None else np.array([[bool(row[t]) for row in valid]])
        buffer.add(Transition(obs, action, rewards[None, :, t], *ends, obs + 1, mask, ok))
    return buffer


def rows(buffer, **kwargs):
    """{action: (return, discount, terminated, next_obs)} of all rows of member 0."""
    batch = buffer.sample(int(buffer.sizes[0]), Visit(), **kwargs)
    columns = (batch.reward, batch.discount, batch.terminated, batch.next_obs)
    values = zip(*(column[0].tolist() for column in columns), strict=True)
    return dict(zip(batch.action[0].tolist(), values, strict=True))


def test_digits_show_which_steps_a_cut_episode_sums():
    # reward 10**t, episodes cut after 5 steps, gamma 1/2, n = 3
    buffer = ReplayBuffer(16, n_step=3, gamma=0.5)
    reward = [10.0 ** (t % 5) for t in range(40)]
    feed(buffer, [reward], truncated={(0, t) for t in range(4, 40, 5)})
    batch = buffer.sample(16, Visit())
    expected = {  # t in the episode: return, terminated, discount
        0: (1 + 5 + 25, 0, 0.125),
        1: (10 + 50 + 250, 0, 0.125),
        2: (100 + 500 + 2500, 0, 0.125),
        3: (1000 + 5000, 0, 0.25),
        4: (10000, 0, 0.5),
    }
    t = batch.action[0]
    assert sorted(t) == list(range(24, 40))  # the newest 16 windows, all complete
    for k in range(16):
        assert (batch.reward[0, k], batch.terminated[0, k], batch.discount[0, k]) == expected[t[k] % 5]


def test_a_window_stops_at_a_terminal_first_step():
    buffer = feed(
        ReplayBuffer(9, n_step=3, gamma=0.5), [[1, 100, 100]], terminated={(0, 0)}, truncated={(0, 2)}
    )
    assert rows(buffer) == {0: (1, 0.5, 1, 1), 1: (150, 0.25, 0, 3), 2: (100, 0.5, 0, 3)}


def test_the_end_of_one_env_does_not_cut_the_others():
    buffer = feed(ReplayBuffer(9, n_step=3, gamma=0.5), [[1, 1, 1], [1, 1, 1]], terminated={(0, 1)})
    assert rows(buffer) == {0: (1.5, 0.25, 1, 2), 1: (1, 0.5, 1, 2), 10: (1.75, 0.125, 0, 3)}


def test_both_flags_count_as_terminated():
    buffer = feed(ReplayBuffer(9, n_step=2, gamma=0.5), [[1, 1]], terminated={(0, 1)}, truncated={(0, 1)})
    assert rows(buffer) == {0: (1.5, 0.25, 1, 2), 1: (1, 0.5, 1, 2)}


def test_flush_keeps_the_tail_with_its_own_discount_and_starts_anew():
    buffer = feed(ReplayBuffer(9, n_step=3, gamma=0.5), [[1, 1, 1, 1]])
    assert len(buffer) == 2
    buffer.flush()
    tail = {2: (1.5, 0.25, 0, 4), 3: (1, 0.5, 0, 4)}
    assert rows(buffer) == {0: (1.75, 0.125, 0, 3), 1: (1.75, 0.125, 0, 4)} | tail
    buffer.flush()
    assert len(buffer) == 4
    feed(buffer, [[8, 8]], start=50)
    assert len(buffer) == 4  # windows of two steps are still open


def test_flush_of_one_member_leaves_the_windows_of_the_other():
    buffer = ReplayBuffer(9, n_step=3)
    obs, no = np.zeros((2, 1)), np.zeros((2, 1), bool)
    buffer.add(Transition(obs, no.astype(int), obs, no, no, obs))
    buffer.flush(np.array([1]))
    assert buffer.sizes.tolist() == [0, 1]


def test_reset_slots_break_no_window():
    valid = [[1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1]]
    buffer = feed(ReplayBuffer(9, n_step=3, gamma=0.5), [[1, 9, 2, 9, 9, 4], [1] * 6], valid=valid)
    found = rows(buffer)
    assert found.pop(0) == (1 + 1 + 1, 0.125, 0, 6)
    assert found == {10 + t: (1.75, 0.125, 0, t + 3) for t in range(4)}


def test_return_and_discount_are_formed_with_the_gamma_of_the_draw():
    buffer = feed(ReplayBuffer(9, n_step=3, gamma=0.5), [[1, 10, 100]])
    assert rows(buffer, gamma=np.array([1.0])) == {0: (111, 1, 0, 3)}
    assert rows(buffer, gamma=np.array([0.25])) == {0: (9.75, 0.25**3, 0, 3)}
    assert rows(buffer) == {0: (31, 0.125, 0, 3)}


def test_members_of_a_shared_ring_discount_for_themselves():
    buffer = ReplayBuffer(9, n_step=2, shared=True)
    one, no = np.ones((2, 1)), np.zeros((2, 1), bool)
    for _ in range(2):
        buffer.add(Transition(one, no.astype(int), one, no, no, one))
    batch = buffer.sample(2, Visit(), gamma=np.array([0.5, 0.25]))
    assert batch.reward.tolist() == [[1.5, 1.5], [1.25, 1.25]]
    assert batch.discount.tolist() == [[0.25, 0.25], [0.0625, 0.0625]]


def test_one_step_is_the_first_step_of_the_same_rows():
    buffer = ReplayBuffer(9, n_step=3, keep_one_step=True, gamma=0.5)
    feed(buffer, [[1, 10, 100]], terminated={(0, 2)})
    batch = buffer.sample(3, Visit())
    one = batch.one_step
    assert batch.reward.tolist() == [[31, 60, 100]] and one.reward.tolist() == [[1, 10, 100]]
    assert batch.terminated.tolist() == [[1, 1, 1]] and one.terminated.tolist() == [[0, 0, 1]]
    assert batch.next_obs.tolist() == [[3, 3, 3]] and one.next_obs.tolist() == [[1, 2, 3]]
    assert batch.next_mask.tolist() == [[[0, 0]] * 3] and one.next_mask[0, :, 0].tolist() == [0, 1, 0]
    assert batch.discount.tolist() == [[0.125, 0.25, 0.5]] and one.discount.tolist() == [[0.5] * 3]
    assert one.obs is batch.obs and one.action is batch.action and one.index is batch.index


def test_n_step_of_one_equals_the_standard_buffer():
    plain, windows = ReplayBuffer(7), ReplayBuffer(7, n_step=1, keep_one_step=True)
    for buffer in (plain, windows):
        feed(buffer, [[1, 2, 3, 4]] * 3, terminated={(1, 2)})
    a, b = (buffer.sample(20, np.random.default_rng(0)) for buffer in (plain, windows))
    for name in (
        "obs",
        "action",
        "reward",
        "terminated",
        "next_obs",
        "discount",
        "next_mask",
        "index",
        "weight",
    ):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes() == getattr(b.one_step, name).tobytes()


def test_images_and_trees_pass_through_windows():
    buffer = ReplayBuffer(8, n_step=2)
    no = np.zeros((1, 2), bool)
    for t in range(3):
        image = np.full((1, 2, 3, 3), t, np.uint8)
        obs, after = (
            {"i": image, "v": (no.astype(int) + t,)},
            {"i": image + 1, "v": (no.astype(int) + t + 1,)},
        )
        buffer.add(Transition(obs, no.astype(int), np.ones((1, 2)), no, no, after))
    batch = buffer.sample(4, Visit())
    assert batch.obs["i"].dtype == np.uint8 and batch.obs["i"].shape == (1, 4, 3, 3)
    assert batch.obs["i"][0, :, 0, 0].tolist() == batch.obs["v"][0][0].tolist() == [0, 0, 1, 1]
    assert batch.next_obs["i"][0, :, 2, 2].tolist() == batch.next_obs["v"][0][0].tolist() == [2, 2, 3, 3]


def test_a_pair_is_one_buffer_with_one_cursor():
    memory, companion = ReplayBuffer(8, alpha=1.0, gamma=0.5), ReplayBuffer(8, n_step=3, keep_one_step=True)
    buffer = join(memory, companion)
    assert buffer is memory and join(memory, companion) is memory and join(memory, None) is memory
    feed(buffer, [[1, 10, 100]], terminated={(0, 2)})
    assert len(memory) == len(companion) == 3 and memory.n_step == 3
    memory.update_priorities(np.array([[0, 1, 2]]), np.array([[0.0, 0.0, 9.0]]))
    batch = buffer.sample(4, np.random.default_rng(0))
    assert batch.index.tolist() == [[2] * 4] and batch.reward.tolist() == [[100] * 4]
    assert batch.one_step.reward.tolist() == [[100] * 4]
    with pytest.raises(RuntimeError, match="join"):
        feed(companion, [[1]])


def test_pairs_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="max_size=9"):
        join(ReplayBuffer(8, alpha=0.5), ReplayBuffer(9, n_step=3))
    with pytest.raises(ConfigError, match="shared"):
        join(ReplayBuffer(8, alpha=0.5), ReplayBuffer(8, n_step=3, shared=True))
    with pytest.raises(ConfigError, match="empty"):
        join(feed(ReplayBuffer(8, alpha=0.5), [[1]]), ReplayBuffer(8, n_step=3))


def test_windows_refuse_another_number_of_envs():
    buffer = feed(ReplayBuffer(9, n_step=2), [[1]])
    with pytest.raises(ValueError, match="num_envs=2"):
        feed(buffer, [[1], [1]])


def test_a_part_of_a_batch_is_what_its_members_drew():
    buffer, rng = ReplayBuffer(16, n_step=2, keep_one_step=True, alpha=0.5), np.random.default_rng(0)
    for step in range(6):
        obs = {"a": rng.random((3, 1, 2)).astype(np.float32), "b": (np.full((3, 1), step),)}
        flags = np.zeros((3, 1), bool)
        buffer.add(Transition(obs, flags.astype(np.int64), rng.random((3, 1)), flags, flags, obs))
    sizes = np.array([2, 5, 3])
    batch = buffer.sample(sizes, np.random.default_rng(1))
    part = batch.part(np.array([0, 2]))
    assert part.reward.shape == (2, 3) and part.index[0, 2] == -1 and (part.index[1] >= 0).all()
    for member, row in ((0, 0), (2, 1)):
        for ours, whole in ((part, batch), (part.one_step, batch.one_step)):
            for name in ("action", "reward", "terminated", "discount", "index", "weight"):
                assert np.array_equal(getattr(ours, name)[row], getattr(whole, name)[member, :3])
            for tree, original in ((ours.obs, whole.obs), (ours.next_obs, whole.next_obs)):
                assert np.array_equal(tree["a"][row], original["a"][member, :3])
                assert np.array_equal(tree["b"][0][row], original["b"][0][member, :3])


def test_dicts_may_have_integers_for_keys():
    buffer = ReplayBuffer(4)
    flags, obs = np.zeros((1, 1), bool), {0: np.ones((1, 1, 2), np.float32), 3: (np.full((1, 1), 7),)}
    buffer.add(Transition(obs, flags.astype(np.int64), flags.astype(np.float32), flags, flags, obs))
    back = buffer.sample(1, np.random.default_rng(0)).next_obs
    assert list(back) == [0, 3] and back[0].tolist() == [[[1, 1]]]
    assert isinstance(back[3], tuple) and back[3][0].tolist() == [[7]]
