"""Registry and base specs: look-ups, defaults of the seeds, building, hp_config, light imports."""

import subprocess
import sys
import warnings
from typing import ClassVar

import pytest
from pydantic import ValidationError

from agilerl_exp.models.algo import (
    ALGO_REGISTRY,
    AlgorithmRegistry,
    AlgorithmSpec,
    LLMAlgorithmSpec,
    MultiAgentRLAlgorithmSpec,
    RegistryEntry,
    RLAlgorithmSpec,
)
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.base import Static, tunables
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.network import AutoSpec, MlpSpec
from agilerl_exp.models.training import TrainingSpec

BASE = {"batch_size": 128, "hp_config": None}
RL = BASE | {"learn_step": 5, "gamma": 0.99}
LLM = BASE | {
    "beta": 0.001,
    "max_grad_norm": 0.1,
    "update_epochs": 1,
    "reduce_memory_peak": False,
    "use_separate_reference_adapter": False,
    "calc_position_embeddings": True,
    "gradient_checkpointing": True,
    "use_liger_loss": False,
    "seed": 42,
    "quantization": None,
    "activation_offload": False,
    "use_sequence_packing": False,
    "lora_target_scope": None,
    "fused_logprobs_chunk_rows": None,
    "fused_loss_chunk_rows": None,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_cap": 2.0,
    "attn_implementation": None,
    "pretrained_model_name_or_path": None,
    "max_model_len": 1024,
    "lora_config": None,
}


class Toy:
    """Stands for an algorithm that a plugin keeps beside its spec."""

    def __init__(self, spec, observation_space, action_space, index, device):
        self.arguments = (spec, observation_space, action_space, index, device)
        self.loaded = None

    def load_checkpoint(self, path):
        self.loaded = path


class ToySpec(RLAlgorithmSpec):
    """A plugin's spec."""

    lr: float = 0.5


def test_defaults_are_those_of_the_seeds():
    assert AlgorithmSpec().model_dump() == BASE
    assert RLAlgorithmSpec().model_dump() == RL | {"net_config": None}
    assert MultiAgentRLAlgorithmSpec().model_dump() == RL | {"learn_step": 2048, "torch_compiler": None}
    assert LLMAlgorithmSpec().model_dump() == LLM


def test_dqn_defaults():
    assert DQNSpec().model_dump() == RL | {
        "net_config": None,
        "lr": 1e-4,
        "lr_schedule": "constant",
        "lr_final_fraction": 0.02,
        "tau": 1e-3,
        "target_update_interval": None,
        "double": False,
        "loss": "mse",
        "max_grad_norm": None,
        "normalize_obs": False,
    }
    assert (DQNSpec.agent_type, DQNSpec.off_policy, DQNSpec.uses_epsilon) == ("single", True, True)
    assert DQNSpec.default_evo_steps == 10_000


@pytest.mark.parametrize(
    ("cls", "name", "bad"),
    [
        (AlgorithmSpec, "batch_size", [0]),
        (RLAlgorithmSpec, "learn_step", [0]),
        (RLAlgorithmSpec, "gamma", [-0.01, 1.01, float("nan")]),
        (MultiAgentRLAlgorithmSpec, "learn_step", [0]),
        (MultiAgentRLAlgorithmSpec, "gamma", [-0.01, 1.01]),
        (LLMAlgorithmSpec, "beta", [-0.01, 1.01]),
        (LLMAlgorithmSpec, "max_grad_norm", [-0.01]),
        (LLMAlgorithmSpec, "update_epochs", [0]),
        (LLMAlgorithmSpec, "vllm_importance_sampling_cap", [-0.01]),
        (LLMAlgorithmSpec, "pretrained_model_name_or_path", [""]),
        (LLMAlgorithmSpec, "max_model_len", [0]),
        (LLMAlgorithmSpec, "fused_loss_chunk_rows", [0]),
        (LLMAlgorithmSpec, "fused_logprobs_chunk_rows", [0]),
        (LLMAlgorithmSpec, "seed", [-1]),
        (DQNSpec, "lr", [-1e-9]),
        (DQNSpec, "tau", [-0.01, 1.01]),
        (DQNSpec, "lr_final_fraction", [-0.01, 1.01]),
        (DQNSpec, "target_update_interval", [0]),
        (DQNSpec, "max_grad_norm", [0.0]),
        (DQNSpec, "loss", ["mae"]),
        (DQNSpec, "lr_schedule", ["cosine"]),
    ],
)
def test_bounds(cls, name, bad):
    for value in bad:
        with pytest.raises(ValidationError) as caught:
            cls(**{name: value})
        assert caught.value.errors()[0]["loc"][0] == name


