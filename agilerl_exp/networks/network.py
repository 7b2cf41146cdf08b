"""What every stacked network offers: the layout of its tensors and one function over P members.

Must not know: what the outputs mean, who minimises them, how many members share a bank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Leaf(NamedTuple):
    """One tensor of one member.

    Attributes:
        name: stable under mutations: what keeps its name keeps its values.
        axes: `(group, size)` of each axis. Axes of one group have one size throughout the network and grow and
            shrink together; None: never changes. A group `kernel...` changes around its centre. The first axis with
            a group stands for the units that the tensor makes, the later ones for those that it reads.
    """

    name: str
    axes: tuple[tuple[str | None, int], ...]

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
    has_manual_backward = False

    @abstractmethod
    def layout(self) -> list[Leaf]:
        """The tensors of one member, in the order of the bank."""

    @abstractmethod
    def init_member(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Initial tensors of one member, float32, in the order of `layout`."""

    @abstractmethod
    def inserted(self, leaf: Leaf) -> np.ndarray:
        """The tensor `leaf` of a layer that is put into a trained network: the layer is an identity."""

    @abstractmethod
    def apply(self, params: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs through autograd."""

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each tensor of one member."""
        return [(leaf.name, leaf.shape) for leaf in self.layout()]

    def act(self, params: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
        """Outputs in numpy, equal to `apply` within 1e-6; `x` is float32 and not changed."""
        with torch.no_grad():
            return self.apply([torch.from_numpy(p) for p in params], torch.from_numpy(x)).numpy()

    def module(self, params: Sequence[Tensor]) -> nn.Module:
        """An ordinary module whose parameters VIEW the tensors `(*shape)` of one member; input `(B, in_width)`."""
        return _Module(self, params)


class _Module(nn.Module):
    def __init__(self, network: Network, params: Sequence[Tensor]):
        super().__init__()
        self._network = network
        self._params = nn.ParameterDict(
            {
                leaf.name.replace(".", "_"): nn.Parameter(p)
                for leaf, p in zip(network.layout(), params, strict=True)
            }
        )

    def forward(self, x: Any) -> Any:
        return self._network.apply([p.unsqueeze(0) for p in self._params.values()], x.unsqueeze(0))[0]
