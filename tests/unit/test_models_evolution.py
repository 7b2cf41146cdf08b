"""Specs of evolution: defaults, what may mutate within which bounds, one line a mistake."""

import pytest
from effects import effect

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.evolution import MultiFrequencySpec, Range, TournamentSpec, mutable
from agilerl_exp.models.experiment import ExperimentSpec


def build(evolution=None, **settings):
    tree = {
        "algo": {"name": "DQN"},
        "env": {"id": "CartPole-v1"},
        "training": {"pop_size": 8, "max_steps": 10_000},
    }
    for path, value in settings.items():
        group, _, field = path.partition("__")
        tree[group][field] = value
    return ExperimentSpec.from_config(tree | ({} if evolution is None else {"evolution": evolution}))


def ranges(evolution=None, **settings):
    spec = build(evolution, **settings)
    return mutable(spec.algo, spec.training, spec.evolution)


def mistake(evolution=None, **settings):
    with pytest.raises(ConfigError) as caught:
        build(evolution, **settings)
    return str(caught.value)


def test_a_tournament_is_the_default_and_names_choose():
    assert isinstance(build().evolution, TournamentSpec)
    for name in ("none", "tournament", "multi_frequency", "pbt"):
        assert build({"name": name}).evolution.name == name
    spec = build({"name": "pbt", "quantile": 0.5})
    assert ExperimentSpec.from_config(spec.to_config()) == spec


def test_by_default_everything_tunable_may_mutate():
    found = ranges()
    assert set(found) == {
        "batch_size",
        "learn_step",
        "gamma",
        "lr",
        "tau",
        "eps_start",
        "eps_end",
        "eps_decay",
    }
    assert found["lr"] == Range(1e-5, 1e-2, "log") and found["gamma"] == Range(0.9, 0.9999, "log1m")
    assert found["learn_step"] == Range(1, 64, "log", integer=True)


def test_what_nothing_reads_does_not_mutate():
    assert not {"eps_end", "eps_decay"} & ranges(training__eps_schedule="constant").keys()
    assert "tau" not in ranges(algo__target_update_interval=500)


def test_ranges_follow_the_run():
    assert ranges(training__replay_buffer={"max_size": 200})["batch_size"].high == 200
    assert ranges(training__max_steps=130, training__evo_steps=None)["learn_step"].high == 64
    linear = ranges(training__eps_schedule="linear", training__max_steps=50_000)["eps_decay"]
    assert (linear.low, linear.high, linear.scale) == (1000, 25_000, "log")


@effect("AlgorithmSpec.hp_config", "EvolutionSpec.rl_hp_selection")
def test_names_that_are_given_are_the_only_ones():
    given = {"lr": {"min": 1e-4, "max": 1e-3, "grow_factor": 2.0}}
    assert ranges(algo__hp_config=given) == {"lr": Range(1e-4, 1e-3, "log", grow_factor=2.0)}
    assert set(ranges({"name": "tournament", "rl_hp_selection": {"lr": None, "tau": None}})) == {"lr", "tau"}
    both = ranges(
        {"name": "tournament", "rl_hp_selection": {"lr": None}}, algo__hp_config=given | {"tau": given["lr"]}
    )
    assert both == {"lr": Range(1e-4, 1e-3, "log", grow_factor=2.0)}
    over = {"name": "tournament", "rl_hp_selection": {"lr": {"min": 2e-4, "max": 3e-4}}}
    assert ranges(over, algo__hp_config=given) == {"lr": Range(2e-4, 3e-4, "log")}
    assert ranges(algo__hp_config={"lr": None}) == {"lr": ranges()["lr"]}
    zero = ranges(algo__hp_config={"lr": {"min": 0, "max": 1e-3}})
    assert zero["lr"].scale == "linear"  # zero has no logarithm


