"""Specs of the networks an algorithm may ask for.

Must not know: tensors, initialisers, or how a network is stacked over members.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from agilerl_exp.models.base import Spec

Activation: TypeAlias = Literal["ReLU", "Tanh", "ELU", "GELU", "LeakyReLU", "Sigmoid", "Softplus", "Identity"]


class MlpSpec(Spec):
    """A plain multilayer perceptron over the flat observation."""

    arch: Literal["mlp"] = "mlp"
    """Which family of networks."""
    hidden_size: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = Field(
        default_factory=lambda: [64, 64]
    )
    """Units of each hidden layer, from the input to the output."""
    activation: Activation = "ReLU"
    """Nonlinearity after each hidden layer."""
    layer_norm: bool = False
    """LayerNorm before each activation."""
    init: Literal["orthogonal", "torch", "he"] = "orthogonal"
    """How the weights start: orthogonal, torch's default for Linear, or He uniform."""


NetworkSpec: TypeAlias = MlpSpec
"""Any network spec. One kind so far; further kinds join as a union tagged by `arch`."""
