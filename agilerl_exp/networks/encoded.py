"""Encoder and head: trunks for the parts of an observation, joined into a latent vector, and an MLP behind it.

Must not know: what the outputs mean, who minimises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Axis, Leaf, Network, initial
from agilerl_exp.networks.trunks import Trunk


@dataclass(frozen=True)
class Encoded(Network):
    """Trunks, a linear layer over all of their features, an activation, an MLP.

    Attributes:
        parts: first entry and width of each part in the encoded observation, and its trunk.
        in_width: width of the encoded observation.
        head: reads the latent vector; its activation comes before it too.
    """

    parts: tuple[tuple[int, int, Trunk], ...]
    in_width: int
    head: Mlp

    @property
    def out_width(self) -> int:  # type: ignore[override]
        """Number of outputs."""
        return self.head.out_width

    @property
    def init(self) -> str:  # type: ignore[override]
        """How weights start."""
        return self.head.init

    def layout(self) -> list[Leaf]:
        """See `Network`; the latent layer has a weight for each trunk, with the axes of its features."""
        return list(self._layout)

    @cached_property
    def _layout(self) -> list[Leaf]:
        latent: Axis = ("latent", self.head.in_width)
        leaves: list[Leaf] = []
        for i, (_, _, trunk) in enumerate(self.parts):
            leaves += [_inside(f"trunk{i}.", f"@{i}", leaf) for leaf in trunk.layout()]
        for i, (_, _, trunk) in enumerate(self.parts):
            leaves.append(_inside(f"latent{i}.", f"@{i}", Leaf("weight", (latent, *trunk.features()))))
        leaves.append(Leaf("latent.bias", (latent,)))
        return leaves + [_inside("head.", "@head", leaf) for leaf in self.head.layout("latent")]

    @cached_property
    def _counts(self) -> list[int]:
        return [len(trunk.layout()) for _, _, trunk in self.parts]

    def init_member(self, rng: np.random.Generator) -> list[np.ndarray]:
        """See `Network`."""
        own = [x for _, _, trunk in self.parts for x in trunk.init_member(self.init, rng)]
        return own + initial(self._layout[len(own) :], self.init, rng)

    def inserted(self, leaf: Leaf, fresh: np.ndarray) -> np.ndarray:
        """See `Network`; a residual block is an identity when its last convolution is zero."""
        if ".first." in leaf.name:
            return fresh
        return np.zeros_like(fresh) if ".branch." in leaf.name else super().inserted(leaf, fresh)

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Network`."""
        left = list(params[sum(self._counts) :])
        weights, bias, head = left[: len(self.parts)], left[len(self.parts)], left[len(self.parts) + 1 :]
        latent, start = bias.unsqueeze(1), 0
        for (first, width, trunk), count, weight in zip(self.parts, self._counts, weights, strict=True):
            features = trunk.apply(params[start : start + count], x[..., first : first + width]).flatten(2)
            latent = torch.baddbmm(latent, features, weight.flatten(2).transpose(1, 2))
            start += count
        return self.head.apply(head, getattr(nn, self.head.activation)()(latent))


def _inside(name: str, group: str, leaf: Leaf) -> Leaf:
    """A leaf of a part with names of its own in the whole, but for the latent units, which all parts share."""
    axes = tuple((g if g in (None, "latent") else f"{g}{group}", size) for g, size in leaf.axes)
    return Leaf(name + leaf.name, axes)
