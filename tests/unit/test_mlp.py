"""The three writings of the stacked network are one function; rows are views."""

import numpy as np
import pytest
import torch

from agilerl_exp.models.network import MlpSpec
from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.population.bank import Bank

ACTIVATIONS = ["ReLU", "Tanh", "Sigmoid", "Identity", "ELU", "GELU", "LeakyReLU", "Softplus"]


def bank_of(net, pop=3, seed=0):
    bank = Bank(pop, net.shapes())
    for i in range(pop):
        bank.set_member(i, net.init_member(np.random.default_rng(seed + i)))
    return bank


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_apply_equals_ordinary_modules_and_numpy_acting(activation, layer_norm):
    net = Mlp(5, 3, (16, 8), activation, layer_norm)
    bank, x = bank_of(net), torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(1))
    out = net.apply(bank.views("weights"), x)
    for i in range(3):
        module = net.module([view[i] for view in bank.views("weights")])
        assert torch.allclose(out[i], module(x[i]), atol=1e-6)
    assert np.allclose(net.act(bank.numpy_weights(None), x.numpy()), out.numpy(), atol=1e-6)
    assert np.allclose(net.act(bank.numpy_weights(np.array([2])), x[2:].numpy()), out[2:].numpy(), atol=1e-6)


@pytest.mark.parametrize("activation", ["ReLU", "Tanh", "Sigmoid", "Identity"])
def test_hand_written_backward_equals_autograd_in_double(activation):
    net = Mlp(4, 3, (8, 8), activation)
    generator = torch.Generator().manual_seed(2)
    params = [torch.randn(2, *s, dtype=torch.float64, generator=generator) * 0.5 for _, s in net.shapes()]
    x = torch.randn(2, 6, 4, dtype=torch.float64, generator=generator)
    upstream = torch.randn(2, 6, 3, dtype=torch.float64, generator=generator)
    leaves = [p.clone().requires_grad_() for p in params]
    expected = torch.autograd.grad((net.apply(leaves, x) * upstream).sum(), leaves)
    out, cache = net.forward(params, x)
    grads = [torch.zeros_like(p) for p in params]
    net.backward(params, cache, upstream, grads)
    assert torch.allclose(out, net.apply(params, x), atol=1e-12)
    for grad, value in zip(grads, expected, strict=True):
        assert torch.allclose(grad, value, rtol=1e-10, atol=1e-12)


def test_layer_norm_and_other_activations_have_no_hand_written_backward():
    assert Mlp(4, 2, (8,)).has_manual_backward
    assert not Mlp(4, 2, (8,), layer_norm=True).has_manual_backward
    assert not Mlp(4, 2, (8,), "GELU").has_manual_backward


@pytest.mark.parametrize(("width", "units"), [(4, 64), (64, 4), (16, 16)])
def test_orthogonal_init_is_orthogonal_with_gain_sqrt_two(width, units):
    weight = Mlp(width, 2, (units,)).init_member(np.random.default_rng(0))[0].astype(np.float64)
    gram = weight @ weight.T if units <= width else weight.T @ weight
    assert np.allclose(gram, 2 * np.eye(min(width, units)), atol=1e-5)


def test_inits_stay_within_their_bounds_and_start_the_last_layer_small():
    for init, bound in (("torch", 1 / np.sqrt(50)), ("he", np.sqrt(6 / 50))):
        weight = Mlp(50, 2, (40,), init=init).init_member(np.random.default_rng(0))[0]
        assert abs(weight).max() <= bound and abs(weight).max() > 0.95 * bound
    last = Mlp(4, 2, (32,)).init_member(np.random.default_rng(0))[-2].astype(np.float64)
    assert np.allclose(last @ last.T, 0.01 * np.eye(2), atol=1e-6)


def test_spec_becomes_the_architecture():
    spec = MlpSpec(hidden_size=[32, 16], activation="Tanh", layer_norm=True, init="he")
    assert Mlp.from_spec(spec, 4, 2) == Mlp(4, 2, (32, 16), "Tanh", True, "he")
    shapes = dict(Mlp(4, 2, (64, 32), layer_norm=True).shapes())
    assert shapes["0.weight"] == (64, 4) and shapes["1.norm.bias"] == (32,) and shapes["out.bias"] == (2,)
    assert len(shapes) == 4 + 4 + 2


def test_modules_view_the_bank_and_train_through():
    net = Mlp(4, 2, (8,))
    bank = bank_of(net, 2)
    before = bank.weights.clone()
    module = net.module([view[1] for view in bank.views("weights")])
    torch.optim.SGD(module.parameters(), lr=0.1).zero_grad()
    module(torch.ones(3, 4)).sum().backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert torch.equal(bank.weights[0], before[0])
    assert not torch.equal(bank.weights[1], before[1])
