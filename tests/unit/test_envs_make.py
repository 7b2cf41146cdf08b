"""From a spec to an environment, and what each mistake says."""

import os
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import probe_envs  # noqa: F401  (registers the environments)
import psutil
import pytest
from gymnasium.vector import SyncVectorEnv

from agilerl_exp.envs import make_member_envs
from agilerl_exp.envs.source import builder, time_limit
from agilerl_exp.errors import ConfigError, SpaceError
from agilerl_exp.models.env import EnvSpec

FILE = '''
import gymnasium as gym
import numpy as np

class Tiny(gym.Env):
    """Reward = size; made by the user in a file of their own."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=1.0):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.size, False, False, {}


def factory(**settings):
    return Tiny(**settings)


class Text(Tiny):
    observation_space = gym.spaces.Text(5)


number = 3
'''


def build(spec: EnvSpec) -> gym.Env:
    return builder(spec)()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny_env.py").write_text(FILE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("import package_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("tiny_env", None)


@pytest.mark.parametrize(
    "entrypoint", ["tiny_env:Tiny", "tiny_env:factory", "tiny_env.py:Tiny", "sub/other.py:factory"]
)
@pytest.mark.parametrize("mode", ["auto", "async"])
def test_an_entrypoint_is_a_module_or_a_file(folder: Path, entrypoint: str, mode: str) -> None:
    spec = EnvSpec(entrypoint=entrypoint, config={"size": 4.0}, vectorization=mode)
    envs = make_member_envs(spec, [1, 2])
    envs.reset()
    assert envs.step(np.zeros(2, int)).reward.tolist() == [4.0, 4.0]
    envs.close()


def test_an_absolute_file_is_taken_and_a_builder_survives_a_change_of_directory(folder: Path) -> None:
    assert build(EnvSpec(entrypoint=f"{folder}/sub/other.py:Tiny")).size == 1.0
    make = builder(EnvSpec(entrypoint="sub/other.py:Tiny"))
    os.chdir("/")
    assert make().size == 1.0


def test_two_files_of_one_name_are_two_modules(folder: Path) -> None:
    (folder / "sub" / "tiny_env.py").write_text(FILE.replace("size=1.0", "size=2.0"))
    sizes = [build(EnvSpec(entrypoint=f"{path}:Tiny")).size for path in ("tiny_env.py", "sub/tiny_env.py")]
    assert sizes == [1.0, 2.0]


@pytest.mark.parametrize("source", [{"id": "probe/Steps-v0"}, {"entrypoint": "probe_envs:Steps"}])
def test_config_and_wrappers_apply_to_an_id_and_to_an_entrypoint(source: dict) -> None:
    wrappers = [
        "gymnasium.wrappers:FlattenObservation",
        {"path": "probe_envs:Added", "kwargs": {"extra": 100.0}},
        "probe_envs.Added",
    ]
    spec = EnvSpec(**source, config={"ends": [2]}, wrappers=wrappers)
    envs = make_member_envs(spec, [1])
    envs.reset()
    step = [envs.step(np.zeros(1, int)) for _ in range(2)][1]
    assert step.reward.tolist() == [111.0] and step.terminated.tolist() == [True]


def test_an_id_takes_settings_of_its_class_and_a_module_prefix() -> None:
    assert build(
        EnvSpec(id="CartPole-v1", config={"sutton_barto_reward": True})
    ).unwrapped._sutton_barto_reward
    assert build(EnvSpec(id="CartPole-v1", config={"max_episode_steps": 7})).spec.max_episode_steps == 7
    assert build(EnvSpec(id="probe_envs:probe/Steps-v0", config={"ends": [9]})).unwrapped.ends == [9]


