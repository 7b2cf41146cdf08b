"""Moves of a hyperparameter: bounds, types, distributions."""

import json
from math import log

import numpy as np
import pytest
from effects import effect

from agilerl_exp.evolution.hyperparameters import drawn, explored, moved, mutated, sampled
from agilerl_exp.models.evolution import PbtSpec, Range

LR, GAMMA, CLIP = Range(1e-4, 1e-2, "log"), Range(0.9, 0.9999, "log1m"), Range(0.1, 1.0, "linear")
BATCH, STEP = Range(8, 256, "log", integer=True), Range(1, 16, "log", integer=True)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_ten_thousand_mutations_stay_inside_and_keep_their_type():
    values, ranges, source = {"lr": 1e-3, "batch_size": 32, "learn_step": 4}, {}, rng()
    ranges = {"lr": LR, "batch_size": BATCH, "learn_step": STEP}
    moves = []
    for _ in range(10_000):
        new = mutated(values, ranges, source)
        moves.append(len(new))
        for name, value in new.items():
            assert ranges[name].low <= value <= ranges[name].high
            assert value != values[name] or not ranges[name].integer
        values |= new
        assert type(values["batch_size"]) is int and type(values["learn_step"]) is int
        json.dumps(values)
    # each with probability 1/2, and one where none would move: 4/8, 3/8, 1/8
    assert [moves.count(k) / 10_000 for k in range(4)] == pytest.approx([0, 4 / 8, 3 / 8, 1 / 8], abs=0.02)


@pytest.mark.parametrize(("within", "value", "u"), [(LR, 1e-3, log), (GAMMA, 0.99, lambda x: log(1 - x))])
def test_a_step_is_up_to_a_factor_of_four_and_a_quarter_of_the_draws_is_anew(within, value, u):
    source = rng()
    steps = np.array([u(moved(value, within, source)) - u(value) for _ in range(8000)])
    far = np.mean(abs(steps) > log(4) + 1e-9)
    low, high = sorted((u(within.low), u(within.high)))
    reach = min(u(value) + log(4), high) - max(u(value) - log(4), low)
    assert far == pytest.approx(0.25 * (1 - reach / (high - low)), abs=0.02)
    assert steps.mean() == pytest.approx(0.25 * ((low + high) / 2 - u(value)), abs=0.1)


def test_linear_values_move_by_a_quarter_of_their_range():
    source = rng()
    steps = np.array([moved(0.5, CLIP, source) - 0.5 for _ in range(4000)])
    assert np.mean(abs(steps) > 0.225 + 1e-9) == pytest.approx(0.25 * 0.5, abs=0.03)


def test_the_ends_reflect_and_values_outside_come_in():
    source = rng()
    assert all(moved(1e-2, LR, source) < 1e-2 for _ in range(200))  # nothing sticks to an end
    inside = np.array([log(moved(1.0, LR, source)) for _ in range(4000)])
    assert inside.mean() == pytest.approx((log(1e-4) + log(1e-2)) / 2, abs=0.1)  # uniform in ln
    assert np.isfinite(moved(1.0, GAMMA, source)) and np.isfinite(moved(0.0, LR, source))


def test_an_integer_that_would_stay_moves_by_one():
    source = rng()
    narrow = Range(1, 2, "log", integer=True)
    assert {moved(1, narrow, source) for _ in range(50)} == {2} and {
        moved(2, narrow, source) for _ in range(50)
    } == {1}
    assert moved(3, Range(3, 3, "log", integer=True), source) == 3


def test_factors_replace_the_move():
    source = rng()
    both = Range(1e-4, 1e-2, "log", grow_factor=2.0, shrink_factor=0.5)
    assert {moved(1e-3, both, source) for _ in range(50)} == {2e-3, 5e-4}
    assert moved(8e-3, Range(1e-4, 1e-2, "log", grow_factor=2.0), source) == 1e-2
    assert moved(4, Range(1, 16, "log", integer=True, grow_factor=1.01), source) in (3, 5)  # D17: it can move


def test_eps_end_never_passes_eps_start():
    ranges = {"eps_start": Range(0.1, 1.0, "linear"), "eps_end": Range(0.001, 0.2, "log")}
    source, values = rng(), {"eps_start": 0.12, "eps_end": 0.11}
    cut = 0
    for _ in range(2000):
        new = values | mutated(values, ranges, source)
        assert new["eps_end"] <= new["eps_start"]
        cut += new["eps_end"] == new["eps_start"]
        drawn_all = sampled(values, ranges, source)
        assert drawn_all["eps_end"] <= drawn_all["eps_start"]
    assert cut


@effect("PbtSpec.explore", "PbtSpec.resample_probability")
def test_pbt_moves_everything_by_a_fifth_or_draws_anew():
    values, ranges = {"lr": 1e-3, "tau": 5e-4}, {"lr": LR, "tau": LR}
    never = PbtSpec(resample_probability=0)
    for seed in range(50):
        new = explored(never, values, ranges, rng(seed))
        assert all(
            new[name] / values[name] == pytest.approx(0.8) or new[name] / values[name] == pytest.approx(1.2)
            for name in values
        )
    for spec in (PbtSpec(explore="resample"), PbtSpec(resample_probability=1)):
        logs = [log(explored(spec, values, ranges, rng(seed))["lr"]) for seed in range(2000)]
        assert np.mean(logs) == pytest.approx(log(1e-3), abs=0.1)
        assert np.std(logs) == pytest.approx(log(100) / 12**0.5, abs=0.06)
    share = np.mean(
        [explored(PbtSpec(), values, ranges, rng(s))["lr"] not in (8e-4, 1.2e-3) for s in range(2000)]
    )
    assert share == pytest.approx(0.25, abs=0.05)


def test_draws_are_uniform_in_the_coordinate():
    source = rng()
    horizon = np.array([log(1 - drawn(GAMMA, source)) for _ in range(4000)])
    assert horizon.min() > log(1e-4) - 1e-6 and horizon.max() < log(0.1) + 1e-6
    assert horizon.mean() == pytest.approx((log(1e-4) + log(0.1)) / 2, abs=0.1)


def test_nothing_that_may_move_is_no_mutation():
    assert mutated({}, {}, rng()) == {}
