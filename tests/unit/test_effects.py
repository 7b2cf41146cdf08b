"""Every field of every spec has a test of its effect, or stands on a list with the reason."""

from __future__ import annotations

import ast
from pathlib import Path

import agilerl_exp.models.experiment  # noqa: F401  (brings all specs in)
from agilerl_exp.models.algo import (
    ALGO_REGISTRY,
    AlgorithmSpec,
    LLMAlgorithmSpec,
    MultiAgentRLAlgorithmSpec,
)
from agilerl_exp.models.base import RLHyperparameter, Spec

TESTS = Path(__file__).resolve().parents[1]

SHOWN_ELSEWHERE = {
    "ExperimentSpec.threads": "e2e/test_app_runs.py::test_one_thread_unless_more_are_asked_for",
    "ExperimentSpec.plugins": "e2e/test_app_runs.py::test_an_algorithm_of_the_user",
    "ExperimentSpec.resume": "e2e/test_app_runs.py::test_a_killed_job_goes_on_with_resume_alone",
}
REFUSED = "unit/test_models_experiment.py::test_mistakes_are_one_line_each"
EXEMPT = {
    "TrainingSpec.evaluation_interval": f"language models only; refused elsewhere ({REFUSED})",
    "TrainingSpec.num_epochs": f"language models and offline algorithms only; refused elsewhere ({REFUSED})",
    "TrainingSpec.episode_steps": f"bandits only; refused elsewhere ({REFUSED})",
    "TrainingSpec.sum_scores": f"multi-agent algorithms only; refused elsewhere ({REFUSED})",
    "ExperimentSpec.device": "these tests run on the CPU",
}
LATER = {RLHyperparameter, MultiAgentRLAlgorithmSpec, LLMAlgorithmSpec}  # whole specs of later rounds


def specs(cls: type[Spec] = Spec) -> set[type[Spec]]:
    """All specs of the product below `cls`."""
    ALGO_REGISTRY.names()
    below = set().union(*(specs(child) for child in cls.__subclasses__()))
    return below | {child for child in cls.__subclasses__() if child.__module__.startswith("agilerl_exp.")}


def declared() -> dict[str, bool]:
    """Every field as `Class.field`, by the class that declares it -> whether it only holds another spec."""
    return {
        f"{cls.__name__}.{name}": cls.model_fields[name].annotation in specs() | {AlgorithmSpec}
        for cls in specs() - LATER
        for name in cls.__annotations__
        if name in cls.model_fields
    }


def shown() -> set[str]:
    """The fields that tests name with `@effect(...)`."""
    names = set()
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "effect":
                names |= {argument.value for argument in node.args}
    return names


def test_every_field_has_a_test_of_its_effect_or_a_reason():
    groups = {name for name, is_group in declared().items() if is_group}  # their fields are asked one by one
    known = shown() | SHOWN_ELSEWHERE.keys() | EXEMPT.keys() | groups
    assert sorted(declared().keys() - known) == []


def test_no_list_names_what_is_not_there_or_names_it_twice():
    lists = [shown(), set(SHOWN_ELSEWHERE), set(EXEMPT)]
    assert sorted(set().union(*lists) - declared().keys()) == []
    assert sum(map(len, lists)) == len(set().union(*lists))
    for place in (*SHOWN_ELSEWHERE.values(), REFUSED):
        file, _, test = place.partition("::")
        assert f"\ndef {test}(" in (TESTS / file).read_text(), place


def test_the_walk_finds_the_specs():
    names = declared()
    assert {"TrainingSpec.max_steps", "AlgorithmSpec.batch_size", "DQNSpec.tau", "WrapperSpec.kwargs"} <= set(
        names
    )
    assert names["ExperimentSpec.training"] and names["ReplayBufferSpec.per_buffer_args"]
    assert not names["TrainingSpec.replay_buffer"]  # None has a meaning of its own
