"""What every stacked network offers: the layout of its tensors and one function over P members.

Must not know: what the outputs mean, who minimises them, how many members share a bank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

Axis: TypeAlias = tuple[str | None, int]
"""Group and size of an axis of a tensor, see `Leaf`."""


class Leaf(NamedTuple):
    """One tensor of one member.

    Attributes:
        name: stable under mutations: what keeps its name keeps its values.
        axes: `(group, size)` of each axis. Axes of one group have one size throughout the network and grow and
            shrink together; None: never changes. A group `kernel...` changes around its centre. The first axis with
            a group stands for the units that the tensor makes, the later ones for those that it reads.
    """

    name: str
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes."""
        return tuple(size for _, size in self.axes)

    @property
    def inputs(self) -> list[int]:
        """Axes of units that the tensor reads."""
        return list(range(1, len(self.axes)))


class Network(ABC):
    """An architecture; equal ones may share a cohort. Frozen, hashable, with a `repr` that tells it apart.

    Shapes: x `(P, B, in_width)`, the flat encoded observation; parameters `(P, *shape)` in the order of `layout`;
    output `(P, B, out_width)`.
    """

    in_width: int
    out_width: int
    init: str
    has_manual_backward = False

    @abstractmethod
    def layout(self) -> list[Leaf]:
        """The tensors of one member, in the order of the bank."""

    @abstractmethod
    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs through autograd."""

    def init_member(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Initial tensors of one member, float32, in the order of `layout`."""
        return initial(self.layout(), self.init, rng)

    def inserted(self, leaf: Leaf, fresh: np.ndarray) -> np.ndarray:
        """The tensor `leaf` of a layer that is put into a trained network, initially `fresh`: the layer is an identity.

        ReLU leaves what a ReLU layer makes as it is; a convolution has its ones in the centre of the kernel.
        """
        if leaf.name.endswith("norm.weight"):
            return fresh
        out = np.zeros(leaf.shape, np.float32)
        if out.ndim > 1:
            units = np.arange(min(leaf.shape[:2]))
            centre: tuple[Any, ...] = tuple(size // 2 for size in leaf.shape[2:])
            out[(units, units, *centre)] = 1.0
        return out

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each tensor of one member."""
        return [(leaf.name, leaf.shape) for leaf in self.layout()]

    def act(self, params: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
        """Outputs in numpy, equal to `apply` within 1e-6; `x` is float32 and not changed."""
        with torch.no_grad():
            inputs = torch.from_numpy(np.require(x, requirements="W"))
            return self.apply([torch.from_numpy(p) for p in params], inputs).numpy()

    def module(self, params: Sequence[Tensor]) -> nn.Module:
        """An ordinary module whose parameters VIEW the tensors `(*shape)` of one member; input `(B, in_width)`."""
        return _Module(self, params)


class _Module(nn.Module):
    def __init__(self, network: Network, params: Sequence[Tensor]):
        super().__init__()
        self._network = network
        names = [leaf.name.replace(".", "_") for leaf in network.layout()]
        # As pairs: the keys of a dict would be sorted.
        self._params = nn.ParameterDict(zip(names, map(nn.Parameter, params), strict=True))

    def forward(self, x: Any) -> Any:
        return self._network.apply([p.unsqueeze(0) for p in self._params.values()], x.unsqueeze(0))[0]


def initial(layout: Sequence[Leaf], init: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Initial tensors, by name: ones for `norm.weight`, by `init` for other weights, small for the last layer `out`.

    Biases are zero or, with torch's init, of the size of the weights before them.
    """
    out, fan_in = [], 1
    for name, shape in ((leaf.name, leaf.shape) for leaf in layout):
        if name.endswith("norm.weight"):
            out.append(np.ones(shape, np.float32))
        elif name.endswith("weight"):
            fan_in = prod(shape[1:])
            out.append(_init_weight(init, shape, name.endswith("out.weight"), rng))
        elif init == "torch" and not name.endswith("norm.bias"):
            bound = 1 / sqrt(fan_in)
            out.append(rng.uniform(-bound, bound, shape).astype(np.float32))
        else:
            out.append(np.zeros(shape, np.float32))
    return out


def _init_weight(init: str, shape: tuple[int, ...], last: bool, rng: np.random.Generator) -> np.ndarray:
    """One weight `(out, in, ...)`. The last layer starts small, so that first values are near zero."""
    fan_out, fan_in = shape[0], prod(shape[1:])
    if init == "torch":
        bound = 1 / sqrt(fan_in)
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    if init == "he":
        bound = sqrt(3 / fan_in) if last else sqrt(6 / fan_in)
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    gauss = rng.standard_normal((max(fan_out, fan_in), min(fan_out, fan_in)))
    q, r = np.linalg.qr(gauss)
    q *= np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices (Mezzadri 2007)
    q = q if fan_out >= fan_in else q.T
    return (q * (0.1 if last else sqrt(2))).astype(np.float32).reshape(shape)
