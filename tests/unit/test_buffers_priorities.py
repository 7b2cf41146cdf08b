"""Prioritized draws: chances, weights, priorities of new rows, refusal of NaN, both loops of the tree."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from agilerl_exp.buffers import ReplayBuffer, Transition
from agilerl_exp.buffers.priorities import Priorities
from agilerl_exp.buffers.sum_tree import compiled_loops
from agilerl_exp.errors import ConfigError, DivergenceError

needs_compiler = pytest.mark.skipif(compiled_loops() is None, reason="no C compiler here")


def filled(size: int, *, members: int = 1, capacity: int = 500, **settings) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, **({"alpha": 1.0, "epsilon": 1e-8} | settings))
    value, no = np.zeros((members, size)), np.zeros((members, size), bool)
    buffer.add(Transition(value, no.astype(int), value, no, no, value))
    return buffer


def prioritize(buffer: ReplayBuffer, priorities, members=None) -> None:
    td_error = np.atleast_2d(priorities)
    buffer.update_priorities(np.tile(np.arange(td_error.shape[1]), (len(td_error), 1)), td_error, members)


def test_chances_are_proportional_also_for_the_newest_row():
    buffer = filled(4)
    prioritize(buffer, [1, 1, 1, 97])
    index = buffer.sample(20_000, np.random.default_rng(0)).index[0]
    share = np.bincount(index, minlength=4) / 20_000
    # one stratum a draw: the counts are within one of N * P(i)
    np.testing.assert_allclose(share, [0.01, 0.01, 0.01, 0.97], atol=1e-4)


def test_single_draws_are_proportional_too():
    buffer = filled(4)
    prioritize(buffer, [1, 1, 1, 97])
    rng = np.random.default_rng(0)
    index = np.concatenate([buffer.sample(1, rng).index[0] for _ in range(5000)])
    share = np.bincount(index, minlength=4) / 5000
    assert 0.96 <= share[3] <= 0.98 and (share[:3] >= 0.005).all() and (share[:3] <= 0.015).all()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_many_draws_stay_in_the_filled_part_with_the_weight_of_their_row(alpha):
    buffer = filled(100, alpha=alpha)
    priorities = np.random.default_rng(3).random(100) + 1e-8
    prioritize(buffer, priorities - 1e-8)
    batch = buffer.sample(1_000_000, np.random.default_rng(0), beta=0.4)
    assert batch.index.max() <= 99 and (buffer._priorities.trees.values[0, 100:] == 0).all()
    chance = priorities**alpha / (priorities**alpha).sum()
    weight = (100 * chance) ** -0.4
    np.testing.assert_allclose(batch.weight[0], (weight / weight.max())[batch.index[0]], rtol=1e-5)
    share = np.bincount(batch.index[0], minlength=100) / 1e6
    np.testing.assert_allclose(share, chance, atol=2e-6)


def test_weights_by_hand():
    buffer = filled(2, members=2, beta=0.5)
    prioritize(buffer, [[1, 4], [9, 1]])
    batch = buffer.sample(np.array([10, 5]), np.random.default_rng(0))
    for member, weight in ((0, [1, 0.5]), (1, [1 / 3, 1])):
        drawn = batch.index[member] >= 0
        expected = np.array(weight)[batch.index[member][drawn]]
        np.testing.assert_allclose(batch.weight[member][drawn], expected, rtol=1e-6)
    assert (batch.weight[1, 5:] == 0).all() and (batch.index[1, 5:] == -1).all()
    per_member = buffer.sample(10, np.random.default_rng(0), beta=np.array([0.0, 1.0]))
    assert (per_member.weight[0] == 1).all()
    np.testing.assert_allclose(per_member.weight[1], np.where(per_member.index[1] == 0, 1 / 9, 1), rtol=1e-6)


def test_new_rows_enter_with_the_largest_priority_so_far():
    buffer = ReplayBuffer(6, alpha=0.5, epsilon=1e-8)
    value, no = np.zeros((2, 2)), np.zeros((2, 2), bool)

    def leaves(member):
        return buffer._priorities.trees.values[member].tolist()

    for _ in range(2):
        buffer.add(Transition(value, no.astype(int), value, no, no, value))
    assert leaves(0) == [1, 1, 1, 1, 0, 0]
    buffer.update_priorities(np.array([[0, 1], [2, 2]]), np.array([[16.0, 0.25], [0.04, 0.09]]))
    np.testing.assert_allclose(leaves(0), [4, 0.5, 1, 1, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(leaves(1), [1, 1, 0.3, 1, 0, 0], rtol=1e-6)  # the later of equal rows stays
    prioritize(buffer, [[0.01]], np.array([0]))  # the largest so far stays 4 when its row falls
    for _ in range(2):
        buffer.add(Transition(value, no.astype(int), value, no, no, value))
    np.testing.assert_allclose(leaves(0), [4, 4, 1, 1, 4, 4], rtol=1e-6)
    np.testing.assert_allclose(leaves(1), [1, 1, 0.3, 1, 1, 1], rtol=1e-6)


def test_members_of_a_shared_ring_have_trees_of_their_own():
    buffer = filled(2, members=2, capacity=8, shared=True)
    prioritize(buffer, [[1, 0, 0, 0], [0, 0, 0, 2]])
    batch = buffer.sample(50, np.random.default_rng(0))
    assert set(batch.index[0]) == {0} and set(batch.index[1]) == {3}
    value, no = np.zeros((1, 1)), np.zeros((1, 1), bool)
    buffer.add(Transition(value, no.astype(int), value, no, no, value), np.array([1]))
    np.testing.assert_allclose(buffer._priorities.trees.values[:, 4], [1, 2], rtol=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_error_that_is_not_finite_touches_no_tree(wrong):
    buffer = filled(4, members=3)
    prioritize(buffer, [[1, 2, 3, 4]] * 2, np.array([0, 2]))
    before = buffer._priorities.trees.nodes.copy(), buffer._priorities.highest.copy()
    index = np.tile(np.arange(4), (2, 1))
    with pytest.raises(DivergenceError, match="member 2"):
        buffer.update_priorities(index, np.array([[5, 5, 5, 5], [1, wrong, 1, 1]]), np.array([0, 2]))
    assert (buffer._priorities.trees.nodes == before[0]).all()
    assert (buffer._priorities.highest == before[1]).all()
    batch = buffer.sample(64, np.random.default_rng(0))
    assert np.isfinite(batch.weight).all() and set(batch.index[2]) == {0, 1, 2, 3}


def test_padding_changes_no_priority():
    buffer = filled(3, members=1)
    before = buffer._priorities.trees.nodes.copy()
    buffer.update_priorities(np.array([[-1, -1]]), np.array([[np.nan, 7.0]]))
    assert (buffer._priorities.trees.nodes == before).all()


def test_a_uniform_buffer_ignores_priorities():
    buffer = filled(4, alpha=None)
    buffer.update_priorities(np.array([[0]]), np.array([[np.nan]]))
    assert (buffer.sample(8, np.random.default_rng(0)).weight == 1).all()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_epsilon_must_be_positive(epsilon):
    with pytest.raises(ConfigError, match="epsilon"):
        ReplayBuffer(8, alpha=0.5, epsilon=epsilon)


@needs_compiler
def test_both_loops_draw_the_same_rows_in_a_long_run():
    both = [Priorities(3, 1000, 0.6, 1e-6, flag) for flag in (True, False)]
    assert [p.trees.compiled for p in both] == [True, False]
    rng = np.random.default_rng(0)
    members, counts = np.arange(3), np.array([64, 64, 40])
    for p in both:
        p.enter(np.repeat(members, 700), np.tile(np.arange(700), 3))
    for _ in range(100):
        uniform, td_error = rng.random((3, 64)), rng.standard_normal((3, 64)).astype(np.float32)
        drawn = [p.draw(members, uniform, counts) for p in both]
        assert (drawn[0][0] == drawn[1][0]).all() and drawn[0][1].tobytes() == drawn[1][1].tobytes()
        for p in both:
            p.update(members, drawn[0][0], td_error)
    assert both[0].trees.nodes.tobytes() == both[1].trees.nodes.tobytes()


def test_totals_do_not_drift():
    buffer = filled(400, alpha=0.6)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        batch = buffer.sample(32, rng)
        buffer.update_priorities(batch.index, 10.0 ** rng.integers(-6, 6, (1, 32)))
    trees = buffer._priorities.trees
    assert trees.totals[0] == pytest.approx(trees.values[0].sum(), rel=1e-14)


def run_python(code: str, **environment: str) -> str:
    environ = {**os.environ, **environment}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


LOAD = "from agilerl_exp.buffers.sum_tree import compiled_loops; print(compiled_loops() is not None)"


def test_the_environment_variable_switches_the_compiler_off():
    assert run_python(LOAD, AGILERL_EXP_NO_COMPILER="1") == "False"


def test_without_a_compiler_numpy_takes_over(tmp_path):
    assert run_python(LOAD, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path)) == "False"


def test_a_compiler_that_fails_is_reported_once_and_numpy_takes_over(tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken && exit 0\nexit 1\n')
    compiler.chmod(0o755)
    code = (
        "import logging; logging.basicConfig(format='%(message)s', stream=__import__('sys').stdout)\n" + LOAD
    )
    out = run_python(code, PATH=f"{tmp_path}:{os.environ['PATH']}", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert "slower loops" in out and out.endswith("False")


@needs_compiler
def test_a_process_compiles_into_the_cache_and_the_next_one_finds_it(tmp_path):
    assert run_python(LOAD, XDG_CACHE_HOME=str(tmp_path)) == "True"
    (library,) = tmp_path.rglob("*.so")
    before = library.stat()
    assert run_python(LOAD, XDG_CACHE_HOME=str(tmp_path)) == "True"
    assert library.stat().st_mtime_ns == before.st_mtime_ns and library.stat().st_ino == before.st_ino
    assert [path.name for path in library.parent.iterdir()] == [library.name]  # no left-over of the build


@needs_compiler
def test_a_damaged_cache_is_rebuilt(tmp_path):
    assert run_python(LOAD, XDG_CACHE_HOME=str(tmp_path)) == "True"
    (library,) = tmp_path.rglob("*.so")
    library.write_bytes(library.read_bytes()[:100])
    assert run_python(LOAD, XDG_CACHE_HOME=str(tmp_path)) == "True"
    assert library.stat().st_size > 1000


@needs_compiler
def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert run_python(LOAD, XDG_CACHE_HOME=str(blocked)) == "True"


@needs_compiler
def test_processes_that_start_together_all_load_it(tmp_path):
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", LOAD], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.communicate()[0].strip() for process in started] == ["True"] * 4


def test_uniform_buffers_never_compile(tmp_path):
    code = (
        "import numpy as np, agilerl_exp.buffers as b; z = np.zeros((1, 2)); n = z > 1\n"
        "r = b.ReplayBuffer(8, n_step=2); r.add(b.Transition(z, n.astype(int), z, n, n, z)); r.flush()\n"
        "print(r.sample(4, np.random.default_rng(0)).weight.sum())"
    )
    assert run_python(code, XDG_CACHE_HOME=str(tmp_path)) == "4.0"
    assert not list(tmp_path.iterdir())