MISTAKES = {
    "unknown id": ({"id": "CartPoole-v1"}, r"env\.id=CartPoole-v1: .*Did you mean.*CartPole"),
    "unknown namespace": ({"id": "probee/Steps-v0"}, r"env\.id=probee/Steps-v0: .*probee.*probe"),
    "unknown module": ({"id": "nomodule:X-v0"}, r"env\.id=nomodule:X-v0: .*nomodule"),
    "bad setting": (
        {"id": "probe/Shy-v0", "config": {"color": "red"}},
        r"'color'.*colour, size.*did you mean colour",
    ),
    "missing setting": ({"id": "probe/Shy-v0"}, r"env\.id=probe/Shy-v0: TypeError.*'colour'"),
    "own words": (
        {"id": "probe/Shy-v0", "config": {"colour": "x", "size": -1}},
        r"RuntimeError: size must not be neg",
    ),
    "no module": ({"entrypoint": "nomodule:X"}, r"env\.entrypoint=nomodule:X: No module named 'nomodule'"),
    "no attribute": (
        {"entrypoint": "tiny_env:Tinny"},
        r"env\.entrypoint=tiny_env:Tinny: .*did you mean Tiny",
    ),
    "no file": (
        {"entrypoint": "sub/none.py:Tiny"},
        r"env\.entrypoint=sub/none.py:Tiny: no file /.*/sub/none.py",
    ),
    "no name in the file": (
        {"entrypoint": "tiny_env.py:Tinny"},
        r"tiny_env.py has no 'Tinny'; did you mean Tiny",
    ),
    "broken import": (
        {"entrypoint": "broken.py:X"},
        r"broken.py:X: No module named 'package_that_nobody_has'",
    ),
    "not callable": ({"entrypoint": "tiny_env:number"}, r"is a int; name an environment class or a function"),
    "not an env": ({"entrypoint": "builtins:dict"}, r"gives dict, not a gymnasium.Env"),
    "bad wrapper": (
        {"id": "CartPole-v1", "wrappers": ["gymnasium.wrappers.TimeLimi"]},
        r"env\.wrappers\[0\]=.*TimeLimit",
    ),
    "wrapper settings": (
        {"id": "CartPole-v1", "wrappers": [{"path": "probe_envs.Added", "kwargs": {"extr": 1}}]},
        r"env\.wrappers\[0\]=probe_envs\.Added: .*'extr'.*did you mean extra",
    ),
    "no vector entry point": (
        {"id": "Acrobot-v1", "vectorization": "entry_point"},
        r"Acrobot-v1 has no vector entry",
    ),
    "bad setting of a vector env": (
        {"id": "CartPole-v1", "vectorization": "entry_point", "config": {"nope": 1}},
        r"env\.vectorization=entry_point: .*nope",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
@pytest.mark.parametrize("mode", ["auto", "async"])
def test_each_mistake_is_one_line_before_any_worker_starts(folder: Path, case: str, mode: str) -> None:
    settings, text = MISTAKES[case]
    began = time.monotonic()
    with pytest.raises(ConfigError, match=text) as caught:
        make_member_envs(EnvSpec(**{"vectorization": mode, **settings}), [1, 2, 3, 4])
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 5
    assert psutil.Process().children() == []


def test_a_missing_package_names_the_extra_to_install() -> None:
    def needs_box2d(**_):
        raise gym.error.DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')

    gym.register("probe/NoBox-v0", entry_point=needs_box2d)
    with pytest.raises(ConfigError, match=r"Box2D is not installed.*pip install 'agilerl-exp\[box2d\]'"):
        build(EnvSpec(id="probe/NoBox-v0"))


@pytest.mark.parametrize("mode", ["auto", "async"])
def test_observations_without_a_shape_are_refused(folder: Path, mode: str) -> None:
    with pytest.raises(SpaceError, match=r"Text has no fixed shape; use Box"):
        make_member_envs(EnvSpec(entrypoint="tiny_env:Text", vectorization=mode), [1])


@pytest.mark.parametrize(
    ("num_envs", "settings", "kind"),
    [
        (4, {}, "CartPoleVectorEnv"),
        (3, {}, "SyncVectorEnv"),
        (3, {"vectorization": "entry_point"}, "CartPoleVectorEnv"),
        (4, {"vectorization": "sync"}, "SyncVectorEnv"),
        (4, {"wrappers": ["probe_envs.Added"]}, "SyncVectorEnv"),
        (4, {"id": "Acrobot-v1"}, "SyncVectorEnv"),
        (4, {"id": "probe/Secretive-v0"}, "SyncVectorEnv"),
        (4, {"id": "probe/Broken-v0"}, "SyncVectorEnv"),
    ],
)
def test_auto_takes_the_entry_point_where_it_helps_and_can_be_saved(
    num_envs: int, settings: dict, kind: str
) -> None:
    envs = make_member_envs(EnvSpec(**{"id": "CartPole-v1", **settings}), list(range(num_envs)))
    assert type(envs._env).__name__ == kind
    assert envs.num_envs == num_envs and envs.exact
    envs.close()


def test_an_entry_point_that_was_asked_for_but_cannot_be_saved_is_not_exact() -> None:
    spec = EnvSpec(id="probe/Secretive-v0", vectorization="entry_point")
    envs = make_member_envs(spec, [1, 2])
    envs.reset()
    state = envs.state_dict()
    assert not envs.exact
    again = make_member_envs(spec, [1, 2])
    with pytest.warns(RuntimeWarning, match="could not be restored"):
        assert again.load_state_dict(state).cut.all()


def test_entry_point_and_copies_play_the_same_game() -> None:
    spec = EnvSpec(id="CartPole-v1")
    envs = make_member_envs(spec, [11, 12, 13, 14])
    envs.reset()
    single = gym.make("CartPole-v1")
    single.reset(seed=0)
    single.unwrapped.state = tuple(envs._env.state[:, 2])
    for action in [0, 1, 1, 0, 1]:
        step = envs.step(np.full(4, action))
        want, reward, *_ = single.step(action)
        np.testing.assert_allclose(step.obs[2], want, rtol=1e-6)
        assert step.reward[2] == reward


def test_sync_copies_are_gymnasiums_own() -> None:
    envs = make_member_envs(EnvSpec(id="Acrobot-v1"), [1])
    assert isinstance(envs._env, SyncVectorEnv)


@pytest.mark.parametrize("num_envs", [1, 5])
def test_what_exists_as_a_vector_only_is_taken_as_one(num_envs: int) -> None:
    name = "test/VectorOnly-v0"
    gym.register(name, vector_entry_point=gym.envs.classic_control.cartpole.CartPoleVectorEnv)
    envs = make_member_envs(EnvSpec(id=name), range(num_envs))
    del gym.registry[name]
    assert envs.num_envs == num_envs and not isinstance(envs._env, SyncVectorEnv)


def test_a_time_limit_is_what_the_registration_declares() -> None:
    limits = {"CartPole-v1": 500, "CliffWalking-v1": None}
    assert {name: time_limit(EnvSpec(id=name)) for name in limits} == limits
    assert time_limit(EnvSpec(entrypoint="probe_envs:Steps")) is None
