"""Trunks: what an encoder does to one part of an observation before everything is joined.

Must not know: what comes after the features, who minimises what. Shapes: x `(P, B, width)`, the part as it stands in the
encoded observation; parameters `(P, *shape)`; features `(P, B, ...)` with the axes that `features_of` names.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl_exp.errors import ConfigError, SpaceError
from agilerl_exp.models.plugins import resolve, told
from agilerl_exp.networks.network import Axis, Leaf


class Trunk(ABC):
    """One part's way to features."""

    @abstractmethod
    def layout(self) -> list[Leaf]:
        """Its tensors."""

    @abstractmethod
    def features(self) -> tuple[Axis, ...]:
        """The axes of the features after `(P, B)`."""

    @abstractmethod
    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """Features."""


@dataclass(frozen=True)
class VectorTrunk(Trunk):
    """The numbers as they are."""

    width: int

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        return []

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        return ((None, self.width),)

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`."""
        return x


@dataclass(frozen=True)
class ConvTrunk(Trunk):
    """Convolutions with ReLU after each, padded by kernel // 2, so that a kernel can grow around its centre.

    Attributes:
        shape: of an image as it comes.
        channels_last: whether that is (height, width, channels).
        channels, kernel_size, stride: of each layer.
    """

    shape: tuple[int, int, int]
    channels_last: bool
    channels: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def _planes(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.shape[2], *self.shape[:2]) if self.channels_last else self.shape

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        leaves: list[Leaf] = []
        before: Axis = (None, self._planes[0])
        for i, (count, size) in enumerate(zip(self.channels, self.kernel_size, strict=True)):
            units: Axis = (f"channel{i}", count)
            kernel: Axis = (f"kernel{i}", size)
            leaves += [Leaf(f"{i}.weight", (units, before, kernel, kernel)), Leaf(f"{i}.bias", (units,))]
            before = units
        return leaves

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        _, *sizes = self._planes
        for kernel, stride in zip(self.kernel_size, self.stride, strict=True):
            sizes = [(size + 2 * (kernel // 2) - kernel) // stride + 1 for size in sizes]
        if min(sizes) < 1:
            raise SpaceError(f"algo.net_config.stride={list(self.stride)}: leaves nothing of an image {self.shape}; lower it")
        return (f"channel{len(self.channels) - 1}", self.channels[-1]), (None, sizes[0]), (None, sizes[1])

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`; one convolution a member, which is faster than grouped ones for images of 84 pixels."""
        x = planes(x, self.shape, self.channels_last)
        return torch.stack([self._member([p[i] for p in params], x[i]) for i in range(len(x))])

    def _member(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        for i, stride in enumerate(self.stride):
            weight, bias = params[2 * i : 2 * i + 2]
            x = F.relu(F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2))
        return x


@dataclass(frozen=True)
class ResidualTrunk(Trunk):
    """A strided convolution, then blocks x + conv(relu(conv(relu(x)))) of one width, then ReLU (He et al. 2016b).

    Attributes:
        shape, channels_last: as in `ConvTrunk`.
        channel: width of all layers.
        blocks: how many.
        stride: of the first convolution, whose kernel is 2 * stride + 1.
    """

    shape: tuple[int, int, int]
    channels_last: bool
    channel: int
    blocks: int
    stride: int

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        depth = self.shape[2] if self.channels_last else self.shape[0]
        units: Axis = ("channel", self.channel)
        stem: Axis = (None, 2 * self.stride + 1)
        leaves = [Leaf("stem.weight", (units, (None, depth), stem, stem)), Leaf("stem.bias", (units,))]
        three: Axis = (None, 3)
        for i in range(self.blocks):
            for name in ("first", "branch"):
                leaves.append(Leaf(f"{i}.{name}.weight", (units, units, three, three)))
                leaves.append(Leaf(f"{i}.{name}.bias", (units,)))
        return leaves

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        sizes = self.shape[:2] if self.channels_last else self.shape[1:]
        height, width = ((size - 1) // self.stride + 1 for size in sizes)
        return ("channel", self.channel), (None, height), (None, width)

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`."""
        x = planes(x, self.shape, self.channels_last)
        return torch.stack([self._member([p[i] for p in params], x[i]) for i in range(len(x))])

    def _member(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        x = F.conv2d(x, params[0], params[1], self.stride, self.stride)
        for i in range(2, len(params), 4):
            first, first_bias, second, second_bias = params[i : i + 4]
            inner = F.relu(F.conv2d(F.relu(x), first, first_bias, padding=1))
            x = x + F.conv2d(inner, second, second_bias, padding=1)
        return F.relu(x)


@dataclass(frozen=True)
class ModuleTrunk(Trunk):
    """A module of the user's own, called member by member. No mutation changes it.

    Attributes:
        entrypoint: where its class or a function that makes it is.
        config: its keyword arguments, as JSON.
        shape: of an observation as the module gets it, after the batch axis.
    """

    entrypoint: str
    config: str
    shape: tuple[int, ...]

    def layout(self) -> list[Leaf]:
        """See `Trunk`."""
        named = _module(self.entrypoint, self.config).named_parameters()
        return [Leaf(name, tuple((None, size) for size in p.shape)) for name, p in named]

    def features(self) -> tuple[Axis, ...]:
        """See `Trunk`."""
        module, place = _module(self.entrypoint, self.config), f"algo.net_config.entrypoint={self.entrypoint}"
        with told(place), torch.no_grad():
            out = module(torch.zeros(2, *self.shape))
        if out.ndim != 2 or len(out) != 2:
            raise ConfigError(f"{place}: makes {tuple(out.shape)} of (2, {self.shape}); it must make (batch, features)")
        return ((None, out.shape[1]),)

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Trunk`."""
        module = _module(self.entrypoint, self.config)
        names = [name for name, _ in module.named_parameters()]
        members = [
            torch.func.functional_call(
                module, dict(zip(names, [p[i] for p in params], strict=True)), x[i].reshape(-1, *self.shape)
            )
            for i in range(len(x))
        ]
        return torch.stack(members)


def planes(x: Tensor, shape: tuple[int, int, int], channels_last: bool) -> Tensor:
    """Images `(P, B, C, H, W)` of a part `(P, B, width)`."""
    images = x.reshape(*x.shape[:2], *shape)
    return images.permute(0, 1, 4, 2, 3) if channels_last else images


@functools.cache
def _module(entrypoint: str, config: str) -> nn.Module:
    place, settings = f"algo.net_config.entrypoint={entrypoint}", json.loads(config)
    create = resolve(entrypoint, place)
    with told(place, create, settings):
        module: Any = create(**settings)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{place}: gives {type(module).__name__}, not a torch.nn.Module")
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            raise ConfigError(f"{place}: {type(part).__name__} acts otherwise when it learns; use LayerNorm, or leave it out")
    return module
