"""The adapter's contract against environments whose every number is known."""

import re

import gymnasium as gym
import numpy as np
import probe_envs
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agilerl_exp.envs import MemberEnvs, Step, make_member_envs
from agilerl_exp.envs.blocks import Blocks, Split
from agilerl_exp.errors import ConfigError, EnvError
from agilerl_exp.models.env import EnvSpec

MODES = ("sync", "async")


def make(name: str, seeds=(1, 2), vectorization="sync", member=0, **config) -> MemberEnvs:
    spec = EnvSpec(id=f"probe/{name}-v0", config=config, vectorization=vectorization)
    return make_member_envs(spec, list(seeds), member=member)


def run(envs: MemberEnvs, steps: int, action=0) -> list:
    envs.reset()
    actions = np.full((envs.num_envs, *envs.action_space.shape), action)
    return [envs.step(actions) for _ in range(steps)]


def test_next_step_mode_marks_reset_slots_and_keeps_the_last_observation() -> None:
    steps = run(MemberEnvs(probe_envs.Batch(AutoresetMode.NEXT_STEP)), 7)
    assert [s.valid.tolist() for s in steps] == [
        [True, True],
        [True, True],
        [False, True],
        [True, False],
        [True, True],
        [False, True],
        [True, True],
    ]
    assert [s.next_obs[:, 0].tolist() for s in steps[:4]] == [[1, 1], [2, 2], [0, 3], [1, 0]]
    assert [s.reward.tolist() for s in steps[:4]] == [[100, 100], [200, 200], [0, 300], [100, 0]]
    assert [s.terminated.tolist() for s in steps[:4]] == [[0, 0], [1, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize("final", ["rows", "batch"])
def test_same_step_mode_has_no_reset_slots_and_gives_the_true_last_observation(final: str) -> None:
    steps = run(MemberEnvs(probe_envs.Batch(AutoresetMode.SAME_STEP, final)), 3)
    assert all(s.valid.all() for s in steps)
    assert [s.next_obs[:, 0].tolist() for s in steps] == [[1, 1], [2, 2], [1, 3]]
    assert [s.obs[:, 0].tolist() for s in steps] == [[1, 1], [0, 2], [1, 0]]
    assert [s.reward.tolist() for s in steps] == [[100, 100], [200, 200], [100, 300]]


def test_same_step_mode_without_final_obs_stops_at_the_first_episode_end() -> None:
    envs = MemberEnvs(probe_envs.Batch(AutoresetMode.SAME_STEP, None), member=3)
    envs.reset()
    envs.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=r"member 3, env 0.*'final_obs'"):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, None])
def test_other_autoreset_modes_are_refused(mode: AutoresetMode | None) -> None:
    with pytest.raises(ConfigError, match=r"autoreset_mode.*NEXT_STEP.*SAME_STEP"):
        MemberEnvs(probe_envs.Batch(mode))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasium_vector_envs_in_next_step_mode_are_taken(kind: type) -> None:
    envs = MemberEnvs(kind([lambda: probe_envs.Steps(ends=[2])] * 2), seeds=[1, 2])
    steps = run(envs, 4)
    assert [s.valid.tolist() for s in steps] == [[1, 1], [1, 1], [0, 0], [1, 1]]
    assert [s.next_obs[0].tolist() for s in steps] == [[1, 0], [2, 0], [0, 1], [1, 1]]
    assert not envs.exact
    envs.close()


@pytest.mark.parametrize("batch", [probe_envs.Batch(AutoresetMode.NEXT_STEP), None])
def test_terminated_wins_when_both_flags_are_set(batch) -> None:
    envs = MemberEnvs(batch) if batch else make("Steps", ends=[2], cuts=[2])
    step = run(envs, 2)[1]
    assert step.terminated[0] and not step.truncated[0]


def test_truncation_alone_stays_truncation() -> None:
    step = run(make("Steps", cuts=[2]), 2)[1]
    assert step.truncated.tolist() == [True, True] and not step.terminated.any()


@pytest.mark.parametrize("mode", MODES)
def test_every_transition_joins_two_observations_of_one_episode(mode: str) -> None:
    envs = make("Scratch", vectorization=mode)
    obs, _ = envs.reset()
    kept = []
    for _ in range(11):
        step = envs.step(np.zeros(2, int))
        kept.append((obs, step.next_obs))
        obs = step.obs
    for before, after in kept:  # read after the env overwrote its memory many times
        assert (after[:, 0] == before[:, 0] + 1).all() and (after[:, 1] == before[:, 1]).all()
    envs.close()


def test_vector_env_memory_is_never_handed_out() -> None:
    inner = probe_envs.Batch(AutoresetMode.NEXT_STEP)
    step = run(MemberEnvs(inner), 1)[0]
    inner.obs[:], inner.flags[:] = -9, True
    assert step.obs[:, 0].tolist() == [1, 1] and not step.terminated.any()


