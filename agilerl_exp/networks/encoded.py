"""Encoder and head: trunks for the parts of an observation, joined into a latent vector, and an MLP behind it.

Must not know: what the outputs mean, who minimises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Axis, Leaf, Network
from agilerl_exp.networks.trunks import Trunk


@dataclass(frozen=True)
class Encoded(Network):
    """See the module.

    Attributes:
        parts: first entry and width of each part in the encoded observation, and its trunk.
        in_width: width of the encoded observation.
        head: reads the latent vector.
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
        leaves: list[Leaf] = []
        latent: Axis = ("latent", self.head.in_width)
        for i, (_, _, trunk) in enumerate(self.parts):
            leaves += [_inside(f"trunk{i}.", f"@{i}", leaf) for leaf in trunk.layout()]
        for i, (_, _, trunk) in enumerate(self.parts):
            weight = Leaf("weight", (latent, *trunk.features()))
            leaves.append(_inside(f"latent{i}.", f"@{i}", weight, keep="latent"))
        leaves.append(Leaf("latent.bias", (latent,)))
        return leaves + [_inside("head.", "@head", leaf, keep="latent") for leaf in self.head.layout("latent")]

    def inserted(self, leaf: Leaf, fresh: np.ndarray) -> np.ndarray:
        """See `Network`; a residual block is an identity when its last convolution is zero."""
        if ".first." in leaf.name:
            return fresh
        return np.zeros_like(fresh) if ".branch." in leaf.name else super().inserted(leaf, fresh)

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Network`."""
        features, start = [], 0
        for first, width, trunk in self.parts:
            stop = start + len(trunk.layout())
            features.append(trunk.apply(params[start:stop], x[..., first : first + width]).flatten(2))
            start = stop
        weights, bias = params[start : start + len(features)], params[start + len(features)]
        joined = torch.cat(features, -1)
        weight = torch.cat([w.flatten(2) for w in weights], -1)
        latent = torch.baddbmm(bias.unsqueeze(1), joined, weight.transpose(1, 2))
        return self.head.apply(params[start + len(features) + 1 :], getattr(nn, self.head.activation)()(latent))


def _inside(name: str, group: str, leaf: Leaf, keep: str = "") -> Leaf:
    """A leaf of a part, with names of its own in the whole; group `keep` is shared by all parts."""
    axes = tuple((g if g is None or g == keep else g + group, size) for g, size in leaf.axes)
    return Leaf(name + leaf.name, axes)
