"""A restored environment goes on byte for byte, or says that it does not."""

import json
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import probe_envs
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agilerl_exp.envs import MemberEnvs, make_member_envs, plain, replay
from agilerl_exp.errors import CheckpointError
from agilerl_exp.models.env import EnvSpec

SEEDS = [7, 8, 9, 10]


def leaves(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, dict | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    elif tree is not None:
        yield tree


def same(first: Any, second: Any) -> bool:
    pairs = zip(leaves(tuple(first)), leaves(tuple(second)), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def actions(envs: MemberEnvs, count: int, seed: int = 0) -> list[np.ndarray]:
    envs.action_space.seed(seed)
    start = getattr(envs.action_space, "start", 0)
    return [np.stack([envs.action_space.sample() for _ in SEEDS]) - start for _ in range(count)]


def resumed(spec: EnvSpec, before: int, after: int) -> tuple[MemberEnvs, MemberEnvs, bool]:
    """Run `before` steps, save through JSON, restore in new environments, and compare `after` more steps."""
    whole = make_member_envs(spec, SEEDS)
    now = whole.reset()
    for action in actions(whole, before):
        step = whole.step(action)
        now = step.obs, step.mask
    state = json.loads(json.dumps(whole.state_dict()))
    again = make_member_envs(spec, SEEDS)
    restored = again.load_state_dict(state)
    equal = same(now, restored[:2]) and not restored.cut.any() and again.state_dict() == state
    for action in actions(whole, after, seed=1):
        equal &= same(whole.step(action), again.step(action))
    whole.close()
    again.close()
    return whole, again, equal


EXACT = {
    "CartPole-v1": ({}, 45),
    "Acrobot-v1": ({"max_episode_steps": 30}, 45),
    "MountainCar-v0": ({"max_episode_steps": 30}, 45),
    "Pendulum-v1": ({"max_episode_steps": 30}, 45),
    "Blackjack-v1": ({}, 11),
    "Taxi-v4": ({"max_episode_steps": 30}, 45),
    "FrozenLake-v1": ({}, 45),
    "probe/Steps-v0": ({"ends": [3, 5, 4]}, 19),  # counts its episodes
    "probe/Echo-v0": ({"length": 3}, 10),
    "probe/Noisy-v0": ({"cuts": [7]}, 10),
    "probe/Scratch-v0": ({}, 10),
    "probe/Legal-v0": ({"none_at": 0, "length": 1}, 5),
    "probe/Offset-v0": ({"cuts": [4]}, 10),
    "probe/Doubles-v0": ({}, 10),
}


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", EXACT)
def test_a_later_episode_is_restored_exactly(name: str, mode: str) -> None:
    config, before = EXACT[name]
    whole, again, equal = resumed(EnvSpec(id=name, config=config, vectorization=mode), before, 40)
    assert equal and whole.exact and again.exact


@pytest.mark.parametrize("before", [0, 1, 13, 150, 260])
def test_lunar_lander_is_restored_in_its_first_and_later_episodes(before: int) -> None:
    pytest.importorskip("Box2D")
    *_, equal = resumed(EnvSpec(id="LunarLander-v3"), before, 120)
    assert equal


@pytest.mark.parametrize("wind", [True])
def test_lunar_lander_with_wind_is_restored(wind: bool) -> None:
    pytest.importorskip("Box2D")
    spec = EnvSpec(id="LunarLander-v3", config={"enable_wind": wind})
    assert resumed(spec, 150, 100)[2]


@pytest.mark.parametrize("kind", probe_envs.KINDS)
def test_every_kind_of_observation_is_restored(kind: str) -> None:
    assert resumed(EnvSpec(id="probe/Zoo-v0", config={"kind": kind}), 10, 10)[2]


@pytest.mark.parametrize("before", [0, 1, 30, 600])
def test_an_entry_point_is_restored_with_its_reset_slots(before: int) -> None:
    whole, again, equal = resumed(EnvSpec(id="CartPole-v1"), before, 600)
    assert equal and whole.exact and again.exact


@pytest.mark.parametrize("mode", ["sync", "async", "entry_point"])
def test_a_state_saved_before_the_first_reset_begins_at_the_beginning(mode: str) -> None:
    spec = EnvSpec(id="CartPole-v1", vectorization=mode)
    first, second = make_member_envs(spec, SEEDS), make_member_envs(spec, SEEDS)
    restored = second.load_state_dict(first.state_dict())
    assert same(first.reset(), restored[:2]) and not restored.cut.any()
    first.close()
    second.close()


def test_a_used_environment_can_be_set_back() -> None:
    envs = make_member_envs(EnvSpec(id="LunarLander-v3"), SEEDS)
    envs.reset()
    moves = actions(envs, 260)
    for action in moves[:130]:
        envs.step(action)
    state = envs.state_dict()
    ahead = [envs.step(action) for action in moves[130:]]
    envs.load_state_dict(state)
    assert all(same(step, envs.step(action)) for step, action in zip(ahead, moves[130:], strict=True))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_no_seed_determines_is_cut_with_one_warning(mode: str) -> None:
    spec = EnvSpec(id="probe/Fickle-v0", config={"cuts": [9]}, vectorization=mode)
    whole = make_member_envs(spec, SEEDS)
    whole.reset()
    for action in actions(whole, 3):
        whole.step(action)
    assert whole.exact
    state = whole.state_dict()
    assert not whole.exact  # the proof at the first save has failed
    again = make_member_envs(spec, SEEDS)
    with pytest.warns(RuntimeWarning, match="end as truncated") as caught:
        restored = again.load_state_dict(state)
    assert len(caught) == 1 and restored.cut.all() and not again.exact
    steps = [again.step(action) for action in actions(again, 9)]
    assert [s.truncated.all() for s in steps] == [False] * 8 + [True]  # a whole new episode
    whole.close()
    again.close()


def test_a_lost_episode_is_not_replaced_by_the_first_of_the_run() -> None:
    spec = EnvSpec(id="probe/Echo-v0", config={"length": 5}, vectorization="sync")
    whole = make_member_envs(spec, SEEDS)
    first, _ = whole.reset()
    for action in actions(whole, 7):
        whole.step(action)
    state = whole.state_dict()
    broken = [plain.unpack(text) for text in state["copies"]]
    broken[2]["outcome"]["obs"] = "something else"
    state["copies"] = [plain.pack(item) for item in broken]
    again = make_member_envs(spec, SEEDS)
    with pytest.warns(RuntimeWarning):
        restored = again.load_state_dict(state)
    assert restored.cut.tolist() == [False, False, True, False]
    assert restored.obs[2, 0] != first[2, 0]


def test_an_episode_longer_than_the_log_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_ACTIONS", 5)
    envs = make_member_envs(EnvSpec(id="probe/Steps-v0", vectorization="sync"), SEEDS)
    envs.reset()
    for action in actions(envs, 5):
        envs.step(action)
    assert envs.state_dict()["copies"][0] and envs.exact
    envs.step(actions(envs, 1)[0])
    assert envs.state_dict()["copies"] == [""] * 4 and not envs.exact


def test_observations_that_no_text_can_hold_are_not_exact() -> None:
    class Numbered(gym.ObservationWrapper):
        observation_space = gym.spaces.Dict({1: gym.spaces.Box(-np.inf, np.inf, (2,))})

        def observation(self, observation: np.ndarray) -> dict[int, np.ndarray]:
            return {1: observation}

    copy = replay.Replayable(lambda: Numbered(gym.make("probe/Steps-v0")), member=0, index=0)
    copy.reset(seed=1)
    assert copy.save_episode() == "" and not copy.prove()


def test_a_foreign_vector_env_starts_over_with_a_warning() -> None:
    envs = MemberEnvs(probe_envs.Batch(AutoresetMode.NEXT_STEP), seeds=[1, 2])
    envs.reset()
    envs.step(np.zeros(2, int))
    state = envs.state_dict()
    again = MemberEnvs(probe_envs.Batch(AutoresetMode.NEXT_STEP), seeds=[1, 2])
    with pytest.warns(RuntimeWarning):
        restored = again.load_state_dict(state)
    assert restored.cut.all() and restored.obs[:, 0].tolist() == [0, 0] and not envs.exact


def test_another_number_of_copies_is_refused() -> None:
    spec = EnvSpec(id="probe/Steps-v0")
    state = make_member_envs(spec, [1, 2]).state_dict()
    with pytest.raises(CheckpointError, match=r"env\.num_envs=3: the checkpoint has 2"):
        make_member_envs(spec, [1, 2, 3]).load_state_dict(state)


def test_saving_changes_nothing_and_says_the_same_twice() -> None:
    spec = EnvSpec(id="probe/Noisy-v0", config={"cuts": [5]})
    one, two = make_member_envs(spec, SEEDS), make_member_envs(spec, SEEDS)
    one.reset()
    two.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for action in actions(one, 12):
            assert one.state_dict() == one.state_dict()
            assert same(one.step(action), two.step(action))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | hnp.arrays(
        st.sampled_from([np.float32, np.int64, np.uint8, np.bool_]), hnp.array_shapes(min_side=0, max_dims=2)
    ),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_values_survive_as_text(value: Any) -> None:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if isinstance(a, list | tuple):
            return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
        if isinstance(a, dict):
            return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
        return type(a) is type(b) and (a == b or a != a)

    text = plain.pack(value)
    json.loads(text, parse_constant=pytest.fail)  # strict JSON: no NaN, no Infinity
    assert equal(plain.unpack(text), value)


def test_objects_are_not_plain() -> None:
    with pytest.raises(TypeError, match="not a plain value"):
        plain.pack({"env": object()})


def test_memory_leaves_out_objects_and_large_values_and_copies_the_rest() -> None:
    env = gym.make("probe/Steps-v0", ends=[3], disable_env_checker=True)
    inner = env.unwrapped
    inner.level, inner.frame, inner.thing, inner.log = 3, np.zeros(10_000), object(), list(range(300))
    found = plain.memory(env)
    depth = [type(layer) for layer in plain.layers(env)].index(probe_envs.Steps)
    assert found[f"{depth}.level"] == 3 and found[f"{depth}.ends"] == [3]
    assert found[f"{depth}.ends"] is not inner.ends
    assert not {f"{depth}.frame", f"{depth}.thing", f"{depth}.log"} & set(found)
    inner.level = 9
    plain.recall(env, found)
    assert inner.level == 3
