"""TrainingSpec and the replay ring specs: defaults, bounds, aliases, cross checks, exploration, rings."""

import numpy as np
import pytest
from pydantic import ValidationError

from agilerl_exp.buffers import Transition, join
from agilerl_exp.models.algo import LLMAlgorithmSpec
from agilerl_exp.models.algorithms.dqn import DQNSpec
from agilerl_exp.models.base import SettingsError, tunables
from agilerl_exp.models.training import NStepBufferArgs, PerBufferArgs, ReplayBufferSpec, TrainingSpec

# name: (default, smallest allowed value, a value below it)
TRAINING = {
    "max_steps": (1_000_000, 1, 0),
    "evo_steps": (None, 1, 0),
    "pop_size": (1, 1, 0),
    "eval_steps": (None, 1, 0),
    "eval_loop": (1, 1, 0),
    "replay_buffer": (None, None, None),
    "hpo": (True, None, None),
    "target_score": (None, None, None),
    "learning_delay": (0, 0, -1),
    "eps_start": (None, 0.05, -0.01),
    "eps_end": (None, 1e-9, -0.01),
    "eps_decay": (None, 1e-9, 0),
    "checkpoint_steps": (None, 1, 0),
    "checkpoint_path": (None, "c", ""),
    "overwrite_checkpoints": (False, None, None),
    "evaluation_interval": (10, 1, 0),
    "num_epochs": (None, 1, 0),
    "episode_steps": (500, 1, 0),
    "sum_scores": (True, None, None),
    "reporting_interval": (1024, 1, 0),
    "experience_sharing": (False, None, None),
}
OURS = {"eps_schedule": "exponential"}


def lines_of(call) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        call()
    errors = [entry["ctx"]["error"] for entry in caught.value.errors()]
    assert all(isinstance(error, SettingsError) for error in errors)
    return [line for error in errors for line in error.lines]


def test_training_has_the_seed_fields_and_defaults():
    spec = TrainingSpec()
    assert {name: row[0] for name, row in TRAINING.items()} | OURS == spec.model_dump()


@pytest.mark.parametrize("name", [name for name, row in TRAINING.items() if row[1] is not None])
def test_training_bounds(name):
    _, smallest, below = TRAINING[name]
    assert getattr(TrainingSpec(**{name: smallest}), name) == smallest
    with pytest.raises(ValidationError) as caught:
        TrainingSpec(**{name: below})
    assert caught.value.errors()[0]["loc"] == (name,)


@pytest.mark.parametrize("name", ["eps_start", "eps_end"])
def test_epsilon_is_a_probability(name):
    assert getattr(TrainingSpec(**{name: 1.0}), name) == 1.0
    with pytest.raises(ValidationError):
        TrainingSpec(**{name: 1.01})


def test_every_field_has_a_docstring():
    for spec in (TrainingSpec, ReplayBufferSpec, NStepBufferArgs, PerBufferArgs, DQNSpec, LLMAlgorithmSpec):
        assert [name for name, field in spec.model_fields.items() if not field.description] == []


def test_ring_defaults_and_bounds():
    assert ReplayBufferSpec().model_dump() == {
        "max_size": 100_000,
        "standard_buffer": True,
        "n_step_buffer": False,
        "n_step_buffer_args": {"n_step": 3},
        "per_buffer": False,
        "per_buffer_args": {"alpha": 0.5, "beta": 0.4, "epsilon": 1e-6},
    }
    bad = [
        (ReplayBufferSpec, "max_size", 0),
        (NStepBufferArgs, "n_step", 0),
        (PerBufferArgs, "alpha", -0.1),
        (PerBufferArgs, "alpha", 1.1),
        (PerBufferArgs, "beta", -0.1),
        (PerBufferArgs, "beta", 1.1),
        (PerBufferArgs, "epsilon", 0.0),
        (PerBufferArgs, "epsilon", float("inf")),
    ]
    for cls, name, value in bad:
        with pytest.raises(ValidationError):
            cls(**{name: value})


def test_specs_are_frozen_and_refuse_unknown_keys():
    with pytest.raises(ValidationError, match="frozen"):
        TrainingSpec().max_steps = 5
    with pytest.raises(ValidationError, match="Extra inputs"):
        TrainingSpec(max_step=5)
    with pytest.raises(ValidationError, match="number, not true or false"):
        TrainingSpec(pop_size=True)
    assert TrainingSpec(hpo=False).hpo is False
    assert TrainingSpec(max_steps=1e6).max_steps == 1_000_000


