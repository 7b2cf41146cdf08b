"""Which network reads which observations, and what is said where none can."""

import numpy as np
import pytest
from effects import effect
from gymnasium import spaces
from nets import CASES, IMAGE, MIXED, VECTOR, net_of
from pydantic import TypeAdapter, ValidationError

from agilerl_exp.errors import SpaceError
from agilerl_exp.models.network import (
    AutoSpec,
    CnnSpec,
    CustomSpec,
    MlpSpec,
    MultiInputSpec,
    NetworkSpec,
    ResNetSpec,
    SimbaSpec,
)
from agilerl_exp.networks.build import build, resolve
from agilerl_exp.networks.observation import ObservationCodec


def box(*shape, low=0, high=255, dtype=np.uint8):
    return spaces.Box(low, high, shape, dtype)


@effect("AutoSpec.arch", "AutoSpec.hidden_size")
@pytest.mark.parametrize(
    ("space", "arch"),
    [
        (box(3), "mlp"),
        (box(3, 4), "mlp"),
        (spaces.MultiBinary((4, 4, 2)), "mlp"),
        (spaces.Dict(a=box(3), b=spaces.Tuple((spaces.Discrete(3),))), "mlp"),
        (box(8, 8, 1), "cnn"),
        (box(8, 8, 1, dtype=np.float32), "cnn"),
        (box(8, 8, 1, high=1, dtype=np.float32), "cnn"),
        (box(8, 8, 1, low=-1, high=1, dtype=np.float32), "mlp"),
        (spaces.Dict(a=box(3), b=spaces.Tuple((box(8, 8, 1),))), "multi_input"),
        (spaces.Tuple((box(8, 8, 1),)), "cnn"),
    ],
)
def test_the_observations_choose_the_network(space, arch):
    inputs = ObservationCodec(space)
    for spec in (None, AutoSpec()):
        chosen = resolve(spec, inputs)
        assert (chosen.arch, chosen.hidden_size) == (arch, [64, 64] if arch == "mlp" else [64])
    chosen = resolve(AutoSpec(hidden_size=[7, 9], activation="Tanh"), inputs)
    assert (chosen.arch, chosen.hidden_size, chosen.activation) == (arch, [7, 9], "Tanh")
    assert resolve(chosen, inputs) == chosen
    saved = TypeAdapter(NetworkSpec).validate_python(chosen.model_dump(mode="json"))
    assert saved == chosen and build(saved, inputs, 2) == build(chosen, inputs, 2)


@effect(
    "MlpSpec.arch",
    "SimbaSpec.arch",
    "CnnSpec.arch",
    "ResNetSpec.arch",
    "MultiInputSpec.arch",
    "CustomSpec.arch",
)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mlp", "Mlp"),
        ("simba", "Simba"),
        ("cnn", "ConvTrunk"),
        ("resnet", "ResidualTrunk"),
        ("multi_input", "VectorTrunk ConvTrunk ConvTrunk"),
        ("custom", "ModuleTrunk"),
    ],
)
def test_arch_names_the_network(name, kind):
    assert CASES[name][1].arch == name
    net = net_of(name)
    kinds = [type(trunk).__name__ for _, _, trunk in getattr(net, "parts", [])] or [type(net).__name__]
    assert " ".join(kinds) == kind


def test_images_may_be_flattened_and_floats_may_be_convolved_when_it_is_asked_for():
    assert build(MlpSpec(), ObservationCodec(IMAGE), 2).in_width == 9 * 7 * 2
    floats = box(8, 8, 1, low=-1, high=1, dtype=np.float32)
    assert build(CnnSpec(), ObservationCodec(floats), 2).parts[0][2].planes == (1, 8, 8)
    mixed = ObservationCodec(spaces.Dict(a=floats, b=VECTOR, c=IMAGE))
    parts = build(MultiInputSpec(), mixed, 2).parts
    assert [(first, width) for first, width, _ in parts] == [(0, 5), (5, 64), (69, 126)]
    assert mixed.vector_width == 69  # what normalize_obs scales


