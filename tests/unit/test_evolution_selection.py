"""Who goes on, against closed forms and small cases done by hand."""

import numpy as np
import pytest
from effects import effect

from agilerl_exp.errors import DivergenceError
from agilerl_exp.evolution.selection import select
from agilerl_exp.models.evolution import MultiFrequencySpec, PbtSpec, TournamentSpec


def pick(spec, fitness, seed=0, generation=1):
    return select(spec, np.array(fitness, float), generation, np.random.default_rng(seed))


@effect("TournamentSpec.tournament_size", "TournamentSpec.name")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_member_of_rank_r_wins_as_often_as_it_should(size):
    pop, draws = 5, 4000
    fitness = np.array([3.0, 1.0, 5.0, 2.0, 4.0])
    rank = np.argsort(np.argsort(-fitness))
    spec = TournamentSpec(tournament_size=size, elitism=False)
    wins = np.zeros(pop)
    for seed in range(draws):
        wins += np.bincount(rank[pick(spec, fitness, seed).parents], minlength=pop)
    r = np.arange(pop)
    expected = ((pop - r) / pop) ** size - ((pop - r - 1) / pop) ** size
    assert wins / (draws * pop) == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(draws * pop))


@effect("TournamentSpec.elitism", "TournamentSpec.mutate_elite")
def test_the_elite_keeps_its_slot_and_is_not_mutated():
    for seed in range(50):
        chosen = pick(TournamentSpec(), [1, 9, 3, 2], seed)
        assert chosen.parents[1] == 1 and not chosen.mutate[1] and chosen.mutate.sum() == 3
    assert pick(TournamentSpec(mutate_elite=True), [1, 9, 3, 2]).mutate.all()
    free = [pick(TournamentSpec(elitism=False), [1, 9, 3, 2], seed) for seed in range(200)]
    assert any(1 not in chosen.parents for chosen in free) and all(chosen.mutate.all() for chosen in free)


def test_whoever_goes_on_at_all_keeps_its_own_slot():
    for seed in range(200):
        parents = pick(TournamentSpec(), [4, 2, 7, 1, 3, 6, 5, 0], seed).parents
        assert (parents[parents] == parents).all()


def test_nan_never_wins_and_all_nan_stops():
    for seed in range(2000):
        chosen = pick(TournamentSpec(), [1.0, np.nan, 0.5, 2.0], seed)
        assert chosen.parents[3] == 3 and not chosen.mutate[3] and 1 not in chosen.parents
    assert (
        pick(TournamentSpec(), [-np.inf, np.inf, 1.0]).parents[2] == 2
    )  # infinite returns are no score either
    for spec in (TournamentSpec(), PbtSpec(), MultiFrequencySpec()):
        with pytest.raises(DivergenceError, match="no member has a finite fitness"):
            pick(spec, [np.nan] * 6)


def test_whoever_diverged_is_replaced_whatever_the_rules():
    for spec in (PbtSpec(), MultiFrequencySpec(evolution_frequency_ratios=[50, 100])):
        chosen = pick(spec, [np.nan, np.nan, 5, 1, 2, np.nan, 3, 4])
        assert np.isfinite(np.array([np.nan, np.nan, 5, 1, 2, np.nan, 3, 4])[chosen.parents]).all()
        assert chosen.mutate[[0, 1, 5]].all() and not chosen.mutate[2]


def test_equal_scores_rank_by_slot():
    assert pick(TournamentSpec(), [1, 1, 1, 1]).parents[0] == 0
    assert not pick(TournamentSpec(), [1, 1, 1, 1]).mutate[0]


@effect("PbtSpec.quantile", "PbtSpec.name")
@pytest.mark.parametrize(
    ("pop", "quantile", "count"), [(8, 0.25, 2), (8, 0.5, 4), (3, 0.25, 1), (2, 0.5, 1), (5, 0.4, 2)]
)
def test_truncation_replaces_the_bottom_by_the_top(pop, quantile, count):
    fitness = np.random.default_rng(1).permutation(pop)
    top, bottom = np.argsort(-fitness)[:count], np.argsort(fitness)[:count]
    seen = set()
    for seed in range(60):
        chosen = pick(PbtSpec(quantile=quantile), fitness, seed)
        assert set(np.flatnonzero(chosen.parents != np.arange(pop))) == set(bottom)
        assert (
            set(chosen.parents[bottom]) <= set(top)
            and (chosen.mutate == (chosen.parents != np.arange(pop))).all()
        )
        seen |= set(chosen.parents[bottom])
    assert seen == set(top)


@effect(
    "MultiFrequencySpec.name",
    "MultiFrequencySpec.n_winners",
    "MultiFrequencySpec.n_survivors",
    "MultiFrequencySpec.n_open_for_migration",
    "MultiFrequencySpec.n_losers",
    "MultiFrequencySpec.n_subpopulations",
)
def test_blocks_copy_winners_into_losers_and_let_better_outsiders_in():
    # block 0: 8 6 4 2 (slots 0-3), block 1: 7 5 3 1 (slots 4-7); both act
    spec = MultiFrequencySpec(
        n_winners=1, n_survivors=1, n_open_for_migration=1, n_losers=1, evolution_frequency_ratios=[1, 2]
    )
    chosen = pick(spec, [8, 6, 4, 2, 7, 5, 3, 1], generation=2)
    assert chosen.parents.tolist() == [0, 1, 4, 0, 4, 5, 0, 4]
    # slot 2 takes all of an outsider of the slower block, slot 6 only the weights of one of the faster block
    assert chosen.hyper_parents.tolist() == [0, 1, 4, 0, 4, 5, 4, 4]
    assert np.flatnonzero(chosen.mutate).tolist() == [3, 7]


@effect("MultiFrequencySpec.evolution_frequency_ratios")
def test_a_block_acts_in_its_own_generations_only():
    spec = MultiFrequencySpec(evolution_frequency_ratios=[1, 3])
    acted = []
    for generation in range(1, 7):
        chosen = pick(spec, [8, 6, 4, 2, 7, 5, 3, 1], generation=generation)
        acted.append([bool(chosen.mutate[:4].any()), bool(chosen.mutate[4:].any())])
    assert acted == [[True, generation % 3 == 0] for generation in range(1, 7)]


def test_an_open_member_that_is_better_stays():
    spec = MultiFrequencySpec(
        n_winners=1, n_survivors=0, n_open_for_migration=2, n_losers=1, evolution_frequency_ratios=[1, 2]
    )
    chosen = pick(spec, [9, 8, 7, 6, 7.5, 1, 1, 1])
    assert chosen.parents[1] == 1  # 8 against 7.5
    assert chosen.parents[2] == 2  # 7 against the next outsider, 1