def test_closed_ends_are_allowed():
    assert RLAlgorithmSpec(gamma=0).gamma == 0 and RLAlgorithmSpec(gamma=1).gamma == 1
    assert LLMAlgorithmSpec(beta=0, max_grad_norm=0, vllm_importance_sampling_cap=0).beta == 0
    assert DQNSpec(lr=0, tau=1).tau == 1


def test_tunable_ranges_lie_inside_the_bounds():
    assert list(tunables(DQNSpec)) == ["batch_size", "learn_step", "gamma", "lr", "tau"]
    for cls in (DQNSpec, MultiAgentRLAlgorithmSpec, LLMAlgorithmSpec):
        for name, mark in tunables(cls).items():
            cls(**{name: mark.low})
            cls(**{name: mark.high})
            assert mark.low < mark.high and (mark.scale != "log" or mark.low > 0)
    static = {name for name, field in DQNSpec.model_fields.items() if Static() in field.metadata}
    assert static == {"batch_size", "learn_step"}


def test_registry_finds_specs_without_a_list():
    assert ALGO_REGISTRY.get("DQN") == RegistryEntry(spec_cls=DQNSpec)
    assert "DQN" in ALGO_REGISTRY.names()
    with pytest.raises(KeyError, match=r"'dqnn' is not registered \(have: .*DQN"):
        ALGO_REGISTRY.get("dqnn")


