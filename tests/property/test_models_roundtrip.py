"""Any valid experiment survives being written as JSON and read again."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl_exp.models.algo import LLMAlgorithmSpec, MultiAgentRLAlgorithmSpec
from agilerl_exp.models.experiment import ExperimentSpec

unit = st.floats(0, 1)
positive = st.integers(1, 10**9)
optional = st.none() | positive
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
networks = st.fixed_dictionaries(
    {},
    optional={
        "hidden_size": st.lists(st.integers(1, 512), min_size=1, max_size=4),
        "activation": st.sampled_from(["ReLU", "Tanh", "GELU", "Identity"]),
        "layer_norm": st.booleans(),
        "init": st.sampled_from(["orthogonal", "torch", "he"]),
    },
)
factors = {"grow_factor": st.floats(1.01, 10), "shrink_factor": st.floats(0.01, 0.99)}
hp_configs = st.dictionaries(
    st.sampled_from(["lr", "gamma", "eps_start"]),  # the others are not read with some settings
    st.none() | st.fixed_dictionaries({"min": st.floats(0, 0.5), "max": st.floats(0.5, 1)}, optional=factors),
)
algos = st.fixed_dictionaries(
    {"name": st.just("DQN")},
    optional={
        "batch_size": st.integers(1, 100),
        "hp_config": hp_configs,
        "learn_step": st.integers(1, 100),
        "gamma": unit,
        "net_config": st.none() | networks,
        "lr": unit,
        "lr_schedule": st.sampled_from(["constant", "linear"]),
        "lr_final_fraction": unit,
        "tau": unit,
        "target_update_interval": optional,
        "double": st.booleans(),
        "loss": st.sampled_from(["mse", "huber"]),
        "max_grad_norm": st.none() | st.floats(1e-3, 1e3),
        "normalize_obs": st.booleans(),
    },
)
rings = st.sampled_from(["standard", "n_step", "per", "both"]).flatmap(
    lambda kind: st.fixed_dictionaries(
        {
            "max_size": st.integers(128, 10**7),
            "standard_buffer": st.booleans() if kind != "standard" else st.just(True),
            "n_step_buffer": st.just(kind in ("n_step", "both")),
            "per_buffer": st.just(kind in ("per", "both")),
        },
        optional=({"n_step": st.integers(1, 100)} if kind in ("n_step", "both") else {})
        | (
            {"per_buffer_args": st.fixed_dictionaries({}, optional={"alpha": unit, "beta": unit})}
            if kind in ("per", "both")
            else {}
        ),
    )
)
epsilons = st.one_of(
    st.fixed_dictionaries(
        {"eps_start": st.floats(0.5, 1), "eps_end": st.floats(1e-3, 0.5)},
        optional={"eps_decay": st.floats(0.1, 1)},
    ),
    st.fixed_dictionaries(
        {"eps_schedule": st.just("linear"), "eps_start": st.floats(0.5, 1), "eps_end": st.floats(0, 0.5)},
        optional={"eps_decay": st.floats(1, 1e9)},
    ),
    st.fixed_dictionaries({"eps_schedule": st.just("constant")}, optional={"eps_start": unit}),
)
rest_of_training = st.fixed_dictionaries(
    {"max_steps": st.integers(1000, 10**9)},
    optional={
        "evo_steps": st.integers(1, 1000),
        "population_size": positive,
        "eval_steps": optional,
        "eval_loop": positive,
        "replay_buffer": st.none() | rings,
        "hpo": st.booleans(),
        "target_score": st.none() | st.floats(-1e9, 1e9),
        "learning_delay": st.integers(0, 999),
        "checkpoint_steps": optional,
        "checkpoint_path": st.none() | st.text(min_size=1),
        "overwrite_checkpoints": st.booleans(),
        "reporting_interval": positive,
        "experience_sharing": st.booleans(),
    },
)
trainings = st.builds(lambda epsilon, rest: epsilon | rest, epsilons, rest_of_training)
wrappers = st.text(min_size=1) | st.fixed_dictionaries(
    {"path": st.text(min_size=1)}, optional={"kwargs": st.dictionaries(st.text(), json_values, max_size=3)}
)
envs = st.fixed_dictionaries(
    {"id": st.text(min_size=1)},
    optional={
        "config": st.dictionaries(st.text(), json_values, max_size=3),
        "wrappers": st.lists(wrappers, max_size=3),
        "num_envs": positive,
        "vectorization": st.sampled_from(["auto", "sync", "async"]),
    },
)
experiments = st.fixed_dictionaries(
    {"algo": algos, "training": trainings, "env": envs},
    optional={
        "tracker": st.fixed_dictionaries({"name": st.sampled_from(["jsonl", "none"])}),
        "seed": st.integers(0, 2**63),
        "threads": optional,
        "device": st.sampled_from(["cpu", "cuda", "cuda:3"]),
        "plugins": st.lists(st.text(), max_size=2),
        "resume": st.none() | st.text(),
        "resume_allow": st.lists(st.sampled_from(["training.max_steps", "training"]), max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@given(experiments)
def test_experiment_round_trip(config):
    spec = ExperimentSpec.from_config(config)
    again = ExperimentSpec.from_config(json.loads(json.dumps(spec.to_config())))
    assert again == spec
    assert again.to_config() == spec.to_config()
    assert again.fingerprint() == spec.fingerprint()
    assert spec.diff(again) == []


@settings(max_examples=150, deadline=None)
@given(trainings)
def test_epsilon_ends_inside_its_range(config):
    spec = ExperimentSpec.from_config(
        {"algo": {"name": "DQN"}, "env": {"id": "e"}, "training": config}
    ).training
    start, end, decay = spec.epsilon
    assert 0 <= end <= start <= 1
    if spec.eps_schedule == "linear":
        assert decay >= 1
    else:
        assert 0 < decay <= 1
        if "eps_decay" not in config and spec.eps_schedule == "exponential":
            assert abs(start * decay ** (spec.max_steps / 10) - end) <= 1e-6


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([LLMAlgorithmSpec, MultiAgentRLAlgorithmSpec]), st.integers(1, 10**6), unit)
def test_base_specs_round_trip(cls, batch_size, value):
    field = "beta" if cls is LLMAlgorithmSpec else "gamma"
    spec = cls(batch_size=batch_size, **{field: value})
    assert cls.model_validate(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec
