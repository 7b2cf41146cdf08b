"""ExperimentSpec: every mistake is one line with its full path; identity, diff and round trip."""

import copy
import json
import pickle
import warnings

import pytest

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.algo import ALGO_REGISTRY, RLAlgorithmSpec
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.experiment import ExperimentSpec, field_paths
from agilerl_exp.models.training import ReplayBufferSpec

BASE = {"algo": {"name": "DQN"}, "env": {"id": "CartPole-v1"}}


class OnPolicyToySpec(RLAlgorithmSpec):
    """Neither a ring nor epsilon."""


def tree(**settings) -> dict:
    config = copy.deepcopy(BASE)
    for path, value in settings.items():
        *groups, leaf = path.split("__")
        branch = config
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return config


def build(**settings) -> ExperimentSpec:
    return ExperimentSpec.from_config(tree(**settings))


def lines(**settings) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(**settings)
    assert caught.value.exit_code == 2
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # crosses to another process
    return str(caught.value).splitlines()


MISTAKES = [
    ({"algo__gamma": 2}, ["algo.gamma=2: input should be less than or equal to 1"]),
    ({"algo__gama": 0.9}, ["algo.gama: no such setting; did you mean algo.gamma?"]),
    (
        {"algo__gama": 1, "training__popsize": 3},
        [
            "algo.gama: no such setting; did you mean algo.gamma?",
            "training.popsize: no such setting; did you mean training.pop_size?",
        ],
    ),
    ({"training__batch_size": 3}, ["training.batch_size: no such setting; did you mean algo.batch_size?"]),
    ({"training__lr": 3}, ["training.lr: no such setting; did you mean algo.lr?"]),
    ({"trainig": {}}, ["trainig: no such setting; did you mean training?"]),
    ({"algo__name": "dqnn"}, ["algo.name=dqnn: no such algorithm; did you mean DQN? (have)"]),
    ({"algo__name": "dqn"}, ["algo.name=dqn: no such algorithm; did you mean DQN? (have)"]),
    ({"algo": {}}, ["algo.name=null: no such algorithm (have)"]),
    (
        {"algo__name": "dqnn", "seed": -1},
        [
            "algo.name=dqnn: no such algorithm; did you mean DQN? (have)",
            "seed=-1: input should be greater than or equal to 0",
        ],
    ),
    ({"algo": "dqn"}, ["algo=dqn: this is a group of settings, not a value; use algo=dqn"]),
    (
        {"training__replay_buffer": "per"},
        ["training.replay_buffer=per: this is a group of settings, not a value; use buffer=per"],
    ),
    (
        {"algo__net_config": "mlp"},
        ["algo.net_config=mlp: this is a group of settings, not a value; use network=mlp"],
    ),
    ({"training": 3}, ["training=3: this is a group of settings, not a value"]),
    (
        {"training__pop_size": "CartPole-v1"},
        [
            "training.pop_size=CartPole-v1: input should be a valid integer,"
            " unable to parse string as an integer"
        ],
    ),
    ({"algo__gamma": True}, ["algo.gamma=true: input should be a number, not true or false"]),
    ({"algo__loss": "mae"}, ["algo.loss=mae: input should be 'mse' or 'huber'"]),
    (
        {"algo__net_config__hidden_size": [8, 0]},
        ["algo.net_config.hidden_size.1=0: input should be greater than or equal to 1"],
    ),
    (
        {"env__wrappers": [{"path": "a:B", "kwarg": {}}]},
        ["env.wrappers.0.kwarg: no such setting; did you mean env.wrappers.0.kwargs?"],
    ),
    (
        {"env__id": None},
        [
            "env.id=null: no environment; choose env=NAME, or give id (a gymnasium id) "
            "or entrypoint (module:attr, file.py:Class)"
        ],
    ),
    (
        {"env__entrypoint": "a:B"},
        ["env.entrypoint=a:B: id=CartPole-v1 is given too; choose env=custom, or set one of them to null"],
    ),
    ({"device": "gpu"}, ["device=gpu: must be cpu, cuda or cuda:N"]),
    (
        {"training__max_steps": 500, "training__evo_steps": 501},
        ["training.evo_steps=501: must be <= max_steps=500; lower it or raise max_steps"],
    ),
    (
        {"training__replay_buffer__max_size": 64},
        [
            "training.replay_buffer.max_size=64: must be >= algo.batch_size=128;"
            " raise it or lower algo.batch_size"
        ],
    ),
    (
        {"training__max_steps": 127},
        ["training.max_steps=127: the ring never holds algo.batch_size=128; raise it or lower the batch"],
    ),
    (
        {"training__max_steps": 200, "algo__learn_step": 201},
        ["algo.learn_step=201: must be <= training.max_steps=200, or nothing is ever learned"],
    ),
    (
        {"training__evaluation_interval": 3, "training__num_epochs": 1},
        [
            "training.evaluation_interval=3: not read by DQN; evaluations follow training.evo_steps",
            "training.num_epochs=1: not read by DQN; the length is training.max_steps",
        ],
    ),
    (
        {"training__episode_steps": 3, "training__sum_scores": False},
        [
            "training.episode_steps=3: not read by DQN;"
            " the cap of an evaluation episode is training.eval_steps",
            "training.sum_scores=false: not read by DQN; one agent has one score; leave it true",
        ],
    ),
    (
        {"resume_allow": ["training.max_stepz"]},
        ["resume_allow=training.max_stepz: no such setting; did you mean training.max_steps?"],
    ),
    (
        {"training__replay_buffer": {"memory_size": 300, "max_size": 200}},
        ["training.replay_buffer.memory_size=300: max_size=200 is given too and means the same; keep one"],
    ),
]


