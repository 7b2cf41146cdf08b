"""Observations of any space as flat float32 vectors, the input of an MLP.

Must not know: environments, buffers, what the network does with the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from agilerl_exp.errors import SpaceError


class ObservationCodec:
    """Encodes trees of observations of one space.

    Discrete and each part of a MultiDiscrete become a one-hot (an entry outside the space, such as an unused
    row of zeros, becomes all zeros), MultiBinary and Box their values, Dict (in the order of its keys) and
    Tuple the concatenation of their parts.

    Attributes:
        width: length D of an encoded observation.

    Raises:
        SpaceError: the space, or a part of it, cannot be encoded.
    """

    def __init__(self, space: spaces.Space) -> None:
        """Work out the layout."""
        self._space = space
        self.width = _width(space, "")
        if self.width == 0:
            raise SpaceError(f"observation space {space} is empty; an observation needs at least one number")

    def encode(self, observation: Any) -> np.ndarray:
        """Observations with any leading axes as float32 (..., D).

        A flat float32 Box comes back as it is, without a copy.
        """
        space = self._space
        if isinstance(space, spaces.Box):
            values = np.asarray(observation, dtype=np.float32)
            return values if len(space.shape) == 1 else values.reshape(*_leading(values, space), self.width)
        leaves = list(_leaves(space, observation))
        first, values = leaves[0]
        out = np.empty((*_leading(values, first), self.width), np.float32)
        end = 0
        for leaf, values in leaves:
            start, end = end, end + _width(leaf, "")
            _write(leaf, values, out[..., start:end])
        return out


def _leading(values: np.ndarray, space: spaces.Space) -> tuple[int, ...]:
    shape = space.shape or ()
    return values.shape[: values.ndim - len(shape)]


def _leaves(space: spaces.Space, observation: Any) -> Iterator[tuple[spaces.Space, np.ndarray]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, observation[key])
    elif isinstance(space, spaces.Tuple):
        for part, item in zip(space.spaces, observation, strict=True):
            yield from _leaves(part, item)
    else:
        yield space, np.asarray(observation)


def _width(space: spaces.Space, where: str) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_width(part, f"{where}[{key!r}]") for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return sum(_width(part, f"{where}[{index}]") for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary):
        return int(np.prod(space.shape))
    name = f"observation space{where} {type(space).__name__}"
    if not isinstance(space, spaces.Box):
        raise SpaceError(
            f"{name} cannot be encoded; use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
        )
    if len(space.shape) == 3 and space.dtype == np.uint8:
        raise SpaceError(
            f"{name}{space.shape} uint8 is an image, and there is no image network yet; flatten it with "
            "env.wrappers=[gymnasium.wrappers.FlattenObservation] or choose an env with vector observations"
        )
    return int(np.prod(space.shape))


def _write(space: spaces.Space, values: np.ndarray, out: np.ndarray) -> None:
    """Write the encoded leaf (..., *shape) into the slice (..., width)."""
    if isinstance(space, spaces.Discrete):
        _one_hot(values, int(space.start), int(space.n), out)
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel(), space.start.ravel()
        flat = values.reshape(*_leading(values, space), sizes.size)
        end = 0
        for part, (size, first) in enumerate(zip(sizes, starts, strict=True)):
            start, end = end, end + int(size)
            _one_hot(flat[..., part], int(first), int(size), out[..., start:end])
    else:
        out[...] = values.reshape(out.shape)


def _one_hot(values: np.ndarray, first: int, size: int, out: np.ndarray) -> None:
    np.equal(values[..., None], np.arange(first, first + size), out=out, casting="unsafe")