def test_aliases_set_the_field_and_are_not_dumped():
    spec = TrainingSpec(population_size=4)
    assert spec.pop_size == 4 and "population_size" not in spec.model_dump()
    ring = ReplayBufferSpec(memory_size=7, n_step=5, n_step_buffer=True)
    assert (ring.max_size, ring.n_step_buffer_args.n_step) == (7, 5)
    assert ReplayBufferSpec(n_step=None) == ReplayBufferSpec()
    assert ReplayBufferSpec(memory_size=7, max_size=7).max_size == 7


def test_an_alias_against_its_field_is_refused():
    assert lines_of(lambda: TrainingSpec(population_size=4, pop_size=2)) == [
        "population_size=4: pop_size=2 is given too and means the same; keep one"
    ]
    assert lines_of(lambda: ReplayBufferSpec(memory_size=5, max_size=7)) == [
        "memory_size=5: max_size=7 is given too and means the same; keep one"
    ]
    for args in ({"n_step": 3}, NStepBufferArgs(n_step=3)):
        assert lines_of(lambda args=args: ReplayBufferSpec(n_step=5, n_step_buffer_args=args)) == [
            "n_step=5: n_step_buffer_args.n_step=3 is given too and means the same; keep one"
        ]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"max_steps": 100, "evo_steps": 101},
            "evo_steps=101: must be <= max_steps=100; lower it or raise max_steps",
        ),
        (
            {"max_steps": 100, "learning_delay": 100},
            "learning_delay=100: must be < max_steps=100, or nothing is ever learned;"
            " lower it or raise max_steps",
        ),
        (
            {"eps_start": 0.1, "eps_end": 0.2},
            "eps_start=0.1: must be >= eps_end=0.2; raise it or lower eps_end",
        ),
        ({"eps_start": 0.01}, "eps_start=0.01: must be >= eps_end=0.05; raise it or lower eps_end"),
        (
            {"eps_end": 0.0},
            "eps_end=0.0: never reached by eps_schedule=exponential; give eps_decay,"
            " or use eps_schedule=linear",
        ),
        (
            {"eps_decay": 1.5},
            "eps_decay=1.5: factor of an env step, <= 1; a number of env steps needs eps_schedule=linear",
        ),
        (
            {"eps_decay": 0.99, "eps_schedule": "linear"},
            "eps_decay=0.99: env steps from eps_start to eps_end, >= 1;"
            " a factor needs eps_schedule=exponential",
        ),
        (
            {"eps_end": 0.1, "eps_schedule": "constant"},
            "eps_end=0.1: has no effect with eps_schedule=constant, which holds eps_start; set it to null",
        ),
    ],
)
def test_training_cross_checks(fields, line):
    assert lines_of(lambda: TrainingSpec(**fields)) == [line]


def test_all_cross_checks_are_told_at_once():
    lines = lines_of(lambda: TrainingSpec(max_steps=10, evo_steps=20, learning_delay=10, eps_start=0))
    assert [line.partition("=")[0] for line in lines] == ["evo_steps", "learning_delay", "eps_start"]


def test_boundaries_of_the_cross_checks_are_allowed():
    TrainingSpec(max_steps=100, evo_steps=100, learning_delay=99, eps_start=0.2, eps_end=0.2)
    TrainingSpec(eval_steps=5)  # unrelated to evaluation_interval
    TrainingSpec(eps_start=0, eps_end=0)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"standard_buffer": False},
            "standard_buffer=false: no kind of ring is left; set n_step_buffer=true or per_buffer=true,"
            " or leave it true",
        ),
        (
            {"n_step": 5},
            "n_step_buffer_args.n_step=5: has no effect while n_step_buffer is false; use buffer=n_step",
        ),
        (
            {"per_buffer_args": {"alpha": 0.6}},
            "per_buffer_args.alpha=0.6: has no effect while per_buffer is false; use buffer=per",
        ),
        (
            {"max_size": 2, "n_step_buffer": True},
            "n_step_buffer_args.n_step=3: must be <= max_size=2",
        ),
    ],
)
def test_ring_cross_checks(fields, line):
    assert lines_of(lambda: ReplayBufferSpec(**fields)) == [line]


def test_the_default_decay_reaches_the_end_at_a_tenth_of_the_run():
    start, end, decay = TrainingSpec(max_steps=1000).epsilon
    assert (start, end) == (1.0, 0.05)
    assert start * decay**100 == pytest.approx(0.05, rel=1e-9)
    assert decay == pytest.approx(0.9704870, abs=1e-7)  # 0.05 ** (1 / 100)