@effect("ImageSpec.channels_last")
@pytest.mark.parametrize(
    ("shape", "given", "planes"),
    [
        ((3, 12, 16), None, (3, 12, 16)),
        ((12, 16, 3), None, (3, 12, 16)),
        ((12, 16, 1), None, (1, 12, 16)),
        ((4, 84, 84), None, (4, 84, 84)),
        ((8, 8, 8), True, (8, 8, 8)),
        ((3, 5, 3), True, (3, 3, 5)),
        ((3, 5, 3), False, (3, 5, 3)),
        ((4, 6, 16), True, (16, 4, 6)),
    ],
)
def test_the_layout_of_an_image(shape, given, planes):
    for spec in (CnnSpec(channels_last=given), ResNetSpec(channels_last=given)):
        (part,) = build(spec, ObservationCodec(box(*shape)), 2).parts
        assert part[2].planes == planes


CAM = spaces.Dict(cam=box(8, 8, 1), speed=VECTOR)
NET = "algo.net_config"


@pytest.mark.parametrize(
    ("spec", "space", "line"),
    [
        (
            SimbaSpec(),
            CAM,
            f"{NET}.arch=simba: reads vectors, and the observation space['cam'] Box(8, 8, 1) is an image; "
            "take network=cnn or multi_input",
        ),
        (
            CnnSpec(),
            VECTOR,
            f"{NET}.arch=cnn: no Box of three dimensions in the observation space Box(5,); take network=mlp or simba",
        ),
        (
            ResNetSpec(),
            spaces.Dict(a=spaces.Discrete(3), b=VECTOR),
            f"{NET}.arch=resnet: no Box of three dimensions in the observation space['a'] Discrete; "
            "observation space['b'] Box(5,); take network=mlp or simba",
        ),
        (
            MultiInputSpec(),
            spaces.Discrete(3),
            f"{NET}.arch=multi_input: no Box of three dimensions in the observation space Discrete; "
            "take network=mlp or simba",
        ),
        (CnnSpec(), CAM, f"{NET}.arch=cnn: reads one image, there are 2 parts; take network=multi_input"),
        (
            None,
            box(3, 5, 3),
            f"{NET}.channels_last=null: the observation space Box(3, 5, 3) may be read both ways; give true or false",
        ),
        (
            None,
            box(2, 9, 1),
            f"{NET}.arch=cnn: the observation space Box(2, 9, 1) is smaller than 3 pixels; take network=mlp",
        ),
        (
            CnnSpec(kernel_size=[8, 4, 3]),
            box(6, 9, 1),
            f"{NET}.kernel_size=[8, 4, 3]: the observation space Box(6, 9, 1) is too small; "
            "give kernels (and min_kernel) of at most 6",
        ),
        (
            CnnSpec(stride=[4, 4]),
            box(10, 10, 1),
            f"{NET}.stride=[4, 4]: the observation space Box(10, 10, 1) is too small: nothing is left to step over; "
            "give smaller strides",
        ),
        (
            ResNetSpec(stride=9),
            box(8, 8, 1),
            f"{NET}.stride=9: larger than the observation space Box(8, 8, 1); give at most 8",
        ),
    ],
    ids=lambda value: value.arch if hasattr(value, "arch") else None,
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(spec, space, line):
    with pytest.raises(SpaceError) as caught:
        build(spec, ObservationCodec(space), 2)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: CnnSpec(channels=[8, 8], stride=[1]), "stride=[1]: must have 2 entries as channels has"),
        (
            lambda: CnnSpec(kernel_size=[3], stride=[1, 2]),
            "stride=[1, 2]: must have 1 entries as kernel_size has",
        ),
        (lambda: CustomSpec(entrypoint="net"), "entrypoint=net: must read module:attr or file.py:Class"),
        (lambda: CustomSpec(), "entrypoint=null: must read module:attr or file.py:Class"),
        (lambda: SimbaSpec(min_blocks=5), "min_blocks=5: must be <= max_blocks=4"),
        (lambda: ResNetSpec(min_channels=200), "min_channels=200: must be <= max_channels=128"),
    ],
)
def test_lists_and_bounds_that_do_not_go_together_are_refused(make, line):
    with pytest.raises(ValidationError) as caught:
        make()
    assert caught.value.errors()[0]["ctx"]["error"].lines == [line]


def test_nested_parts_keep_their_places_whatever_the_order_of_the_keys():
    inputs = ObservationCodec(MIXED)
    assert [(str(part), part.start, part.width) for part in inputs.parts] == [
        ("observation space['mode'] Discrete", 0, 3),
        ("observation space['deep'][1] Box(5,)", 3, 5),
        ("observation space['cam'] Box(2, 6, 7)", 8, 84),
        ("observation space['deep'][0] Box(8, 8, 1)", 92, 64),
    ]
