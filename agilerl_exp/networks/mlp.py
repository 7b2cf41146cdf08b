"""A stacked multi-layer perceptron: P members of one architecture, weights as `[P, ...]` views of a bank.

Must not know: what the outputs mean, who minimises them, how many members share a bank.

Parameters are `(P, out, in)` and `(P, out)` as in `torch.nn.Linear`.
Three writings of the same function: `apply` (autograd), `forward`/`backward` (by hand, no graph) and
`act` (numpy, for acting). Tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agilerl_exp.models.network import HeadSpec
from agilerl_exp.networks.network import Leaf, Network

LAYER_NORM_EPS = 1e-5
# Derivatives as functions of the output (which `forward` keeps), as the kernels behind autograd compute them.
_BY_OUTPUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ReLU": lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0),
    "Tanh": torch.ops.aten.tanh_backward,
    "Sigmoid": torch.ops.aten.sigmoid_backward,
    "Identity": lambda grad, out: grad,
}
_IN_PLACE = {"ReLU": torch.relu_, "Tanh": torch.tanh_, "Sigmoid": torch.sigmoid_, "Identity": lambda x: x}
_NUMPY = {
    "ReLU": lambda x: np.maximum(x, 0, out=x),
    "Tanh": lambda x: np.tanh(x, out=x),
    "Identity": lambda x: x,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@dataclass(frozen=True)
class Mlp(Network):
    """The architecture of one member; equal architectures may share a cohort.

    Attributes:
        in_width: width of the encoded observation.
        out_width: number of outputs.
        hidden_size: units of each hidden layer.
        activation: name of a class of `torch.nn`.
        layer_norm: normalise each hidden layer before its activation.
        init: `orthogonal`, `torch` (the default of `torch.nn.Linear`) or `he`.
    """

    in_width: int
    out_width: int
    hidden_size: tuple[int, ...]
    activation: str = "ReLU"
    layer_norm: bool = False
    init: str = "orthogonal"

    @classmethod
    def from_spec(cls, spec: HeadSpec, in_width: int, out_width: int) -> Mlp:
        """The architecture that `spec` asks for between the two widths."""
        hidden = tuple(spec.hidden_size)
        return cls(in_width, out_width, hidden, spec.activation, spec.layer_norm, spec.init)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of all layers, input and output included."""
        return (self.in_width, *self.hidden_size, self.out_width)

    @property
    def has_manual_backward(self) -> bool:  # type: ignore[override]
        """Whether `forward` and `backward` cover this architecture."""
        return not self.layer_norm and self.activation in _BY_OUTPUT

    def layout(self, source: str | None = None) -> list[Leaf]:
        """See `Network`; hidden layers go by their number, the last layer is `out`; `source`: group of the input."""
        leaves: list[Leaf] = []
        before: tuple[str | None, int] = (source, self.in_width)
        for i, size in enumerate(self.hidden_size):
            units = (f"hidden{i}", size)
            leaves += [Leaf(f"{i}.weight", (units, before)), Leaf(f"{i}.bias", (units,))]
            if self.layer_norm:
                leaves += [Leaf(f"{i}.norm.weight", (units,)), Leaf(f"{i}.norm.bias", (units,))]
            before = units
        last = (None, self.out_width)
        return [*leaves, Leaf("out.weight", (last, before)), Leaf("out.bias", (last,))]

    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """See `Network`."""
        activation = getattr(nn, self.activation)()
        for weight, bias, *norm in self._layers(params):
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            if norm:
                x = torch.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS)
                x = x * norm[0].unsqueeze(1) + norm[1].unsqueeze(1)
            if weight is not params[-2]:
                x = activation(x)
        return x

    def forward(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs `(P, B, out)` and the inputs of each layer, which `backward` needs; builds no graph."""
        activate = _IN_PLACE[self.activation]
        cache = []
        for i in range(0, len(params), 2):
            cache.append(x)
            x = torch.bmm(x, params[i].transpose(1, 2)).add_(params[i + 1].unsqueeze(1))
            if i < len(params) - 2:
                x = activate(x)
        return x, cache

    def backward(
        self, params: Sequence[Tensor], cache: list[Tensor], grad: Tensor, out: Sequence[Tensor]
    ) -> None:
        """Write the gradient of every tensor into `out`, given `grad` = d(sum of losses)/d(output)."""
        chain = _BY_OUTPUT[self.activation]
        for i in range(len(params) - 2, -1, -2):
            x = cache[i // 2]
            torch.bmm(grad.transpose(1, 2), x, out=out[i])
            torch.sum(grad, 1, out=out[i + 1])
            if i:
                grad = chain(torch.bmm(grad, params[i]), x)

    def act(self, params: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
        """See `Network`."""
        for weight, bias, *norm in self._layers(params):
            x = np.matmul(x, weight.swapaxes(1, 2))
            x += bias[:, None]
            if norm:
                x -= x.mean(-1, keepdims=True)
                x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(LAYER_NORM_EPS))
                x *= norm[0][:, None]
                x += norm[1][:, None]
            if weight is not params[-2]:
                x = self._activate_numpy(x)
        return x

    def module(self, params: Sequence[Tensor]) -> nn.Sequential:
        """See `Network`; an `nn.Sequential` of ordinary layers."""
        layers: list[nn.Module] = []
        for weight, bias, *norm in self._layers(params):
            linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
            linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
            layers.append(linear)
            if norm:
                layer_norm = nn.LayerNorm(weight.shape[0], eps=LAYER_NORM_EPS, device="meta")
                layer_norm.weight, layer_norm.bias = nn.Parameter(norm[0]), nn.Parameter(norm[1])
                layers.append(layer_norm)
            if weight is not params[-2]:
                layers.append(getattr(nn, self.activation)())
        return nn.Sequential(*layers)

    def _layers(self, params: Sequence[Any]) -> list[Sequence[Any]]:
        step = 4 if self.layer_norm else 2
        return [params[i : i + step] for i in range(0, len(params) - 2, step)] + [params[-2:]]

    def _activate_numpy(self, x: np.ndarray) -> np.ndarray:
        if self.activation in _NUMPY:
            return _NUMPY[self.activation](x)
        return getattr(nn, self.activation)()(torch.from_numpy(x)).numpy()