@pytest.mark.parametrize(("settings", "expected"), MISTAKES)
def test_mistakes_are_one_line_each(settings, expected):
    have = f"(have: {', '.join(ALGO_REGISTRY.names())})"
    assert lines(**settings) == [line.replace("(have)", have) for line in expected]


def test_a_missing_group_is_named():
    with pytest.raises(ConfigError) as caught:
        ExperimentSpec.from_config({"algo": {"name": "DQN"}})
    assert str(caught.value) == "env: must be given"


def test_sharing_fills_the_ring_faster():
    assert build(training__max_steps=64, training__pop_size=2, training__experience_sharing=True)


def test_an_algorithm_without_ring_and_epsilon_refuses_their_fields(monkeypatch):
    ALGO_REGISTRY.names()  # every module is found before the entries are copied
    monkeypatch.setattr(ALGO_REGISTRY, "_entries", dict(ALGO_REGISTRY._entries))
    ALGO_REGISTRY.add("OnPolicyToy", OnPolicyToySpec)
    settings = {"replay_buffer": {}, "learning_delay": 1, "experience_sharing": True, "eps_start": 1.0}
    found = lines(algo__name="OnPolicyToy", training=settings | {"eps_schedule": "linear"})
    assert found == [
        "training.replay_buffer: OnPolicyToy learns from no replay ring; leave it at its default",
        "training.learning_delay: OnPolicyToy learns from no replay ring; leave it at its default",
        "training.experience_sharing: OnPolicyToy learns from no replay ring; leave it at its default",
        "training.eps_start=1.0: OnPolicyToy does not explore with epsilon; leave it at its default",
        "training.eps_schedule=linear: OnPolicyToy does not explore with epsilon; leave it at its default",
    ]
    assert build(algo__name="OnPolicyToy").replay_buffer is None


def test_resolved_defaults():
    spec = build()
    assert spec.replay_buffer == ReplayBufferSpec() and spec.training.replay_buffer is None
    assert build(training__replay_buffer={"max_size": 200}).replay_buffer == ReplayBufferSpec(max_size=200)
    assert spec.generation_steps == 10_000
    assert build(training__max_steps=500).generation_steps == 500
    assert (spec.seed, spec.threads, spec.device, spec.plugins) == (0, None, "cpu", [])


