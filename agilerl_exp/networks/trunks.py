"""Trunks: what an encoder does to one part of an observation before all parts are joined.

Must not know: what comes after the features, who minimises what. Shapes: x `(P, B, width)`, the part as it stands in
the encoded observation; parameters `(P, *shape)`; features `(P, B, ...)` with the axes that `features` names.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.plugins import resolve, told
from agilerl_exp.networks.network import Axis, Leaf, initial


class Trunk(ABC):
    """One part's way to features. Frozen, hashable, with a `repr` that tells it apart."""

    @abstractmethod
    def layout(self) -> list[Leaf]:
        """Its tensors."""

    @abstractmethod
    def features(self) -> tuple[Axis, ...]:
        """The axes of the features after `(P, B)`."""

    @abstractmethod
    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """Features."""

    def init_member(self, init: str, rng: np.random.Generator) -> list[np.ndarray]:
        """Initial tensors of one member."""
        return initial(self.layout(), init, rng)


@dataclass(frozen=True)
class VectorTrunk(Trunk):
    """The numbers as they are, or hidden layers over them.

    Attributes:
        width: how many numbers.
        hidden_size: units of each layer.
        activation: after each layer.
    """

    width: int
    hidden_size: tuple[int, ...] = ()
    activation: str = "ReLU"

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        leaves: list[Leaf] = []
        before: Axis = (None, self.width)
        for i, size in enumerate(self.hidden_size):
            units: Axis = (f"units{i}", size)
            leaves += [Leaf(f"{i}.weight", (units, before)), Leaf(f"{i}.bias", (units,))]
            before = units
        return leaves

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        last = len(self.hidden_size) - 1
        return ((f"units{last}", self.hidden_size[last]) if self.hidden_size else (None, self.width),)

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`."""
        for i in range(0, len(params), 2):
            x = torch.baddbmm(params[i + 1].unsqueeze(1), x, params[i].transpose(1, 2))
            x = getattr(nn, self.activation)()(x)
        return x


@dataclass(frozen=True)
class ImageTrunk(Trunk):
    """A trunk over images, which it takes member by member.

    Attributes:
        shape: of an image as it comes.
        channels_last: whether that is (height, width, channels).
    """

    shape: tuple[int, int, int]
    channels_last: bool

    @property
    def planes(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.shape[2], *self.shape[:2]) if self.channels_last else self.shape

    def images(self, x: Tensor) -> Tensor:
        """`(P, B, C, H, W)`."""
        images = x.reshape(*x.shape[:2], *self.shape)
        return images.permute(0, 1, 4, 2, 3) if self.channels_last else images

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`; on one CPU thread a loop is faster than grouped convolutions for images of 84 x 84."""
        members = zip(self.images(x), *params, strict=True)
        return torch.stack([self._member(images, own) for images, *own in members])

    @abstractmethod
    def _member(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        """Features of the images `(B, C, H, W)` of one member."""


def map_side(side: int, kernel: int, stride: int) -> int:
    """Side of what a convolution makes; kernels that are all even or all odd make the same."""
    return (side + 2 * (kernel // 2) - kernel) // stride + 1


@dataclass(frozen=True)
class ConvTrunk(ImageTrunk):
    """Convolutions with ReLU after each, padded by kernel // 2: a kernel that grows around its centre with zeros makes
    what it made before.

    Attributes:
        channels, kernel_size, stride: of each layer.
    """

    channels: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        leaves: list[Leaf] = []
        before: Axis = (None, self.planes[0])
        for i, (count, size) in enumerate(zip(self.channels, self.kernel_size, strict=True)):
            units: Axis = (f"channel{i}", count)
            kernel: Axis = (f"kernel{i}", size)
            leaves += [Leaf(f"{i}.weight", (units, before, kernel, kernel)), Leaf(f"{i}.bias", (units,))]
            before = units
        return leaves

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        _, *sides = self.planes
        for kernel, stride in zip(self.kernel_size, self.stride, strict=True):
            sides = [map_side(side, kernel, stride) for side in sides]
        return (f"channel{len(self.channels) - 1}", self.channels[-1]), (None, sides[0]), (None, sides[1])

    def _member(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        for i, stride in enumerate(self.stride):
            weight, bias = params[2 * i : 2 * i + 2]
            x = torch.relu(functional.conv2d(x, weight, bias, stride, weight.shape[-1] // 2))
        return x


@dataclass(frozen=True)
class ResidualTrunk(ImageTrunk):
    """A strided convolution, blocks x + conv(relu(conv(relu(x)))) of 3 x 3 kernels, then ReLU (He et al. 2016b).

    Attributes:
        channels: of all layers.
        blocks: how many.
        stride: of the first convolution, whose kernel has a side of 2 * stride + 1.
    """

    channels: int
    blocks: int
    stride: int

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        stream: Axis = ("channel", self.channels)
        side: Axis = (None, 2 * self.stride + 1)
        three: Axis = (None, 3)
        leaves = [
            Leaf("stem.weight", (stream, (None, self.planes[0]), side, side)),
            Leaf("stem.bias", (stream,)),
        ]
        for i in range(self.blocks):
            inner: Axis = (f"inner{i}", self.channels)
            leaves += [
                Leaf(f"{i}.first.weight", (inner, stream, three, three)),
                Leaf(f"{i}.first.bias", (inner,)),
            ]
            leaves += [
                Leaf(f"{i}.branch.weight", (stream, inner, three, three)),
                Leaf(f"{i}.branch.bias", (stream,)),
            ]
        return leaves

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        _, height, width = (map_side(side, 2 * self.stride + 1, self.stride) for side in self.planes)
        return ("channel", self.channels), (None, height), (None, width)

    def _member(self, x: Tensor, params: Sequence[Tensor]) -> Tensor:
        x = functional.conv2d(x, params[0], params[1], self.stride, self.stride)
        for i in range(2, len(params), 4):
            inner = torch.relu(functional.conv2d(torch.relu(x), params[i], params[i + 1], padding=1))
            x = x + functional.conv2d(inner, params[i + 2], params[i + 3], padding=1)
        return torch.relu(x)


@dataclass(frozen=True)
class ModuleTrunk(Trunk):
    """A module of the user's own, called member by member. No mutation changes it.

    Parameters start as the module itself draws them, of a member's own stream of random numbers. Buffers are those of
    one instance, the same for all members; a module that changes them while it learns is refused.

    Attributes:
        entrypoint: where its class, or a function that makes it, is.
        config: its keyword arguments, as JSON.
        shape: of an observation as the module gets it, after the batch axis.
    """

    entrypoint: str
    config: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Try the module."""
        _template(self)

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        named = _template(self)[0].named_parameters()
        return [Leaf(name, tuple((None, size) for size in value.shape)) for name, value in named]

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        return ((None, _template(self)[1]),)

    def init_member(self, init: str, rng: np.random.Generator) -> list[np.ndarray]:
        """See `Trunk`."""
        module = _made(self, int(rng.integers(2**63)))
        return [value.detach().float().numpy().copy() for value in module.parameters()]

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`."""
        module = _template(self)[0]
        names = [name for name, _ in module.named_parameters()]
        buffers = {name: value.to(x.device) for name, value in module.named_buffers()}
        outs = []
        for inputs, *own in zip(x, *params, strict=True):
            state = buffers | dict(zip(names, own, strict=True))
            outs.append(torch.func.functional_call(module, state, inputs.reshape(-1, *self.shape)))
        return torch.stack(outs)


def _made(trunk: ModuleTrunk, seed: int) -> nn.Module:
    """The user's module as it draws itself from `seed`; the global generator is put back as it was."""
    place, settings = f"algo.net_config.entrypoint={trunk.entrypoint}", json.loads(trunk.config)
    create = resolve(trunk.entrypoint, place)
    with told(place, create, settings), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module: Any = create(**settings)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{place}: gives {type(module).__name__}, not a torch.nn.Module")
    return module


@functools.cache
def _template(trunk: ModuleTrunk) -> tuple[nn.Module, int]:
    """An instance whose parameters are replaced at each call, and the number of its features.

    Raises:
        ConfigError: what it makes of a row is no vector, or depends on other rows or on chance, or changes with time.
    """
    place, module = f"algo.net_config.entrypoint={trunk.entrypoint}", _made(trunk, 0)
    before = [value.clone() for value in module.buffers()]
    with told(place), torch.no_grad(), torch.random.fork_rng(devices=[]):
        x = torch.linspace(-1, 1, 3 * int(np.prod(trunk.shape))).reshape(3, *trunk.shape)
        out, again = module(x), module(x[:2])
    if out.ndim != 2 or len(out) != 3:
        raise ConfigError(
            f"{place}: makes {tuple(out.shape)} of {tuple(x.shape)}; it must make (batch, features)"
        )
    fixed = all(map(torch.equal, before, module.buffers()))
    if not fixed or not torch.allclose(out[:2], again, atol=1e-5):
        raise ConfigError(
            f"{place}: the outputs of a row change with other rows, with chance or with time; "
            "leave out BatchNorm and Dropout (LayerNorm and GroupNorm work)"
        )
    return module, out.shape[1]
