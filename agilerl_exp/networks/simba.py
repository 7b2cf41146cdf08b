"""SimBa (Lee et al. 2024): residual blocks with LayerNorm before them, for vectors.

Deviation: observations are scaled by the statistics of `normalize_obs`, where that is on.
Must not know: what the outputs mean, who minimises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl_exp.networks.mlp import LAYER_NORM_EPS
from agilerl_exp.networks.network import Axis, Leaf, Network

EXPANSION = 4


@dataclass(frozen=True)
class Simba(Network):
    """x = W x; blocks x + W2 relu(W1 norm(x)); then norm and the outputs.

    Attributes:
        in_width, out_width: of the encoded observation and the outputs.
        width: of the residual stream.
        blocks: how many.
        init: see `HeadSpec`.
    """

    in_width: int
    out_width: int
    width: int
    blocks: int
    init: str = "torch"

    def layout(self) -> list[Leaf]:
        """See `Network`."""
        stream: Axis = ("stream", self.width)
        leaves = [Leaf("stem.weight", (stream, (None, self.in_width))), Leaf("stem.bias", (stream,))]
        for i in range(self.blocks):
            inner: Axis = (f"inner{i}", EXPANSION * self.width)
            leaves += [Leaf(f"{i}.norm.weight", (stream,)), Leaf(f"{i}.norm.bias", (stream,))]
            leaves += [Leaf(f"{i}.first.weight", (inner, stream)), Leaf(f"{i}.first.bias", (inner,))]
            leaves += [Leaf(f"{i}.branch.weight", (stream, inner)), Leaf(f"{i}.branch.bias", (stream,))]
        leaves += [Leaf("norm.weight", (stream,)), Leaf("norm.bias", (stream,))]
        out: Axis = (None, self.out_width)
        return [*leaves, Leaf("out.weight", (out, stream)), Leaf("out.bias", (out,))]

    def inserted(self, leaf: Leaf, fresh: np.ndarray) -> np.ndarray:
        """See `Network`; a block is an identity when what it adds is zero."""
        return np.zeros_like(fresh) if ".branch." in leaf.name else fresh

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Network`."""
        x = _linear(params[0], params[1], x)
        for i in range(2, len(params) - 4, 6):
            scale, shift, *layers = params[i : i + 6]
            inner = torch.relu(_linear(layers[0], layers[1], _norm(scale, shift, x)))
            x = x + _linear(layers[2], layers[3], inner)
        return _linear(params[-2], params[-1], _norm(params[-4], params[-3], x))

    def act(self, params: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
        """See `Network`."""

        def linear(weight: Any, bias: Any, x: np.ndarray) -> np.ndarray:
            return np.matmul(x, weight.swapaxes(1, 2)) + bias[:, None]

        def norm(scale: Any, shift: Any, x: np.ndarray) -> np.ndarray:
            x = x - x.mean(-1, keepdims=True)
            x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(LAYER_NORM_EPS))
            return x * scale[:, None] + shift[:, None]

        x = linear(params[0], params[1], x)
        for i in range(2, len(params) - 4, 6):
            scale, shift, *layers = params[i : i + 6]
            x += linear(
                layers[2], layers[3], np.maximum(linear(layers[0], layers[1], norm(scale, shift, x)), 0)
            )
        return linear(params[-2], params[-1], norm(params[-4], params[-3], x))


def _linear(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def _norm(scale: Tensor, shift: Tensor, x: Tensor) -> Tensor:
    return torch.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS) * scale.unsqueeze(1) + shift.unsqueeze(1)
