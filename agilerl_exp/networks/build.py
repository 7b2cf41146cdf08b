"""From a network spec to the network that fits the observations.

Must not know: what the outputs mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from agilerl_exp.errors import SpaceError
from agilerl_exp.models.base import mistake
from agilerl_exp.models.network import (
    AutoSpec,
    CnnSpec,
    ConvSpec,
    CustomSpec,
    ImageSpec,
    MlpSpec,
    MultiInputSpec,
    ResNetSpec,
    SimbaSpec,
)
from agilerl_exp.networks.encoded import Encoded
from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Network
from agilerl_exp.networks.observation import ObservationCodec, Part
from agilerl_exp.networks.simba import Simba
from agilerl_exp.networks.trunks import (
    ConvTrunk,
    ImageTrunk,
    ModuleTrunk,
    ResidualTrunk,
    Trunk,
    VectorTrunk,
    map_side,
)

LARGE, LEAST = 32, 3
"""Pixels of the shorter side from which an image counts as large, and below which there is nothing to convolve."""
_LARGE = {"channels": (32, 64, 64), "kernel_size": (8, 4, 3), "stride": (4, 2, 1)}  # Mnih et al. 2015
_SMALL = {"channels": (32, 32), "kernel_size": (3, 3), "stride": (1, 2)}


def resolve(spec: Any, inputs: ObservationCodec) -> Any:
    """The spec with its `arch` and all that goes by the size of images decided: what is saved and mutated.

    Args:
        spec: a network spec, or None for the defaults.
        inputs: turns observations into what the network reads.

    Raises:
        SpaceError: the network cannot read such observations.
    """
    spec = AutoSpec() if spec is None else spec
    if isinstance(spec, AutoSpec):
        images = any(part.top is not None for part in inputs.parts)
        cls = MlpSpec if not images else CnnSpec if len(inputs.parts) == 1 else MultiInputSpec
        spec = cls(**spec.model_dump(exclude={"arch"}, exclude_none=True))
    if isinstance(spec, SimbaSpec) and (image := next((p for p in inputs.parts if p.top is not None), None)):
        _refuse(spec, "arch", f"reads vectors, and the {image} is an image; take network=cnn or multi_input")
    return _filled(spec, _images(spec, inputs)) if isinstance(spec, ImageSpec) else spec


def build(spec: Any, inputs: ObservationCodec, outputs: int) -> Network:
    """The network of a spec.

    Args:
        spec: a network spec, or None for the defaults.
        inputs: turns observations into what the network reads.
        outputs: number of outputs.

    Raises:
        SpaceError: the network cannot read such observations.
        ConfigError: the user's own module cannot be used.
    """
    spec = resolve(spec, inputs)
    if isinstance(spec, SimbaSpec):
        return Simba(inputs.width, outputs, spec.width, spec.blocks, spec.init)
    if isinstance(spec, MlpSpec):
        return Mlp.from_spec(spec, inputs.width, outputs)
    parts: list[tuple[int, int, Trunk]] = []
    if isinstance(spec, CustomSpec):
        shape = inputs.parts[0].space.shape if len(inputs.parts) == 1 and not inputs.parts[0].path else None
        config = json.dumps(spec.config, sort_keys=True)
        parts = [
            (0, inputs.width, ModuleTrunk(spec.entrypoint or "", config, tuple(shape or (inputs.width,))))
        ]
    else:
        images = _images(spec, inputs)
        if images[0].start:
            hidden = tuple(spec.vector_hidden_size)
            parts.append((0, images[0].start, VectorTrunk(images[0].start, hidden, spec.activation)))
        parts += [(part.start, part.width, _image_trunk(spec, part)) for part in images]
    return Encoded(tuple(parts), inputs.width, Mlp.from_spec(spec, spec.latent_dim, outputs))


def _refuse(spec: Any, field: str, text: str) -> None:
    raise SpaceError(mistake(f"algo.net_config.{field}", getattr(spec, field), text))


def _images(spec: Any, inputs: ObservationCodec) -> list[Part]:
    """What the network convolves."""
    images = [part for part in inputs.parts if part.planar]
    if not images:
        what = "; ".join(map(str, inputs.parts))
        _refuse(spec, "arch", f"no Box of three dimensions in the {what}; take network=mlp or simba")
    if len(inputs.parts) > 1 and not isinstance(spec, MultiInputSpec):
        _refuse(
            spec, "arch", f"reads one image, there are {len(inputs.parts)} parts; take network=multi_input"
        )
    return images


def _image_trunk(spec: Any, part: Part) -> ImageTrunk:
    shape, last = cast(tuple[int, int, int], part.space.shape), spec.channels_last
    if last is None and shape[0] == shape[2]:
        _refuse(spec, "channels_last", f"the {part} may be read both ways; give true or false")
    last = shape[2] < shape[0] if last is None else last
    if isinstance(spec, ResNetSpec):
        return ResidualTrunk(shape, last, spec.channels, spec.blocks, spec.stride or 1)
    lists = (tuple(getattr(spec, name) or ()) for name in _LARGE)
    return ConvTrunk(shape, last, *lists)


def _filled(spec: Any, images: Sequence[Part]) -> Any:
    """The spec with what is null decided by the smallest image; what mutations never change is checked."""
    sides = [min(_image_trunk(spec, part).planes[1:]) for part in images]
    side, image = min(zip(sides, images, strict=True), key=lambda pair: pair[0])
    if side < LEAST:
        _refuse(spec, "arch", f"the {image} is smaller than {LEAST} pixels; take network=mlp")
    if isinstance(spec, ResNetSpec):
        stride = spec.stride or (4 if side >= LARGE else 1)
        spec = spec.model_copy(update={"stride": stride})
        if stride > side:
            _refuse(spec, "stride", f"larger than the {image}; give at most {side}")
        return spec
    usual = _LARGE if side >= LARGE else _SMALL
    given = [value for name in usual if (value := getattr(spec, name)) is not None]
    layers = len(given[0]) if given else len(usual["stride"])
    lists = {
        name: getattr(spec, name) or [row[min(i, len(row) - 1)] for i in range(layers)]
        for name, row in (usual | {"stride": (*usual["stride"], 1)}).items()
    }
    spec = spec.model_copy(update={**lists, "max_kernel": max(min(spec.max_kernel, side), spec.min_kernel)})
    return _fits(spec, side, image)


def _fits(spec: ConvSpec, side: int, image: Part) -> ConvSpec:
    assert spec.kernel_size is not None and spec.stride is not None
    if max(spec.min_kernel, *spec.kernel_size) > side:
        _refuse(
            spec, "kernel_size", f"the {image} is too small; give kernels (and min_kernel) of at most {side}"
        )
    for kernel, stride in zip(spec.kernel_size, spec.stride, strict=True):
        if stride > side:
            _refuse(
                spec,
                "stride",
                f"the {image} is too small: nothing is left to step over; give smaller strides",
            )
        side = map_side(side, kernel, stride)
    return spec