def test_names_that_cannot_mutate_are_refused():
    line = mistake({"name": "tournament", "rl_hp_selection": {"lrr": None}})
    assert line.startswith(
        "evolution.rl_hp_selection.lrr: cannot mutate here; did you mean lr? (have: batch_size, "
    )
    line = mistake({"name": "tournament", "rl_hp_selection": {"tau": None}}, algo__target_update_interval=9)
    assert line.startswith("evolution.rl_hp_selection.tau: cannot mutate here")
    line = mistake(
        {"name": "pbt", "rl_hp_selection": {"gamma": None}},
        algo__hp_config={"lr": {"min": 1e-4, "max": 1e-3}},
    )
    assert line == "evolution.rl_hp_selection.gamma: cannot mutate here (have: lr)"
    line = mistake({"name": "tournament", "rl_hp_selection": {"gamma": {"min": 0.5, "max": 2}}})
    assert line == "evolution.rl_hp_selection.gamma.max=2.0: input should be less than or equal to 1"
    line = mistake(algo__hp_config={"tau": {"min": 0.1, "max": 0.2}}, algo__target_update_interval=9)
    assert line.startswith("algo.hp_config.tau: cannot mutate here")


@pytest.mark.parametrize(
    ("evolution", "expected"),
    [
        (
            {"name": "tournement"},
            "evolution.name=tournement: must be one of none, tournament, multi_frequency, pbt"
            "; did you mean tournament?",
        ),
        ({"name": "pbt", "tournament_size": 3}, "evolution.tournament_size: no such setting"),
        (
            {"probabilities": {"no_mut": 0, "arch": 0, "params": 0, "rl_hp": 0}},
            "evolution.probabilities.no_mut=0.0: all kinds have weight 0; give one of them a weight",
        ),
        ({"tournament_size": 0}, "evolution.tournament_size=0: input should be greater than or equal to 1"),
        (
            {"name": "pbt", "quantile": 0.6},
            "evolution.quantile=0.6: input should be less than or equal to 0.5",
        ),
        (
            {"name": "pbt", "explore": "resample", "resample_probability": 0.5},
            "evolution.resample_probability=0.5: has no effect with explore=resample; leave it out",
        ),
        (
            {"name": "multi_frequency", "n_subpopulations": 3},
            "evolution.n_subpopulations=3: training.pop_size=8 must be a multiple of it with at least 3 members each",
        ),
        (
            {"name": "multi_frequency", "n_losers": 3},
            "evolution.n_losers=3: n_winners, n_survivors, n_open_for_migration, n_losers = 1, 0, 1, 3 must sum to "
            "the 4 members of a sub-population, with at least one winner, open member and loser",
        ),
        (
            {"name": "multi_frequency", "n_survivors": 3},
            "evolution.n_losers=-1: n_winners, n_survivors, n_open_for_migration, n_losers = 1, 3, 1, -1 must sum to "
            "the 4 members of a sub-population, with at least one winner, open member and loser",
        ),
        (
            {"name": "multi_frequency", "evolution_frequency_ratios": [1]},
            "evolution.evolution_frequency_ratios=[1]: must have n_subpopulations=2 entries",
        ),
        (
            {"name": "multi_frequency", "evolution_frequency_ratios": [2, 2]},
            "evolution.evolution_frequency_ratios=[2, 2]: must rise strictly",
        ),
    ],
)
def test_mistakes_are_one_line_each(evolution, expected):
    assert mistake(evolution).startswith(expected) and "\n" not in mistake(evolution)


def test_brackets_and_ratios_have_defaults():
    assert MultiFrequencySpec().brackets(8) == (2, 0, 2, 4) and MultiFrequencySpec().brackets(3) == (
        1,
        0,
        1,
        1,
    )
    assert MultiFrequencySpec(n_subpopulations=4).ratios == [1, 5, 10, 15]
    assert MultiFrequencySpec(n_winners=1, n_survivors=2).brackets(8) == (1, 2, 2, 3)


def test_a_population_of_one_need_not_fit():
    assert build({"name": "multi_frequency"}, training__pop_size=1)
