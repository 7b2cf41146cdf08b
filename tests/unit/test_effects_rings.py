"""What each field of ReplayBufferSpec and its arguments does in a run, in numbers."""

from __future__ import annotations

import numpy as np
import pytest
from effects import effect
from small import contents, loop_of, ran

HALF = {"algo.gamma": 0.5, "env.num_envs": 1, "algo.learn_step": 64}


def ring(**settings):
    return {f"training.replay_buffer.{name}": value for name, value in settings.items()}


@effect("ReplayBufferSpec.max_size")
def test_a_ring_keeps_its_newest_max_size_transitions():
    loop = ran({**HALF, **ring(max_size=17), "env.config": {"cuts": [100]}})  # one long episode
    assert loop.buffer.sizes.tolist() == [17]
    assert sorted(contents(loop.buffer).obs[0, :, 0].tolist()) == list(range(47, 64))


@effect("ReplayBufferSpec.n_step_buffer", "NStepBufferArgs.n_step")
@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ({}, (1.0, 0.5)),
        ({"n_step_buffer": True, "n_step_buffer_args": {"n_step": 1}}, (1.0, 0.5)),
        ({"n_step_buffer": True, "n_step_buffer_args": {"n_step": 2}}, (1.5, 0.25)),
        ({"n_step_buffer": True}, (1.75, 0.125)),
        ({"n_step_buffer": True, "per_buffer": True}, (1.75, 0.125)),
    ],
)
def test_windows_sum_up_to_n_rewards_and_bootstrap_after_them(kind, inside):
    loop = ran({**HALF, **ring(**kind)})  # reward 1, episodes of 5 steps, gamma 1/2
    batch = contents(loop.buffer)
    pairs = set(zip(batch.reward[0].tolist(), batch.discount[0].tolist(), strict=True))
    cut = {(2 - 0.5 ** (m - 1), 0.5**m) for m in (1, 2, 3)}  # shorter ones at the end of an episode
    assert inside in pairs and pairs <= {pair for pair in cut if pair[0] <= inside[0]}
    steps = batch.next_obs[0, :, 0] - batch.obs[0, :, 0]
    assert (0.5**steps == batch.discount[0]).all()
    assert set(batch.terminated[0].tolist()) == {0.0}  # a cut is no end


@effect("ReplayBufferSpec.standard_buffer")
@pytest.mark.parametrize("per", [False, True])
def test_without_the_standard_buffer_n_step_rows_drop_their_first_step(per):
    kept, dropped = (
        ran({**HALF, **ring(n_step_buffer=True, per_buffer=per, standard_buffer=standard)}).buffer
        for standard in (True, False)
    )
    first = contents(kept).one_step
    assert set(first.reward[0].tolist()) == {1.0} and set(first.discount[0].tolist()) == {0.5}
    assert (first.next_obs[0, :, 0] - first.obs[0, :, 0] == 1).all()
    assert contents(dropped).one_step is None
    assert np.array_equal(contents(dropped).reward, contents(kept).reward)
    assert dropped.nbytes < kept.nbytes


@effect("ReplayBufferSpec.per_buffer", "PerBufferArgs.alpha", "PerBufferArgs.epsilon")
@pytest.mark.parametrize("n_step", [False, True])
@pytest.mark.parametrize(("alpha", "epsilon"), [(0.5, 1e-6), (1.0, 0.25), (0.0, 1e-6)])
def test_the_errors_of_an_update_become_priorities(n_step, alpha, epsilon):
    kind = ring(per_buffer=True, n_step_buffer=n_step, per_buffer_args={"alpha": alpha, "epsilon": epsilon})
    loop = ran({**HALF, **kind})  # a single update, at the last step
    ((index, error),) = loop.buffer.errors
    stored = loop.buffer.state_dict()["priorities.0"]
    expected = (np.abs(error[0].astype(np.float64)) + epsilon) ** alpha
    assert stored[index[0]] == pytest.approx(expected, rel=1e-12)
    others = np.setdiff1d(np.arange(len(stored)), index[0])
    # stored before any error was known; windows that the end of the run closes come in with the largest
    assert set(stored[others].tolist()) <= {1.0, max(1.0, expected.max())}
    assert len(others) and 1.0 in stored[others]


@effect("ReplayBufferSpec.per_buffer")
def test_without_priorities_every_row_is_as_likely_and_weighs_the_same():
    loop = ran({"env.num_envs": 1, "algo.learn_step": 1})
    assert all((drawn["batch"].weight == 1).all() for drawn in loop.buffer.drawn)
    assert loop.buffer.alpha is None
    again = ran({"env.num_envs": 1, "algo.learn_step": 1, **ring(per_buffer=True)})
    assert any((drawn["batch"].weight < 1).any() for drawn in again.buffer.drawn)


@effect("PerBufferArgs.beta")
@pytest.mark.parametrize(("beta", "expected"), [(0.4, (0.43, 0.70, 1.0)), (0.0, (0.05, 0.5, 1.0))])
def test_beta_rises_in_a_line_to_one_and_is_the_exponent_of_the_weights(beta, expected):
    settings = {"training.max_steps": 200, "training.evo_steps": 200, "algo.learn_step": 1, "env.num_envs": 1}
    loop = ran({**settings, **ring(per_buffer=True, per_buffer_args={"beta": beta, "alpha": 1.0})})
    drawn = {200 - k: entry for k, entry in enumerate(reversed(loop.buffer.drawn))}  # by env step
    for share, value in zip((0.05, 0.5, 1.0), expected, strict=True):
        entry = drawn[round(200 * share)]
        assert entry["beta"].tolist() == pytest.approx([value], abs=1e-12)
        index, priority = entry["batch"].index[0], entry["priorities"]["priorities.0"]
        share_of_each = priority[index] / priority.sum()
        weight = (len(priority) * share_of_each) ** -value
        assert entry["batch"].weight[0] == pytest.approx(weight / weight.max(), rel=1e-5)


def test_a_resumed_or_extended_run_keeps_the_line_of_beta():
    loop = loop_of({"training.max_steps": 64, "algo.learn_step": 1, **ring(per_buffer=True)})
    loop.horizon = 128  # what a checkpoint of a longer run brings
    loop.run()
    assert loop.buffer.drawn[-1]["beta"].tolist() == [0.4 + 0.6 * 64 / 128]
    loop.envs.close()
