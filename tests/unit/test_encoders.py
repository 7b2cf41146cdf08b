"""Stacked networks against ordinary torch modules and against each member alone; what a module of the user may do."""

import numpy as np
import pytest
import torch
from effects import effect
from gymnasium import spaces
from nets import CASES, IMAGE, Own, codec_of, net_of, random_inputs, random_tensors, stacked
from torch import nn

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.network import CnnSpec, CustomSpec, ResNetSpec, SimbaSpec
from agilerl_exp.networks.build import build
from agilerl_exp.networks.observation import ObservationCodec


def named(net, tensors):
    return {leaf.name: torch.from_numpy(t) for leaf, t in zip(net.layout(), tensors, strict=True)}


def linear(w, name, x):
    return nn.functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def conv(w, name, x, **options):
    return nn.functional.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], **options)


def behind(w, features):
    """Latent layer over flat features, one hidden layer, outputs."""
    weights = [w[f"latent{i}.weight"].flatten(1) for i in range(len(features))]
    joined = torch.cat([f.flatten(1) for f in features], 1)
    h = torch.relu(nn.functional.linear(joined, torch.cat(weights, 1), w["latent.bias"]))
    return linear(w, "head.out", torch.relu(linear(w, "head.0", h)))


def simba(w, x):
    x = linear(w, "stem", x)
    for i in range(2):
        h = nn.functional.layer_norm(x, (32,), w[f"{i}.norm.weight"], w[f"{i}.norm.bias"])
        x = x + linear(w, f"{i}.branch", torch.relu(linear(w, f"{i}.first", h)))
    return linear(w, "out", nn.functional.layer_norm(x, (32,), w["norm.weight"], w["norm.bias"]))


def cnn(w, x):
    h = x.view(-1, 9, 7, 2).permute(0, 3, 1, 2)
    h = torch.relu(conv(w, "trunk0.0", h, stride=2, padding=2))
    return behind(w, [torch.relu(conv(w, "trunk0.1", h, stride=1, padding=2))])


def resnet(w, x):
    h = conv(w, "trunk0.stem", x.view(-1, 9, 7, 2).permute(0, 3, 1, 2), stride=2, padding=2)
    for i in range(2):
        inner = torch.relu(conv(w, f"trunk0.{i}.first", torch.relu(h), padding=1))
        h = h + conv(w, f"trunk0.{i}.branch", inner, padding=1)
    return behind(w, [torch.relu(h)])


def multi_input(w, x):
    features = [x[:, :8]]  # a one-hot of 3 and 5 numbers, whatever the order of the keys; images come after
    for k, image in (
        (1, x[:, 8:92].view(-1, 2, 6, 7)),
        (2, x[:, 92:].view(-1, 8, 8, 1).permute(0, 3, 1, 2)),
    ):
        h = torch.relu(conv(w, f"trunk{k}.0", image, padding=1))
        features.append(torch.relu(conv(w, f"trunk{k}.1", h, stride=2, padding=1)))
    return behind(w, features)


def multi_vector(w, x):
    h = torch.relu(linear(w, "trunk0.1", torch.relu(linear(w, "trunk0.0", x[:, :8]))))
    cam = torch.relu(conv(w, "trunk1.0", x[:, 8:92].view(-1, 2, 6, 7), padding=1))
    deep = torch.relu(conv(w, "trunk2.0", x[:, 92:].view(-1, 1, 8, 8), padding=1))
    return behind(w, [h, cam, deep])


def custom(w, x):
    h = nn.functional.conv2d(
        x.view(-1, 9, 7, 2).permute(0, 3, 1, 2), w["trunk0.conv.weight"], w["trunk0.conv.bias"]
    )
    return behind(w, [w["trunk0.scale"] * h.amax((2, 3)) + 0.25])


ORDINARY = (simba, cnn, resnet, multi_input, multi_vector, custom)