def test_registry_add_and_replace():
    registry = AlgorithmRegistry()
    assert registry.names() == []
    with pytest.raises(KeyError, match="have: nothing"):
        registry.get("Toy")
    registry.add("Toy", ToySpec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.add("Toy", ToySpec)
    with pytest.warns(UserWarning, match=r"algorithm Toy: .*ToySpec is replaced by .*DQNSpec"):
        registry.add("Toy", DQNSpec)
    assert registry.get("Toy").spec_cls is DQNSpec
    with pytest.raises(AttributeError):
        registry.get("Toy").spec_cls = ToySpec


def test_name_and_algo_class():
    assert (ToySpec().name, DQNSpec().name) == ("Toy", "DQN")
    assert ToySpec.algo_class() is Toy

    class LostSpec(RLAlgorithmSpec):
        """Has no algorithm."""

    with pytest.raises(LookupError, match=r"LostSpec: no class Lost in .*test_models_algo or agilerl_exp\."):
        LostSpec.algo_class()


def test_build_forwards_the_whole_spec():
    spec = ToySpec(gamma=0.9)
    agent = spec.build_algorithm("obs", "act", 3, device="cuda:1")
    assert agent.arguments == (spec, "obs", "act", 3, "cuda:1") and agent.loaded is None
    agent = spec.build_algorithm(
        observation_space="obs", action_space="act", index=0, resume_from_checkpoint="d"
    )
    assert agent.loaded == "d"


def test_build_refuses_what_is_missing():
    with pytest.raises(ValueError, match=r"Toy\.build_algorithm: observation_space, index must be given"):
        ToySpec().build_algorithm(action_space="act")
    with pytest.raises(NotImplementedError, match="accelerator"):
        ToySpec().build_algorithm("obs", "act", 0, accelerator=object())
    with pytest.raises(ValueError, match="action_spaces"):
        MultiAgentRLAlgorithmSpec().build_algorithm({"a": 1}, None, 0)
    with pytest.raises(NotImplementedError):
        MultiAgentRLAlgorithmSpec().build_algorithm({"a": 1}, {"a": 1}, 0)
    with pytest.raises(ValueError, match="tokenizer"):
        LLMAlgorithmSpec().build_algorithm()
    with pytest.raises(NotImplementedError):
        LLMAlgorithmSpec().build_algorithm(tokenizer="t")
    with pytest.raises(NotImplementedError):
        AlgorithmSpec().build_algorithm()
    with pytest.raises(NotImplementedError):
        AlgorithmSpec.get_training_fn()


def test_training_kwargs():
    training, env = TrainingSpec(), EnvSpec(id="CartPole-v1")
    base = {"training": training, "env_name": "CartPole-v1"}
    assert ToySpec().get_training_kwargs(training=training, env_spec=env) == base
    assert DQNSpec().get_training_kwargs(training=training, env_spec=env, memory="m") == base | {
        "memory": "m"
    }
    pair = DQNSpec().get_training_kwargs(training=training, env_spec=env, memory="m", n_step_memory="n")
    assert pair == base | {"memory": "m", "n_step_memory": "n"}


def test_hp_config():
    spec = DQNSpec(
        hp_config={"lr": {"min": 1e-4, "max": 1e-3, "grow_factor": 1.2}, "eps_end": {"min": 0, "max": 0.1}}
    )
    assert spec.hp_config["lr"].max == 1e-3 and spec.hp_config["lr"].shrink_factor is None
    cases: dict[str, tuple[dict[str, float], str]] = {
        "gama": ({"min": 0, "max": 1}, "gama: not a tunable hyperparameter; did you mean gamma?"),
        "gamma": ({"min": 0, "max": 2}, "gamma.max=2.0: input should be less than or equal to 1"),
        "lr": ({"min": -1, "max": 1}, "lr.min=-1.0: input should be greater than or equal to 0"),
        "tau": ({"min": 0.2, "max": 0.1}, "min=0.2: must be <= max=0.1"),
    }
    for name, (entry, line) in cases.items():
        with pytest.raises(ValidationError) as caught:
            DQNSpec(hp_config={name: entry})
        assert line in str(caught.value)
    for bad in ({"grow_factor": 1.0}, {"shrink_factor": 1.0}, {"shrink_factor": 0}):
        with pytest.raises(ValidationError):
            DQNSpec(hp_config={"lr": {"min": 0, "max": 1} | bad})
    with pytest.raises(ValidationError, match="eps_start: not a tunable"):
        ToySpec(hp_config={"eps_start": {"min": 0, "max": 1}})


def test_network_spec():
    assert MlpSpec().model_dump() == {
        "arch": "mlp",
        "hidden_size": [64, 64],
        "activation": "ReLU",
        "layer_norm": False,
        "init": "torch",
        "min_layers": 1,
        "max_layers": 3,
        "min_nodes": 16,
        "max_nodes": 512,
    }
    for bad in (
        {"hidden_size": [0]},
        {"hidden_size": []},
        {"activation": "relu"},
        {"init": "zeros"},
        {"arch": "cnn"},
        {"min_nodes": 8, "max_nodes": 4},
    ):
        with pytest.raises(ValidationError):
            MlpSpec(**bad)
    assert DQNSpec(net_config={"hidden_size": [3]}).net_config == AutoSpec(hidden_size=[3])


IMPORT = """
import sys, time
import agilerl_exp.models.algo
print(time.process_time())
from agilerl_exp.models.experiment import ExperimentSpec
ExperimentSpec.from_config({"algo": {"name": "DQN"}, "env": {"id": "CartPole-v1"}})
print(sorted({"torch", "hydra", "omegaconf", "numpy", "gymnasium"} & sys.modules.keys()))
"""


class TestImport:
    runs: ClassVar[int] = 3

    def test_specs_validate_light_and_fast(self):
        times = []
        for _ in range(self.runs):
            done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
            seconds, heavy = done.stdout.splitlines()
            assert heavy == "[]"
            times.append(float(seconds))
        assert min(times) <= 0.5  # CPU seconds, interpreter start included
