"""Row arithmetic of the bank against torch.optim and hand-computed numbers."""

import numpy as np
import pytest
import torch

from agilerl_exp.population.bank import Bank

SHAPES = [("w", (3, 5)), ("b", (3,))]


def filled(pop=3):
    bank = Bank(pop, SHAPES)
    for i in range(pop):
        rng = np.random.default_rng(i)
        bank.set_member(i, [rng.standard_normal(shape).astype(np.float32) for _, shape in SHAPES])
    return bank


def test_tensors_are_views_on_64_byte_lines():
    bank = filled()
    for view in bank.views("weights"):
        assert view.untyped_storage().data_ptr() == bank.weights.untyped_storage().data_ptr()
        assert (view.data_ptr() - bank.weights.data_ptr()) % 64 == 0
    bank.views("weights")[0][1] = 7.0
    assert (bank.weights[1, :15] == 7).all()


@pytest.mark.parametrize("lr", [[1e-3, 1e-3, 1e-3], [1e-3, 2e-3, 5e-2]])
def test_adam_equals_torch_optim_row_by_row(lr):
    bank = filled()
    leaves = [[view[i].clone().requires_grad_() for view in bank.views("weights")] for i in range(3)]
    optimizers = [torch.optim.Adam(leaf, lr=rate) for leaf, rate in zip(leaves, lr, strict=True)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        bank.grad.zero_()
        for view in bank.views("grad"):
            view.copy_(torch.randn(view.shape, generator=generator))
        bank.adam([0, 1, 2], bank.grad, np.array(lr))
        for i, optimizer in enumerate(optimizers):
            for leaf, view in zip(leaves[i], bank.views("grad"), strict=True):
                leaf.grad = view[i].clone()
            optimizer.step()
    for i in range(3):
        for leaf, view in zip(leaves[i], bank.views("weights"), strict=True):
            assert torch.allclose(leaf, view[i], atol=1e-6)


def test_adam_of_some_rows_leaves_the_others_untouched():
    bank, before = filled(), filled()
    bank.adam([2, 0], torch.ones(2, bank.weights.shape[1]), np.array([1e-2, 1e-2]))
    assert torch.equal(bank.weights[1], before.weights[1])
    assert bank.adam_step.tolist() == [1.0, 0.0, 1.0]
    assert (bank.weights[[0, 2]] < before.weights[[0, 2]]).all()


def test_clipping_is_per_member():
    bank = filled(2)
    grad = torch.zeros(2, bank.weights.shape[1])
    grad[0, :2] = torch.tensor([3.0, 4.0])
    grad[1, 0] = 0.5
    bank.clip_grad(grad, np.array([1.0, 1.0]))
    assert grad[0, :2].tolist() == pytest.approx([0.6, 0.8], abs=1e-5)
    assert grad[1, 0] == 0.5


@pytest.mark.parametrize("tau", [[0.1, 0.1], [0.1, 0.5]])
def test_polyak_mixes_by_each_members_tau(tau):
    bank = filled(2)
    bank.target.zero_()
    bank.polyak(None, np.array(tau))
    assert torch.allclose(bank.target, torch.tensor(tau, dtype=torch.float32)[:, None] * bank.weights)
    bank.sync_target([1])
    assert torch.equal(bank.target[1], bank.weights[1])


def test_polyak_of_one_row():
    bank = filled(2)
    bank.target.zero_()
    bank.polyak(np.array([1]), np.array([0.25]))
    assert not bank.target[0].any()
    assert torch.allclose(bank.target[1], 0.25 * bank.weights[1])