def test_env_spec():
    assert EnvSpec(id="CartPole-v1").num_envs == 16
    spec = EnvSpec(entrypoint="envs.py:Mine", wrappers=["a:B", {"path": "c:D", "kwargs": {"k": [1]}}])
    assert spec.name == "envs.py:Mine"
    assert [(wrapper.path, wrapper.kwargs) for wrapper in spec.wrappers] == [("a:B", {}), ("c:D", {"k": [1]})]
    for entrypoint in ("envs", ":Mine", "envs:"):
        with pytest.raises(ValueError, match=r"entrypoint=.*: must read module:attr or file\.py:Class"):
            EnvSpec(entrypoint=entrypoint)
    with pytest.raises(
        ValueError, match="vectorization=entry_point: a vector entry point cannot be used with wrappers"
    ):
        EnvSpec(id="CartPole-v1", wrappers=["a:B"], vectorization="entry_point")
    with pytest.raises(ValueError, match="cannot be used with entrypoint"):
        EnvSpec(entrypoint="a:B", vectorization="entry_point")
    for bad in ({"num_envs": 0}, {"vectorization": "fork"}, {"config": {"x": object()}}):
        with pytest.raises(ValueError):
            EnvSpec(id="CartPole-v1", **bad)


def test_round_trip_through_json():
    spec = build(algo__net_config={}, algo__hp_config={"lr": {"min": 0, "max": 1}}, env__wrappers=["a:B"])
    config = json.loads(json.dumps(spec.to_config()))
    assert config["algo"]["name"] == "DQN" and config["algo"]["net_config"]["arch"] == "auto"
    again = ExperimentSpec.from_config(config)
    assert again == spec and isinstance(again.algo, DQNSpec) and again.fingerprint() == spec.fingerprint()


def test_from_config_leaves_the_tree_alone():
    config = tree(training__replay_buffer={"memory_size": 500}, training__population_size=2)
    before = copy.deepcopy(config)
    assert ExperimentSpec.from_config(config).training.pop_size == 2
    assert config == before


OUTSIDE = {
    "resume": "jobs/1",
    "resume_allow": ["training.max_steps"],
    "tracker": {"name": "none"},
    "threads": 2,
    "training__reporting_interval": 7,
    "training__checkpoint_steps": 7,
    "training__checkpoint_path": "c",
}
INSIDE = {"seed": 1, "device": "cuda", "algo__gamma": 0.9, "training__pop_size": 2, "env__num_envs": 1}


@pytest.mark.parametrize("name", OUTSIDE)
def test_fingerprint_ignores_what_does_not_change_the_run(name):
    assert build(**{name: OUTSIDE[name]}).fingerprint() == build().fingerprint()


@pytest.mark.parametrize("name", INSIDE)
def test_fingerprint_covers_what_changes_the_run(name):
    spec = build(**{name: INSIDE[name]})
    assert spec.fingerprint() != build().fingerprint() and len(spec.fingerprint()) == 64
    assert [line.partition(":")[0] for line in build().diff(spec)] == [name.replace("__", ".")]


def test_diff():
    new = build(
        algo__gamma=0.9, training__max_steps=5000, training__replay_buffer={"max_size": 500}, threads=3
    )
    found = build().diff(new)
    assert "algo.gamma: 0.99 -> 0.9" in found
    assert "training.max_steps: 1000000 -> 5000" in found
    assert "training.replay_buffer.max_size: null -> 500" in found
    assert not any(line.startswith("threads") for line in found)
    assert build().diff(new, allow=["training", "algo.gamma"]) == []
    assert build().diff(build()) == []
    assert build().diff(build(env__id="Acrobot-v1")) == ['env.id: "CartPole-v1" -> "Acrobot-v1"']


def test_paths_for_the_command_line():
    paths = field_paths(ExperimentSpec)
    assert {"training.replay_buffer.per_buffer_args.alpha", "env.num_envs", "seed"} <= set(paths)
    assert len(paths) == len(set(paths))


def test_validation_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build().to_config()
