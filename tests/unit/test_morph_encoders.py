"""Architecture mutations of the networks with encoders: bounds, what stays of the function, what is kept."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from effects import effect
from nets import CASES, ROLES, carried, codec_of, random_inputs

from agilerl_exp.models.network import CnnSpec, CustomSpec, SimbaSpec
from agilerl_exp.networks import morph
from agilerl_exp.networks.build import build, resolve

KINDS = {
    "simba": {"node", "block"},
    "cnn": {"layer", "node", "latent_node", "channel", "kernel", "conv_layer"},
    "resnet": {"layer", "node", "latent_node", "channel", "block"},
    "multi_input": {"layer", "node", "latent_node", "channel", "kernel", "conv_layer"},
    "multi_vector": {"layer", "node", "latent_node", "channel", "kernel", "conv_layer", "vector_node"},
    "custom": {"layer", "node", "latent_node"},
}
ROOM = {"min_nodes": 4, "max_nodes": 64, "min_layers": 1, "max_layers": 3}
LATENT = {"min_latent": 8, "max_latent": 48}
CONV = {"min_channels": 4, "max_channels": 40, "min_kernel": 1, "max_kernel": 7, "max_conv_layers": 3}
BOUNDS = {
    "simba": {"min_width": 16, "max_width": 96, "max_blocks": 3},
    "cnn": ROOM | LATENT | CONV,
    "resnet": ROOM | LATENT | {"min_channels": 4, "max_channels": 40, "max_blocks": 3},
    "multi_input": ROOM | LATENT | CONV,
    "multi_vector": ROOM | LATENT | CONV,
    "custom": ROOM | LATENT,
}


def start_of(name):
    """The resolved spec, with layers to spare in both directions."""
    spec = CASES[name][1]
    more = {"hidden_size": [24, 20]} if "hidden_size" in type(spec).model_fields else {}
    more |= {"resnet": {"channels": 20}, "multi_vector": {"channels": [16, 20]}}.get(name, {})
    more |= {"channels": [16, 20]} if name == "multi_input" else {}
    return resolve(spec.model_copy(update=BOUNDS[name] | more), codec_of(name))


def net_of(name, spec):
    return build(spec, codec_of(name), 3)


def trained(net, seed=0):
    rng = np.random.default_rng(seed)
    return {
        role: [np.asarray(0.2 * rng.normal(size=shape), np.float32) for _, shape in net.shapes()]
        for role in ROLES
    }


def outputs(net, tensors):
    x = torch.from_numpy(random_inputs(net, 1, 16))
    with torch.no_grad():
        return net.apply([torch.from_numpy(t)[None] for t in tensors], x)[0].numpy()


def moved(old, new) -> float:
    """Largest change of an output, relative to the largest output."""
    roles = trained(old)
    after = carried(old, new, roles, np.random.default_rng(1))
    before, now = outputs(old, roles["weights"]), outputs(new, after["weights"])
    return float(abs(before - now).max() / abs(before).max())


def changes(name) -> Iterator[morph.Change]:
    """A change of each kind and field."""
    spec, seen, rng = start_of(name), set(), np.random.default_rng(0)
    for _ in range(400):
        change = morph.draw(spec, rng, 0.5)
        if (change.kind, change.field) not in seen:
            seen.add((change.kind, change.field))
            yield change


@pytest.mark.parametrize("name", KINDS)
def test_additions_keep_the_function_and_removals_move_it(name):
    spec = start_of(name)
    kinds = set()
    for change in changes(name):
        kinds.add(change.kind)
        size = moved(net_of(name, spec), net_of(name, change.spec))
        layer_norm = name == "simba" and change.kind == "add_node"
        if change.kind.startswith("add") and not layer_norm:
            assert size <= 1e-5, (change, size)
        else:
            assert size > 1e-3, (change, size)
    assert kinds == {f"{way}_{noun}" for noun in KINDS[name] for way in ("add", "remove")}


@effect("SimbaSpec.min_width", "SimbaSpec.max_width", "SimbaSpec.min_blocks", "SimbaSpec.max_blocks")
@effect(
    "EncoderSpec.min_latent", "EncoderSpec.max_latent", "ImageSpec.min_channels", "ImageSpec.max_channels"
)
@effect("ConvSpec.min_conv_layers", "ConvSpec.max_conv_layers", "ConvSpec.min_kernel", "ConvSpec.max_kernel")
@effect("ResNetSpec.min_blocks", "ResNetSpec.max_blocks")
@pytest.mark.parametrize("name", KINDS)
def test_draws_stay_in_bounds_and_every_network_runs(name):
    spec, rng = start_of(name), np.random.default_rng(0)
    lists = {
        "hidden_size": ("nodes", "layers"),
        "latent_dim": ("latent", None),
        "channels": ("channels", "conv_layers"),
        "kernel_size": ("kernel", None),
        "width": ("width", None),
        "blocks": ("blocks", None),
        "vector_hidden_size": ("nodes", None),
    }
    reached = {}
    old = net_of(name, spec)
    for step in range(300):
        change = morph.draw(spec, rng, 0.4)
        new = net_of(name, change.spec)
        if step % 10 == 0:
            after = carried(old, new, trained(old), rng)
            assert np.isfinite(outputs(new, after["weights"])).all()
            assert [t.shape for t in after["moment1"]] == [shape for _, shape in new.shapes()]
        spec, old = change.spec, new
        for field, (noun, count) in lists.items():
            value = getattr(spec, field, None)
            if value is None or value == []:
                continue
            sizes = value if isinstance(value, list) else [value]
            assert all(getattr(spec, f"min_{noun}") <= x <= getattr(spec, f"max_{noun}") for x in sizes)
            reached.setdefault(noun, set()).update(sizes)
            if count and isinstance(value, list):
                assert getattr(spec, f"min_{count}") <= len(value) <= getattr(spec, f"max_{count}")
                reached.setdefault(count, set()).add(len(value))
    assert all(len(sizes) > 1 for sizes in reached.values()), reached


def test_a_kernel_grows_and_shrinks_around_its_centre():
    small, large = (
        CnnSpec(channels=[8], kernel_size=[side], stride=[2], latent_dim=16, hidden_size=[16])
        for side in (3, 5)
    )
    nets = [net_of("cnn", spec) for spec in (small, large)]
    roles = trained(nets[0])
    grown = carried(nets[0], nets[1], roles, np.random.default_rng(0))
    for role in ROLES:
        kernel = grown[role][0]
        assert np.array_equal(kernel[:, :, 1:4, 1:4], roles[role][0])
        assert np.abs(kernel).sum() == pytest.approx(np.abs(roles[role][0]).sum())
    roles = trained(nets[1])
    shrunk = carried(nets[1], nets[0], roles, np.random.default_rng(0))
    for role in ROLES:
        assert np.array_equal(shrunk[role][0], roles[role][0][:, :, 1:4, 1:4])
        for kept, before in zip(shrunk[role][1:], roles[role][1:], strict=True):
            assert np.array_equal(kept, before)


def test_channels_that_leave_are_those_that_are_heard_least_and_moments_go_with_them():
    before, after = (
        CnnSpec(channels=[count], kernel_size=[3], stride=[1], latent_dim=16, hidden_size=[16])
        for count in (4, 2)
    )
    old, new = net_of("cnn", before), net_of("cnn", after)
    roles = trained(old)
    names = [leaf.name for leaf in old.layout()]
    latent = names.index("latent0.weight")
    roles["weights"][latent][:, [0, 2]] *= 1e-3
    after = carried(old, new, roles, np.random.default_rng(0))
    for role in ROLES:
        assert np.array_equal(after[role][0], roles[role][0][[1, 3]])
        assert np.array_equal(after[role][1], roles[role][1][[1, 3]])
        assert np.array_equal(after[role][latent], roles[role][latent][:, [1, 3]])


def test_latent_units_are_one_group_from_all_parts_to_the_head():
    spec = start_of("multi_input")
    old, new = net_of("multi_input", spec), net_of("multi_input", spec.model_copy(update={"latent_dim": 24}))
    roles = trained(old)
    after = carried(old, new, roles, np.random.default_rng(0))
    shapes = dict(new.shapes())
    assert [shapes[f"latent{i}.weight"][0] for i in range(3)] == [24] * 3
    names = [leaf.name for leaf in new.layout()]
    heard, before = (
        weights[names.index("head.0.weight")] for weights in (after["weights"], roles["weights"])
    )
    assert np.array_equal(heard[:, :16], before) and not heard[:, 16:].any()


@pytest.mark.parametrize("name", ["simba", "resnet"])
def test_a_new_block_can_learn(name):
    spec = start_of(name)
    new = net_of(name, spec.model_copy(update={"blocks": 3}))
    after = carried(net_of(name, spec), new, trained(net_of(name, spec)), np.random.default_rng(0))
    leaves = [torch.from_numpy(t)[None].requires_grad_() for t in after["weights"]]
    out = new.apply(leaves, torch.from_numpy(random_inputs(new, 1, 16)))
    grads = torch.autograd.grad((out**2).sum(), leaves)
    names = [leaf.name for leaf in new.layout()]
    (branch,) = (k for k, leaf in enumerate(names) if leaf.endswith("2.branch.weight"))
    assert not after["weights"][branch].any() and grads[branch].abs().max() > 0
    first = after["weights"][next(k for k, leaf in enumerate(names) if leaf.endswith("2.first.weight"))]
    assert first.any()


def test_no_mutation_changes_a_module_of_the_user():
    spec, rng = start_of("custom"), np.random.default_rng(0)
    own = [leaf for leaf in net_of("custom", spec).layout() if leaf.name.startswith("trunk")]
    assert len(own) == 3
    for _ in range(100):
        change = morph.draw(spec, rng, 0.5)
        assert change.field in {"hidden_size", "latent_dim"} and isinstance(change.spec, CustomSpec)
        new = net_of("custom", change.spec)
        old, spec = net_of("custom", spec), change.spec
        assert [leaf for leaf in new.layout() if leaf.name.startswith("trunk")] == own
    roles = trained(old)
    after = carried(old, new, roles, rng)
    for role in ROLES:
        for kept, before in zip(after[role][:3], roles[role][:3], strict=True):
            assert np.array_equal(kept, before)


def test_widths_at_the_start_are_sampled_in_bounds_and_kernels_stay():
    rng = np.random.default_rng(0)
    for name in KINDS:
        spec = start_of(name)
        drawn = [morph.sampled(spec, rng) for _ in range(20)]
        for one in drawn:
            net_of(name, one)
        if name == "cnn":
            assert {tuple(one.kernel_size) for one in drawn} == {(5, 4)}
            assert len({tuple(one.channels) for one in drawn}) > 1
    assert morph.sampled(SimbaSpec(), rng).blocks == 2