def test_epsilon_of_the_other_schedules():
    assert TrainingSpec(max_steps=1000, eps_schedule="linear").epsilon == (1.0, 0.05, 100.0)
    assert TrainingSpec(max_steps=3, eps_schedule="linear").epsilon.decay == 1.0
    assert TrainingSpec(eps_schedule="linear", eps_end=0, eps_decay=40).epsilon == (1.0, 0.0, 40.0)
    assert TrainingSpec(eps_schedule="constant", eps_start=0.3).epsilon == (0.3, 0.3, 1.0)
    assert TrainingSpec(eps_start=0.9, eps_end=0.1, eps_decay=0.5).epsilon == (0.9, 0.1, 0.5)
    assert TrainingSpec(eps_start=0.1, eps_end=0.1).epsilon == (0.1, 0.1, 1.0)


def test_generation_steps():
    assert TrainingSpec().generation_steps(10_000) == 10_000
    assert TrainingSpec(max_steps=300).generation_steps(10_000) == 300
    assert TrainingSpec(evo_steps=7).generation_steps(10_000) == 7


def test_tunable_ranges_lie_inside_the_bounds():
    assert list(tunables(TrainingSpec)) == ["eps_start", "eps_end", "eps_decay"]
    for name, mark in tunables(TrainingSpec).items():
        others = {"eps_end": 0.05, "eps_start": 1.0, "eps_decay": 0.9} | {name: mark.low}
        TrainingSpec(**others)
        TrainingSpec(**others | {name: mark.high})


def last_row(spec: ReplayBufferSpec, steps: int = 4):
    """The only drawable content of a ring of one row, after rewards 1, 2, 3, ... with gamma 0.5."""
    algo = DQNSpec(gamma=0.5)
    ring = join(spec.init_buffer(algo), spec.init_n_step_buffer(algo))
    for t in range(1, steps + 1):
        no = np.zeros((1, 1), bool)
        obs = np.full((1, 1, 1), t, np.float32)
        ring.add(Transition(obs, np.zeros((1, 1), np.int64), np.full((1, 1), t, np.float32), no, no, obs + 1))
    return ring.sample(64, np.random.default_rng(0))


def test_init_buffer_of_a_standard_ring():
    batch = last_row(ReplayBufferSpec())
    assert np.array_equal(batch.reward, batch.obs[..., 0]) and batch.one_step is None
    assert (batch.discount == 0.5).all() and (batch.weight == 1).all()
    assert np.array_equal(last_row(ReplayBufferSpec(n_step_buffer=True, n_step=1)).reward, batch.reward)


def test_max_size_is_the_capacity():
    ring = ReplayBufferSpec(max_size=5, n_step_buffer=True).init_buffer(DQNSpec())
    assert (ring.max_size, ring.n_step, ring.shared) == (5, 3, False)
    assert ReplayBufferSpec().init_buffer(DQNSpec(), shared=True).shared


@pytest.mark.parametrize("per", [False, True])
@pytest.mark.parametrize("standard", [False, True])
def test_init_buffer_of_windows(per, standard):
    spec = ReplayBufferSpec(standard_buffer=standard, n_step_buffer=True, n_step=2, per_buffer=per)
    batch = last_row(spec)
    first = batch.obs[..., 0]
    assert np.array_equal(batch.reward, first + 0.5 * (first + 1)) and (batch.discount == 0.25).all()
    assert set(np.unique(first)) == {1, 2, 3}
    if standard:
        assert np.array_equal(batch.one_step.reward, first)
    else:
        assert batch.one_step is None
    companion = spec.init_n_step_buffer(DQNSpec())
    assert (companion is not None) == per
    if per:
        assert (companion.n_step, spec.init_buffer(DQNSpec()).n_step) == (2, 1)


def test_init_buffer_takes_over_the_priority_arguments():
    args = {"alpha": 0.7, "beta": 0.2, "epsilon": 1e-3}
    ring = ReplayBufferSpec(per_buffer=True, per_buffer_args=args).init_buffer(DQNSpec(), "cuda")
    assert (ring.alpha, ring.beta, ring.epsilon, ring.device) == (0.7, 0.2, 1e-3, "cuda")
    assert ReplayBufferSpec().init_buffer(DQNSpec()).alpha is None


def test_a_ring_needs_a_discount():
    with pytest.raises(ValueError, match="has no gamma"):
        ReplayBufferSpec().init_buffer(LLMAlgorithmSpec())