@pytest.mark.parametrize("mode", MODES)
def test_only_the_first_reset_is_seeded_and_copies_differ(mode: str) -> None:
    def draws(seeds: list[int]) -> np.ndarray:
        envs = make("Echo", seeds, mode, length=3)
        first, _ = envs.reset()
        steps = [envs.step(np.zeros(4, int)) for _ in range(12)]
        envs.close()
        seen = np.stack([first, *(s.obs for s in steps if s.truncated.all())])
        assert (seen[..., 1] == 1).all()
        return seen[..., 0]

    one, two = draws([1, 2, 3, 4]), draws([5, 6, 7, 8])
    assert one.shape == (5, 4)
    assert len(np.unique(np.concatenate([one, two]))) == 40
    assert (draws([1, 2, 3, 4]) == one).all()


def test_spaces_that_the_environment_samples_itself_follow_the_seed() -> None:
    first, second = make("Zoo"), make("Zoo")
    for a, b in zip(run(first, 9), run(second, 9), strict=True):
        np.testing.assert_array_equal(a.next_obs, b.next_obs)
    assert not np.array_equal(first.reset()[0][0], first.reset()[0][1])


def test_sampling_from_the_public_spaces_does_not_move_the_environment() -> None:
    first, second = make("Zoo"), make("Zoo")
    first.action_space.sample(), first.observation_space.sample()
    np.testing.assert_array_equal(run(first, 5)[4].next_obs, run(second, 5)[4].next_obs)


def test_actions_count_from_zero_and_the_environment_gets_its_start() -> None:
    envs = make("Offset")
    envs.reset()
    assert envs.step(np.array([0, 2])).reward.tolist() == [5.0, 7.0]
    with pytest.raises(EnvError, match=r"ValueError.*8"):
        envs.step(np.array([3, 0]))


def test_double_precision_environments_get_and_give_what_fits() -> None:
    envs = make("Doubles")
    obs, _ = envs.reset()
    step = envs.step(np.zeros((2, 1), np.float32))
    assert obs.dtype == step.next_obs.dtype == step.reward.dtype == np.float32
    assert step.reward.tolist() == [1.0, 1.0]


DTYPES = {
    "bytes": np.uint8,
    "ints": np.int64,
    "discrete": np.int64,
    "multibinary": np.uint8,
    "double": np.float32,
}


@pytest.mark.parametrize("kind", probe_envs.KINDS)
def test_sync_and_async_give_the_same_trees(kind: str) -> None:
    def leaves(tree) -> list:
        if isinstance(tree, np.ndarray):
            return [tree]
        parts = tree.values() if isinstance(tree, dict) else tree
        return [leaf for part in parts for leaf in leaves(part)]

    both = [make("Zoo", vectorization=mode, kind=kind) for mode in MODES]
    for a, b in zip(*(run(envs, 10) for envs in both), strict=True):
        assert type(a.next_obs) is type(b.next_obs)
        for x, y in zip(leaves((a.obs, a.next_obs)), leaves((b.obs, b.next_obs)), strict=True):
            assert x.dtype == y.dtype == DTYPES.get(kind, x.dtype) and x.shape[0] == 2
            np.testing.assert_array_equal(x, y)
    [envs.close() for envs in both]


@pytest.mark.parametrize("mode", MODES)
def test_masks_follow_the_observation_they_belong_to(mode: str) -> None:
    envs = make("Legal", vectorization=mode, length=3, none_at=2)
    _, mask = envs.reset()
    assert mask.dtype == np.uint8 and mask.tolist() == [[1, 0, 0, 0]] * 2
    step = envs.step(np.array([0, 0]))
    assert step.mask[0].tolist() == step.next_mask[0].tolist() == [0, 1, 0, 0]
    step = envs.step(np.array([1, 1]))
    assert step.mask[0].tolist() == [0, 0, 0, 0]  # a dead end is passed on as it is
    step = envs.step(np.array([0, 0]))
    assert step.truncated.all()
    assert step.next_mask[0].tolist() == [0, 0, 0, 1] and step.mask[0].tolist() == [1, 0, 0, 0]
    envs.close()


def test_a_mask_that_reset_does_not_give_is_refused() -> None:
    with pytest.raises(EnvError, match=r"action_mask.*reset\(\)"):
        run(make("Legal", late=True), 1)


def test_environments_without_masks_have_none() -> None:
    envs = make("Steps")
    assert envs.reset()[1] is None and envs.step(np.zeros(2, int)).next_mask is None