@pytest.mark.parametrize("ordinary", ORDINARY, ids=lambda f: f.__name__)
def test_a_network_is_the_ordinary_one(ordinary):
    net = net_of(ordinary.__name__)
    members = [random_tensors(net, seed) for seed in range(3)]
    x = torch.from_numpy(random_inputs(net, 3))
    out = net.apply(stacked(members), x)
    for i, tensors in enumerate(members):
        assert torch.allclose(out[i], ordinary(named(net, tensors), x[i]), rtol=1e-5, atol=1e-5)
        module = net.module([torch.from_numpy(t) for t in tensors])
        assert torch.allclose(out[i], module(x[i]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_members_are_what_they_are_alone(name):
    net = net_of(name)
    members = [random_tensors(net, seed) for seed in range(3)]
    x = torch.from_numpy(random_inputs(net, 3))

    def differentiated(params, x):
        leaves = [p.clone().requires_grad_() for p in params]
        out = net.apply(leaves, x)
        return [out.detach(), *torch.autograd.grad((out**2).sum(), leaves)]

    together = differentiated(stacked(members), x)
    for i, tensors in enumerate(members):
        for one, all_ in zip(differentiated(stacked([tensors]), x[i : i + 1]), together, strict=True):
            assert torch.allclose(one[0], all_[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_acting_gives_what_learning_sees(name):
    net = net_of(name)
    params = stacked([random_tensors(net, seed) for seed in range(2)])
    x = random_inputs(net, 2)
    x.flags.writeable = False
    out = net.act([p.numpy() for p in params], x)
    assert np.allclose(out, net.apply(params, torch.from_numpy(x.copy())), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_networks_are_told_apart_and_found_equal(name):
    assert net_of(name) == net_of(name) and hash(net_of(name)) == hash(net_of(name))
    assert len({repr(net_of(other)) for other in CASES}) == len(CASES)
    names = [leaf.name for leaf in net_of(name).layout()]
    assert len(set(names)) == len(names)


@effect("SimbaSpec.init")
@pytest.mark.parametrize("name", ["simba", "cnn", "resnet", "multi_vector"])
def test_every_way_of_starting_covers_convolutions(name):
    space, spec = CASES[name]
    for init in ("torch", "he", "orthogonal"):
        net = build(spec.model_copy(update={"init": init}), ObservationCodec(space), 3)
        tensors = dict(
            zip((leaf.name for leaf in net.layout()), net.init_member(np.random.default_rng(0)), strict=True)
        )
        for key, value in tensors.items():
            if not key.endswith("weight") or "norm" in key or "out" in key:
                continue
            flat = value.reshape(len(value), -1).astype(np.float64)
            if init == "orthogonal":
                gram = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
                assert np.allclose(gram, 2 * np.eye(len(gram)), atol=1e-5), key
            else:
                bound = ({"torch": 1, "he": 6}[init] / flat.shape[1]) ** 0.5
                assert 0.8 * bound < abs(flat).max() <= bound, key


@effect("SimbaSpec.width", "SimbaSpec.blocks")
def test_simba_has_the_width_and_blocks_that_are_asked_for():
    shapes = dict(build(SimbaSpec(width=48, blocks=3), codec_of("simba"), 3).shapes())
    assert shapes["stem.weight"] == (48, 5) and shapes["2.first.weight"] == (192, 48)
    assert "3.first.weight" not in shapes and shapes["out.weight"] == (3, 48)


@effect("ResNetSpec.channels", "ResNetSpec.blocks", "ResNetSpec.stride", "EncoderSpec.latent_dim")
def test_resnet_has_the_shapes_that_are_asked_for():
    spec = ResNetSpec(channels=12, blocks=1, stride=3, latent_dim=40, hidden_size=[24])
    shapes = dict(build(spec, codec_of("resnet"), 3).shapes())
    assert shapes["trunk0.stem.weight"] == (12, 2, 7, 7)
    assert shapes["latent0.weight"] == (40, 12, 3, 3)  # 9 and 7 pixels, every third
    assert shapes["head.0.weight"] == (24, 40) and "trunk0.1.first.weight" not in shapes


@effect("ConvSpec.channels", "ConvSpec.kernel_size", "ConvSpec.stride", "EncoderSpec.hidden_size")
def test_convolutions_go_by_the_size_of_the_image_unless_they_are_given():
    def shapes_of(side, **given):
        inputs = ObservationCodec(spaces.Box(0, 255, (4, side, side), np.uint8))
        return [
            shape for name, shape in build(CnnSpec(**given), inputs, 2).shapes() if name.endswith("weight")
        ]

    large = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (128, 64, 12, 12), (64, 128), (2, 64)]
    assert shapes_of(84) == large
    assert shapes_of(10)[:3] == [(32, 4, 3, 3), (32, 32, 3, 3), (128, 32, 5, 5)]
    assert shapes_of(10, channels=[8])[:2] == [(8, 4, 3, 3), (128, 8, 10, 10)]
    assert shapes_of(84, stride=[2, 2], hidden_size=[5])[2:] == [(128, 64, 22, 22), (5, 128), (2, 5)]
    assert shapes_of(10, kernel_size=[5])[0] == (32, 4, 5, 5)


@effect("MultiInputSpec.vector_hidden_size")
def test_vectors_are_joined_as_they_are_or_through_layers():
    shapes = dict(net_of("multi_input").shapes())
    assert shapes["latent0.weight"] == (16, 8) and "trunk0.0.weight" not in shapes
    shapes = dict(net_of("multi_vector").shapes())
    assert shapes["latent0.weight"] == (16, 20) and shapes["trunk0.1.weight"] == (20, 16)


@effect("CustomSpec.entrypoint", "CustomSpec.config")
def test_a_module_of_the_user_is_the_encoder_and_starts_as_it_draws_itself():
    spec = CASES["custom"][1].model_copy(update={"config": {"units": 5}})
    net = build(spec, codec_of("custom"), 3)
    assert dict(net.shapes())["latent0.weight"] == (16, 5)
    before = torch.random.get_rng_state()
    first, again, other = (net.init_member(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(first[1], again[1]) and not np.array_equal(first[1], other[1])
    names = [leaf.name for leaf in net.layout()]
    assert first[names.index("trunk0.scale")] == 2.0
    bound = 1 / 18**0.5  # of a Conv2d over 2 x 3 x 3
    assert 0.8 * bound < abs(first[names.index("trunk0.conv.weight")]).max() <= bound


class Normalised(Own):
    def __init__(self):
        super().__init__(4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(super().forward(x))


class Dropping(Own):
    def __init__(self):
        super().__init__(4)

    def forward(self, x):
        return nn.functional.dropout(super().forward(x))


class Square(Own):
    def __init__(self):
        super().__init__(4)

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("entrypoint", "config", "text"),
    [
        ("test_encoders:Normalised", {}, "the outputs of a row change .* leave out BatchNorm and Dropout"),
        ("test_encoders:Dropping", {}, "the outputs of a row change"),
        (
            "test_encoders:Square",
            {},
            r"makes \(3, 9, 7, 2\) of \(3, 9, 7, 2\); it must make \(batch, features\)",
        ),
        ("test_encoders:np", {}, "TypeError: 'module' object is not callable"),
        ("builtins:dict", {}, "gives dict, not a torch.nn.Module"),
        ("nets:Own", {"width": 3}, "unexpected keyword argument 'width'; it takes units"),
        ("nets:Owm", {}, "module 'nets' has no attribute 'Owm'; did you mean Own?"),
        ("no_such_file.py:Net", {}, "no file .*no_such_file.py"),
    ],
)
def test_a_module_that_cannot_serve_is_refused_in_one_line(entrypoint, config, text):
    with pytest.raises(ConfigError, match=rf"^algo.net_config.entrypoint={entrypoint}: .*{text}") as caught:
        build(CustomSpec(entrypoint=entrypoint, config=config), ObservationCodec(IMAGE), 2)
    assert "\n" not in str(caught.value)
