"""Hand-computed numbers of the pure maths."""

import numpy as np
import pytest
import torch

from agilerl_exp.functional.running_stats import RunningStats
from agilerl_exp.functional.schedules import epsilon, linear_to
from agilerl_exp.functional.td import elementwise_loss, legal_only, loss_slope, pick, td_target

# Two members, one row each: q of the next observation under the target and the online network.
NEXT_Q = torch.tensor([[[1.0, 3.0]], [[4.0, 2.0]]])
ONLINE = torch.tensor([[[5.0, 0.0]], [[0.0, 7.0]]])
REWARD = torch.tensor([[1.0], [2.0]])
DISCOUNT = torch.tensor([[0.5], [0.9]])


def test_td_target_takes_the_max_of_the_target_network():
    y = td_target(REWARD, DISCOUNT, torch.zeros(2, 1), NEXT_Q)
    assert torch.allclose(y, torch.tensor([[1 + 0.5 * 3], [2 + 0.9 * 4]]))


def test_double_q_chooses_online_and_values_by_the_target():
    y = td_target(REWARD, DISCOUNT, torch.zeros(2, 1), NEXT_Q, ONLINE)
    assert torch.allclose(y, torch.tensor([[1 + 0.5 * 1], [2 + 0.9 * 2]]))


def test_termination_stops_the_bootstrap():
    y = td_target(REWARD, DISCOUNT, torch.ones(2, 1), NEXT_Q)
    assert y.tolist() == REWARD.tolist()


def test_a_truncated_row_bootstraps_from_its_last_observation():
    # gamma .9, reward 1, a target network that says 10 everywhere: 1 + .9 * 10
    y = td_target(torch.ones(1, 1), torch.full((1, 1), 0.9), torch.zeros(1, 1), torch.full((1, 1, 2), 10.0))
    assert y.item() == pytest.approx(10.0, abs=1e-6)


def test_illegal_actions_never_win_and_a_row_without_legal_ones_is_left_alone():
    q = torch.tensor([[[1e6, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    mask = torch.tensor([[[0, 1, 1], [0, 0, 0]]], dtype=torch.uint8)
    assert legal_only(q, mask).amax(-1).tolist() == [[3.0, 6.0]]
    assert legal_only(q, None) is q


def test_pick_takes_the_action_of_each_row():
    assert pick(NEXT_Q, torch.tensor([[1], [0]])).tolist() == [[3.0], [4.0]]


@pytest.mark.parametrize(
    ("kind", "values"),
    [("mse", [9.0, 0.25, 0.0, 0.25, 9.0]), ("huber", [5.0, 0.25, 0.0, 0.25, 5.0])],
)
def test_losses_and_their_slopes(kind, values):
    x = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    loss = elementwise_loss(x, kind)
    assert loss.tolist() == pytest.approx(values)
    (slope,) = torch.autograd.grad(loss.sum(), x)
    assert torch.allclose(slope, loss_slope(x.detach(), kind))


def test_epsilon_schedules_at_known_steps():
    t = np.array([0, 400, 5000, 100_000])
    assert epsilon("exponential", t, 1.0, 0.05, 0.995)[1] == pytest.approx(0.995**400, abs=1e-12)
    assert epsilon("exponential", t, 1.0, 0.05, 0.995)[3] == 0.05
    assert epsilon("linear", t, 1.0, 0.05, 10_000.0).tolist() == pytest.approx([1.0, 0.962, 0.525, 0.05])
    assert epsilon("constant", t, 0.3, 0.3, 1.0).tolist() == [0.3] * 4


def test_epsilon_takes_one_schedule_a_member():
    eps = epsilon(
        "linear", np.array([50, 50]), np.array([1.0, 0.5]), np.array([0.0, 0.1]), np.array([100.0, 50])
    )
    assert eps.tolist() == pytest.approx([0.5, 0.1])


def test_linear_to_is_linear_in_steps_and_stays_at_the_end():
    beta = linear_to(np.array([0, 500, 5000, 10_000, 20_000]), 10_000, 0.4, 1.0)
    assert beta.tolist() == pytest.approx([0.4, 0.43, 0.7, 1.0, 1.0])


def test_running_stats_equal_numpy_over_all_valid_rows_and_keep_members_apart():
    rng = np.random.default_rng(0)
    stats, seen = RunningStats(3, 2), {0: [], 2: []}
    for _ in range(20):
        x = rng.normal(3, 2, (2, 4, 2)).astype(np.float32)
        valid = rng.random((2, 4)) < 0.7
        stats.update(np.array([0, 2]), x, valid)
        for k, member in enumerate((0, 2)):
            seen[member] += [x[k, n] for n in range(4) if valid[k, n]]
    for member, rows in seen.items():
        rows = np.array(rows, np.float64)
        assert np.allclose(stats.mean[member], rows.mean(0))
        assert np.allclose(stats.square[member] / stats.count[member], rows.var(0))
    assert stats.count[1] == 0
    x = np.full((3, 1, 2), 5.0, np.float32)
    out = stats.normalize(slice(None), x)
    assert np.allclose(out[0, 0], (5 - stats.mean[0]) / np.sqrt(stats.square[0] / stats.count[0]), atol=1e-6)
    assert out[1].tolist() == [[5.0, 5.0]]  # nothing seen: unchanged


def test_normalized_observations_are_cut_at_ten():
    stats = RunningStats(1, 1)
    stats.update(np.array([0]), np.array([[[0.0], [1e-3]]], np.float32), np.ones((1, 2), bool))
    assert stats.normalize(slice(None), np.array([[[9.0], [-9.0]]], np.float32)).ravel().tolist() == [
        10.0,
        -10.0,
    ]
