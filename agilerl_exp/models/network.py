"""Specs of the networks an algorithm may ask for, and marks for what architecture mutations change in them.

Must not know: tensors, initialisers, or how a network is stacked over members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

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
    along: tuple[tuple[str, int], ...] = ()


Hidden: TypeAlias = Annotated[
    list[Size],
    Field(min_length=1),
    Widths("node", (16, 32, 64), "min_nodes", "max_nodes"),
    Depth("layer", "min_layers", "max_layers"),
]
Init: TypeAlias = Literal["orthogonal", "torch", "he"]


class BoundedSpec(Spec):
    """A network spec whose fields `min_...` and `max_...` bound what mutations do."""

    @model_validator(mode="after")
    def _ordered(self) -> BoundedSpec:
        pairs = [(name, f"max_{name[4:]}") for name in type(self).model_fields if name.startswith("min_")]
        rules = [
            (getattr(self, low) > getattr(self, high), low, f"must be <= {high}={getattr(self, high)}")
            for low, high in pairs
        ]
        self.refuse_where(*rules)
        return self


class HeadSpec(BoundedSpec):
    """The layers that end in the outputs: of a plain multilayer perceptron all there are."""

    hidden_size: Hidden = Field(default_factory=lambda: [64, 64])
    """Units of each hidden layer, from the input to the output; after an encoder: of each layer behind it."""
    activation: Activation = "ReLU"
    """Nonlinearity after each hidden layer."""
    layer_norm: bool = False
    """LayerNorm before each activation."""
    init: Init = "torch"
    """How the weights start: orthogonal, torch's default for Linear, or He uniform."""
    min_layers: Size = 1
    """Fewest hidden layers that a mutation leaves."""
    max_layers: Size = 3
    """Most hidden layers that a mutation makes."""
    min_nodes: Size = 16
    """Fewest units of a layer that a mutation leaves."""
    max_nodes: Size = 512
    """Most units of a layer that a mutation makes."""


class AutoSpec(HeadSpec):
    """The network that fits: mlp for vectors, cnn for an image, multi_input for a Dict or Tuple with an image."""

    arch: Literal["auto"] = "auto"
    """Which family of networks."""
    hidden_size: Annotated[list[Size] | None, Field(min_length=1)] = None  # type: ignore[assignment]
    """Units of each hidden layer; null: [64, 64] for vectors, [64] behind an encoder of images."""


class MlpSpec(HeadSpec):
    """A plain multilayer perceptron over the flat observation; images are flattened too."""

    arch: Literal["mlp"] = "mlp"
    """Which family of networks."""


class SimbaSpec(BoundedSpec):
    """SimBa: residual blocks with LayerNorm before them, for vectors."""

    arch: Literal["simba"] = "simba"
    """Which family of networks."""
    width: Annotated[Size, Widths("node", (16, 32, 64), "min_width", "max_width")] = 128
    """Units of the residual stream; inside of a block there are four times as many."""
    blocks: Annotated[Size, Depth("block", "min_blocks", "max_blocks")] = 2
    """Residual blocks."""
    init: Init = "torch"
    """How the weights start: orthogonal, torch's default for Linear, or He uniform."""
    min_width: Size = 32
    """Least width that a mutation leaves."""
    max_width: Size = 512
    """Largest width that a mutation makes."""
    min_blocks: Size = 1
    """Fewest blocks that a mutation leaves."""
    max_blocks: Size = 4
    """Most blocks that a mutation makes."""


class EncoderSpec(HeadSpec):
    """An encoder, a layer of latent_dim units that reads its features, and the layers behind."""

    hidden_size: Hidden = Field(default_factory=lambda: [64])
    """Units of each hidden layer behind the encoder."""
    latent_dim: Annotated[Size, Widths("latent_node", (8, 16, 32), "min_latent", "max_latent")] = 128
    """Units of the layer that reads the encoder's features."""
    min_latent: Size = 16
    """Least latent_dim that a mutation leaves."""
    max_latent: Size = 512
    """Largest latent_dim that a mutation makes."""


class ImageSpec(EncoderSpec):
    """An encoder that reads images."""

    channels_last: bool | None = None
    """Whether images are (height, width, channels); null: the smaller of first and last axis is the channels."""
    min_channels: Size = 8
    """Fewest channels of a layer that a mutation leaves."""
    max_channels: Size = 128
    """Most channels of a layer that a mutation makes."""


