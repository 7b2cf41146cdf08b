"""Observation spaces and network specs that tests of networks share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from agilerl_exp.models.network import (
    CnnSpec,
    CustomSpec,
    MlpSpec,
    MultiInputSpec,
    ResNetSpec,
    SimbaSpec,
)
from agilerl_exp.networks import morph
from agilerl_exp.networks.build import build
from agilerl_exp.networks.network import Network
from agilerl_exp.networks.observation import ObservationCodec

VECTOR = spaces.Box(-1, 1, (5,), np.float32)
IMAGE = spaces.Box(0, 255, (9, 7, 2), np.uint8)
MIXED = spaces.Dict(
    cam=spaces.Box(0, 255, (2, 6, 7), np.uint8),
    mode=spaces.Discrete(3),
    deep=spaces.Tuple((spaces.Box(0, 255, (8, 8, 1), np.uint8), VECTOR)),
)
CASES: dict[str, tuple[spaces.Space, Any]] = {
    "mlp": (VECTOR, MlpSpec(hidden_size=[16, 16])),
    "simba": (VECTOR, SimbaSpec(width=32, blocks=2)),
    "cnn": (
        IMAGE,
        CnnSpec(channels=[8, 12], kernel_size=[5, 4], stride=[2, 1], latent_dim=16, hidden_size=[16]),
    ),
    "resnet": (IMAGE, ResNetSpec(channels=8, blocks=2, stride=2, latent_dim=16, hidden_size=[16])),
    "multi_input": (MIXED, MultiInputSpec(channels=[8, 8], latent_dim=16, hidden_size=[16])),
    "multi_vector": (
        MIXED,
        MultiInputSpec(channels=[8], latent_dim=16, hidden_size=[16], vector_hidden_size=[16, 20]),
    ),
    "custom": (
        IMAGE,
        CustomSpec(entrypoint="nets:Own", config={"units": 6}, latent_dim=16, hidden_size=[16]),
    ),
}


class Own(torch.nn.Module):
    """An encoder of the user's: a convolution over the last axis' channels, a buffer, a scalar parameter."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, units, 3)
        self.register_buffer("offset", torch.full((units,), 0.25))
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        assert x.shape[1:] == (9, 7, 2)
        return self.scale * self.conv(x.permute(0, 3, 1, 2)).amax((2, 3)) + self.offset


def codec_of(name: str) -> ObservationCodec:
    return ObservationCodec(CASES[name][0])


def net_of(name: str, outputs: int = 3) -> Network:
    return build(CASES[name][1], codec_of(name), outputs)


def random_tensors(net: Network, seed: int) -> list[np.ndarray]:
    """Tensors of the size that training gives, biases and norms included."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(value + 0.1 * rng.normal(size=value.shape), np.float32) for value in net.init_member(rng)
    ]


def random_inputs(net: Network, pop: int, batch: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((pop, batch, net.in_width), np.float32)


def stacked(members: list[list[np.ndarray]]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.stack(tensors)) for tensors in zip(*members, strict=True)]


ROLES = ("weights", "target", "moment1", "moment2")


def carried(
    old: Network, new: Network, roles: dict[str, list[np.ndarray]], rng: np.random.Generator
) -> dict[str, list[np.ndarray]]:
    """`morph.carry` with the tensors of each role by its name."""
    stacked = [np.stack(parts) for parts in zip(*(roles[role] for role in ROLES), strict=True)]
    after = morph.carry(old, new, stacked, rng)
    return {role: [np.asarray(tensor[k]) for tensor in after] for k, role in enumerate(ROLES)}