@pytest.mark.parametrize("how", ["reward", "obs"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_stop_with_member_env_and_step(how: str, value: str) -> None:
    envs = make("Breaks", member=2, n=4, how=how, value=value)
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(2, int))
    what = "observation" if how == "obs" else "reward"
    with pytest.raises(EnvError, match=f"member 2, env 0: {what} is not finite at vector step 4"):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize("how", ["reward", "obs"])
def test_of_members_that_step_together_the_broken_one_is_named(how: str) -> None:
    envs = Blocks([make("Breaks", member=i, n=n, how=how, value="nan") for i, n in enumerate([9, 9, 2])])
    envs.reset()
    envs.step(np.arange(3), np.zeros((3, 2), int))
    with pytest.raises(EnvError, match=r"member 2, env 0: .* is not finite at vector step 2: .*nan"):
        envs.step(np.arange(3), np.zeros((3, 2), int))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_members_that_step_together_get_what_each_gets_alone(mode: AutoresetMode) -> None:
    together = Blocks([MemberEnvs(probe_envs.Batch(mode)) for _ in range(3)])
    whole, alone = Split(MemberEnvs(probe_envs.Batch(mode)), 2), MemberEnvs(probe_envs.Batch(mode))
    [envs.reset() for envs in (together, whole, alone)]
    ones: list[Step] = []
    for k in range(9):
        ones.append(alone.step(np.zeros(2, int)))
        members = np.array([0, 2]) if k % 2 else np.arange(3)  # member 1 waits every second time
        step = together.step(members, np.zeros((len(members), 2), int))
        halves = whole.step(np.arange(2), np.zeros((2, 1), int))
        for name, part, half in zip(Step._fields, step, halves, strict=True):
            want = getattr(ones[-1], name)
            if want is None:
                assert part is half is None
                continue
            np.testing.assert_array_equal(part[0], want)
            np.testing.assert_array_equal(part[-1], want)
            np.testing.assert_array_equal(half.reshape(want.shape), want)
            if not k % 2:
                np.testing.assert_array_equal(part[1], getattr(ones[k // 2], name))


def test_large_finite_numbers_pass() -> None:
    step = run(make("Breaks", n=1, how="obs", value="3e38"), 1)[0]
    assert step.next_obs[0, 1] == np.float32(3e38)


def test_spaces_are_those_of_one_copy() -> None:
    envs = make("Steps")
    assert (
        envs.num_envs == 2
        and envs.action_space == spaces.Discrete(2)
        and envs.observation_space.shape == (2,)
    )


class Wrong(gym.Env):
    """After one good step: an observation or a reward of the wrong kind, at the end of the episode if `last`."""

    action_space = spaces.Discrete(2)

    def __init__(self, obs: str | None = None, reward: str | None = None, last: bool = False) -> None:
        parts = {"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)}
        self.observation_space = spaces.Dict(parts) if obs == "key" else parts["b" if obs == "dtype" else "a"]
        self.obs, self.bad_reward, self.last = obs, reward, last

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        bad = {
            "shape": np.zeros(3, np.float32),
            "dtype": 1.5,
            "none": None,
            "key": {"a": np.zeros(2, np.float32)},
        }
        obs = bad[self.obs] if self.obs and self.t > 1 else self.observation_space.sample()
        reward = {"none": None, "text": "x"}[self.bad_reward] if self.bad_reward and self.t > 1 else 1.0
        return obs, reward, self.last and self.t > 1, False, {}


def wrong(vectorization: str, **config) -> str:
    spec = EnvSpec(entrypoint="test_envs_adapter:Wrong", config=config, vectorization=vectorization)
    envs = make_member_envs(spec, [1, 2], member=3)
    with pytest.raises(EnvError) as caught:
        run(envs, 2)
    envs.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("vectorization", MODES)
@pytest.mark.parametrize(("kind", "shown"), [("none", "None"), ("text", "'x'")])
def test_a_reward_that_is_no_number_is_one_line(vectorization: str, kind: str, shown: str) -> None:
    said = wrong(vectorization, reward=kind)
    assert said == f"member 3, env 0: step() gave the reward {shown}; it must be a number"


BOX = "Box(-1.0, 1.0, (2,), float32)"
UNFIT = {
    "shape": f"the observation array([0., 0., 0.], dtype=float32) does not fit {BOX}",
    "none": f"the observation None does not fit {BOX}",
    "dtype": "the observation 1.5 does not fit Discrete(3)",
    "key": f"the observation {{'a': array([0., 0.], dtype=float32)}} does not fit Dict('a': {BOX}, 'b': Discrete(3))",
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_observation_outside_its_space_is_one_line(kind: str) -> None:
    assert wrong("sync", obs=kind) == f"member 3, env 0: {UNFIT[kind]}"


@pytest.mark.parametrize("vectorization", MODES)
@pytest.mark.parametrize("kind", ["shape", "none"])
def test_a_last_observation_outside_its_space_is_one_line(vectorization: str, kind: str) -> None:
    assert wrong(vectorization, obs=kind, last=True) == f"member 3, env 0: {UNFIT[kind]}"


@pytest.mark.parametrize(
    ("kind", "why"), [("shape", r"shape \(3,\) into shape \(2,\)"), ("key", "KeyError: 'b'")]
)
def test_a_worker_tells_what_does_not_fit(kind: str, why: str) -> None:
    said = wrong("async", obs=kind)
    assert said.startswith("member 3, env 0: an observation does not fit ")
    assert re.search(why, said)
