"""Architecture mutations: what the bounds allow, what stays of the function and of trained tensors."""

import numpy as np
import pytest
import torch
from effects import effect
from nets import ROLES, carried

from agilerl_exp.models.network import MlpSpec
from agilerl_exp.networks import morph
from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Network


def trained(net: Network, seed: int) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        role: [rng.normal(size=shape).astype(np.float32) * 0.3 for _, shape in net.shapes()] for role in ROLES
    }


def outputs(net: Network, tensors: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return net.apply([torch.from_numpy(t)[None] for t in tensors], torch.from_numpy(x)[None])[0].numpy()


def moved(old: Network, new: Network, seed: int = 0) -> float:
    """Largest change of an output, relative to the largest output."""
    roles = trained(old, seed)
    after = carried(old, new, roles, np.random.default_rng(seed + 1))
    x = np.random.default_rng(2).normal(size=(64, old.in_width)).astype(np.float32)
    before, now = outputs(old, roles["weights"], x), outputs(new, after["weights"], x)
    return float(abs(before - now).max() / abs(before).max())


@pytest.mark.parametrize("new", [(48, 32), (32, 48), (32, 32, 32), (48, 64, 64)])
def test_added_units_and_layers_keep_the_function_of_relu_networks(new):
    assert moved(Mlp(4, 3, (32, 32)), Mlp(4, 3, new)) <= 1e-5


def test_layer_norm_and_tanh_move_it_and_by_how_much_can_be_told():
    assert moved(Mlp(4, 3, (32, 32), layer_norm=True), Mlp(4, 3, (48, 32), layer_norm=True)) > 1e-3
    assert moved(Mlp(4, 3, (32, 32), "Tanh"), Mlp(4, 3, (32, 32, 32), "Tanh")) > 1e-3
    assert moved(Mlp(4, 3, (32, 32), "Tanh"), Mlp(4, 3, (32, 48), "Tanh")) <= 1e-5


def test_kept_units_keep_weights_and_moments_and_new_ones_have_none():
    old, new = Mlp(4, 3, (32, 16)), Mlp(4, 3, (48, 16))
    roles = trained(old, 0)
    after = carried(old, new, roles, np.random.default_rng(1))
    for role in ROLES:
        assert np.array_equal(after[role][0][:32], roles[role][0])
        assert np.array_equal(after[role][2][:, :32], roles[role][2])
    assert after["weights"][0][32:].any() and np.array_equal(
        after["weights"][0][32:], after["target"][0][32:]
    )
    assert not after["weights"][2][:, 32:].any()
    for role in ("moment1", "moment2"):
        assert not after[role][0][32:].any() and not after[role][2][:, 32:].any()


def test_the_units_that_leave_are_those_that_the_next_layer_weighs_least():
    old, new = Mlp(4, 1, (4,)), Mlp(4, 1, (2,))
    roles = trained(old, 0)
    roles["weights"][2][...] = [[0.1, -3.0, 0.2, 1.0]]
    after = carried(old, new, roles, np.random.default_rng(0))
    for role in ROLES:
        assert np.array_equal(after[role][0], roles[role][0][[1, 3]])
        assert np.array_equal(after[role][2], roles[role][2][:, [1, 3]])


def test_a_removed_layer_leaves_the_others_as_they_were():
    old, new = Mlp(4, 3, (32, 32)), Mlp(4, 3, (32,))
    roles = trained(old, 0)
    after = carried(old, new, roles, np.random.default_rng(0))
    assert np.array_equal(after["weights"][0], roles["weights"][0])
    assert np.array_equal(after["weights"][2], roles["weights"][4])


def test_norms_of_kept_units_are_kept():
    old, new = Mlp(4, 3, (32,), layer_norm=True), Mlp(4, 3, (48,), layer_norm=True)
    roles = trained(old, 0)
    after = carried(old, new, roles, np.random.default_rng(0))
    assert np.array_equal(after["weights"][2], np.concatenate([roles["weights"][2], np.ones(16, np.float32)]))


@effect("HeadSpec.min_layers", "HeadSpec.max_layers", "HeadSpec.min_nodes", "HeadSpec.max_nodes")
def test_draws_stay_in_bounds_and_reach_every_kind():
    spec = MlpSpec(hidden_size=[32, 32], max_layers=3, min_nodes=16, max_nodes=96)
    rng, kinds = np.random.default_rng(0), set()
    for _ in range(500):
        change = morph.draw(spec, rng, 0.5)
        assert change is not None and change.old == spec.hidden_size != change.new
        spec = change.spec
        kinds.add(change.kind)
        assert 1 <= len(spec.hidden_size) <= 3 and all(16 <= n <= 96 for n in spec.hidden_size)
    assert kinds == {"add_layer", "remove_layer", "add_node", "remove_node"}


def test_new_layer_is_the_share_of_changes_of_depth():
    spec, rng = MlpSpec(hidden_size=[64, 64]), np.random.default_rng(0)
    depth = [morph.draw(spec, rng, 0.2).kind.endswith("layer") for _ in range(2000)]
    assert np.mean(depth) == pytest.approx(0.2, abs=0.03)
    assert {morph.draw(spec, rng, 1.0).kind for _ in range(50)} == {"add_layer", "remove_layer"}


def test_where_depth_is_fixed_the_width_changes_and_where_nothing_may_change_there_is_no_draw():
    narrow = MlpSpec(hidden_size=[32], max_layers=1)
    assert morph.draw(narrow, np.random.default_rng(0), 1.0).kind.endswith("node")
    fixed = MlpSpec(hidden_size=[32], max_layers=1, min_nodes=32, max_nodes=32)
    assert morph.draw(fixed, np.random.default_rng(0), 0.5) is None


def test_an_activation_is_another_of_the_list():
    rng, names = np.random.default_rng(0), ["ReLU", "ELU", "GELU"]
    assert {morph.activation(MlpSpec(), rng, names).new for _ in range(50)} == {"ELU", "GELU"}
    assert morph.activation(MlpSpec(), rng, ["ReLU"]) is None
