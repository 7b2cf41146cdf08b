"""Specs of the networks an algorithm may ask for, and marks for what architecture mutations change in them.

Must not know: tensors, initialisers, or how a network is stacked over members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from agilerl_exp.models.base import Spec, tag_of

Activation: TypeAlias = Literal["ReLU", "Tanh", "ELU", "GELU", "LeakyReLU", "Sigmoid", "Softplus", "Identity"]
Size: TypeAlias = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Widths:
    """Mark of a width, or of a list of widths, that `add_<noun>` and `remove_<noun>` change.

    Attributes:
        noun: what the mutations are called after.
        steps: by how much, drawn among those that keep the width in bounds.
        low, high: fields of the spec that hold the bounds.
    """

    noun: str
    steps: tuple[int, ...]
    low: str
    high: str


@dataclass(frozen=True)
class Depth:
    """Mark of a number of layers, or of a list with an entry a layer, that `add_<noun>` and `remove_<noun>` change.

    Attributes:
        noun: what the mutations are called after.
        low, high: fields of the spec that hold the bounds.
        along: other lists with an entry a layer, each with what a new layer has there. The new entry of the marked
            list itself repeats the last one.
    """

    noun: str
    low: str
    high: str
    along: dict[str, int] = field(default_factory=dict)


class HeadSpec(Spec):
    """The layers that end in the outputs: of a plain multilayer perceptron all there are."""

    hidden_size: Annotated[
        list[Size],
        Field(min_length=1),
        Widths("node", (16, 32, 64), "min_nodes", "max_nodes"),
        Depth("layer", "min_layers", "max_layers"),
    ] = Field(default_factory=lambda: [64, 64])
    """Units of each hidden layer, from the input to the output; after an encoder: of each layer behind it."""
    activation: Activation = "ReLU"
    """Nonlinearity after each hidden layer."""
    layer_norm: bool = False
    """LayerNorm before each activation."""
    init: Literal["orthogonal", "torch", "he"] = "torch"
    """How the weights start: orthogonal, torch's default for Linear, or He uniform."""
    min_layers: Size = 1
    """Fewest hidden layers that a mutation leaves."""
    max_layers: Size = 3
    """Most hidden layers that a mutation makes."""
    min_nodes: Size = 16
    """Fewest units of a layer that a mutation leaves."""
    max_nodes: Size = 512
    """Most units of a layer that a mutation makes."""

    @model_validator(mode="after")
    def _ordered(self) -> HeadSpec:
        pairs = [(name, f"max_{name[4:]}") for name in type(self).model_fields if name.startswith("min_")]
        rules = [
            (getattr(self, low) > getattr(self, high), low, f"must be <= {high}={getattr(self, high)}")
            for low, high in pairs
        ]
        self.refuse_where(*rules)
        return self


class AutoSpec(HeadSpec):
    """The network that fits the observations: an MLP for vectors, an encoder before it for images."""

    arch: Literal["auto"] = "auto"
    """Which family of networks."""


class MlpSpec(HeadSpec):
    """A plain multilayer perceptron over the flat observation."""

    arch: Literal["mlp"] = "mlp"
    """Which family of networks."""


NetworkSpec: TypeAlias = Annotated[
    Annotated[AutoSpec, Tag("arch=auto")] | Annotated[MlpSpec, Tag("arch=mlp")],
    Discriminator(tag_of("arch", "auto")),
]
"""Any network spec, told apart by `arch`; without it the observations decide."""