class ConvSpec(ImageSpec):
    """Convolutions with ReLU, padded by half a kernel."""

    channels: Annotated[
        list[Size] | None,
        Field(min_length=1),
        Widths("channel", (8, 16, 32), "min_channels", "max_channels"),
        Depth("conv_layer", "min_conv_layers", "max_conv_layers", (("kernel_size", 3), ("stride", 1))),
    ] = None
    """Channels of each convolution; null: by the size of the image."""
    kernel_size: Annotated[
        list[Size] | None, Field(min_length=1), Widths("kernel", (2,), "min_kernel", "max_kernel")
    ] = None
    """Side of each kernel; null: by the size of the image."""
    stride: Annotated[list[Size] | None, Field(min_length=1)] = None
    """Stride of each convolution; null: by the size of the image."""
    min_conv_layers: Size = 1
    """Fewest convolutions that a mutation leaves."""
    max_conv_layers: Size = 5
    """Most convolutions that a mutation makes."""
    min_kernel: Size = 1
    """Smallest kernel that a mutation leaves."""
    max_kernel: Size = 9
    """Largest kernel that a mutation makes; never larger than the image."""

    @model_validator(mode="after")
    def _one_entry_a_layer(self) -> ConvSpec:
        given = [name for name in ("channels", "kernel_size", "stride") if getattr(self, name) is not None]
        first = len(getattr(self, given[0])) if given else 0
        text = f"must have {first} entries as {given[0]} has" if given else ""
        self.refuse_where(*((len(getattr(self, name)) != first, name, text) for name in given[1:]))
        return self


class CnnSpec(ConvSpec):
    """Convolutions over one image."""

    arch: Literal["cnn"] = "cnn"
    """Which family of networks."""


class MultiInputSpec(ConvSpec):
    """For Dict and Tuple: convolutions over each image, joined with everything else."""

    arch: Literal["multi_input"] = "multi_input"
    """Which family of networks."""
    vector_hidden_size: Annotated[
        list[Size], Widths("vector_node", (16, 32, 64), "min_nodes", "max_nodes")
    ] = Field(default_factory=list)
    """Units of hidden layers over all that is no image; []: it is joined as it is."""


class ResNetSpec(ImageSpec):
    """A convolution and residual blocks of convolutions over one image."""

    arch: Literal["resnet"] = "resnet"
    """Which family of networks."""
    channels: Annotated[Size, Widths("channel", (8, 16, 32), "min_channels", "max_channels")] = 32
    """Channels of all convolutions."""
    blocks: Annotated[Size, Depth("block", "min_blocks", "max_blocks")] = 2
    """Residual blocks."""
    stride: Size | None = None
    """Stride of the first convolution, whose kernel has a side of 2 * stride + 1; null: by the size of the image."""
    min_blocks: Size = 1
    """Fewest blocks that a mutation leaves."""
    max_blocks: Size = 4
    """Most blocks that a mutation makes."""


class CustomSpec(EncoderSpec):
    """A module of the user's own as encoder. No mutation changes it; the layers behind it may mutate."""

    arch: Literal["custom"] = "custom"
    """Which family of networks."""
    entrypoint: str | None = None
    """`module:attr` or `file.py:Class`; called with `config` it gives a torch.nn.Module that makes (batch, features) of
    (batch, *observation). Mutations of the architecture change latent_dim and hidden_size, never the module."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the module."""

    @model_validator(mode="after")
    def _named(self) -> CustomSpec:
        path, _, attribute = (self.entrypoint or "").rpartition(":")
        malformed = not (path and attribute)
        self.refuse_where((malformed, "entrypoint", "must read module:attr or file.py:Class"))
        return self


NetworkSpec: TypeAlias = Annotated[
    Annotated[AutoSpec, Tag("arch=auto")]
    | Annotated[MlpSpec, Tag("arch=mlp")]
    | Annotated[SimbaSpec, Tag("arch=simba")]
    | Annotated[CnnSpec, Tag("arch=cnn")]
    | Annotated[ResNetSpec, Tag("arch=resnet")]
    | Annotated[MultiInputSpec, Tag("arch=multi_input")]
    | Annotated[CustomSpec, Tag("arch=custom")],
    Discriminator(tag_of("arch", "auto")),
]
"""Any network spec, told apart by `arch`; without it the observations decide."""
