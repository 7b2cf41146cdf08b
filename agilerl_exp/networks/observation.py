"""Observations of any space as flat float32 vectors, the input of every network.

Must not know: environments, buffers, what the network does with the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from agilerl_exp.errors import SpaceError


SMALLEST_IMAGE = 5
"""Pixels in each direction of what counts as an image; a smaller Box is a vector."""


class Part(NamedTuple):
    """Where a leaf of the space stands in an encoded observation."""

    path: tuple[Any, ...]
    space: spaces.Space
    start: int
    width: int
    image: bool

    @property
    def name(self) -> str:
        """As written after `observation space`."""
        return "".join(f"[{key!r}]" for key in self.path)


class ObservationCodec:
    """Encodes trees of observations of one space.

    Discrete and each part of a MultiDiscrete become a one-hot (an entry outside the space, such as an unused
    row of zeros, becomes all zeros), MultiBinary and Box their values, Dict (in the order of its keys) and
    Tuple the concatenation of their parts, images after all others. An image is a Box of three dimensions;
    one from 0 to 255 is divided by 255.

    Attributes:
        parts: the leaves of the space.
        width: length D of an encoded observation.
        vector_width: length of what comes before the images.

    Raises:
        SpaceError: the space, or a part of it, cannot be encoded.
    """

    def __init__(self, space: spaces.Space) -> None:
        """Work out the layout."""
        found = [(path, leaf, _width(leaf, path), _is_image(leaf)) for path, leaf in _leaves(space)]
        self.parts: list[Part] = []
        self.width = 0
        for path, leaf, width, image in sorted(found, key=lambda part: part[3]):
            self.parts.append(Part(path, leaf, self.width, width, image))
            self.width += width
        self.vector_width = sum(part.width for part in self.parts if not part.image)
        if self.width == 0:
            raise SpaceError(f"observation space {space} is empty; an observation needs at least one number")

    def encode(self, observation: Any, images: bool = True) -> np.ndarray:
        """Observations with any leading axes as float32 (..., D), or (..., vector_width) without images.

        A flat float32 Box comes back as it is, without a copy.
        """
        first = self.parts[0]
        if not first.path and isinstance(first.space, spaces.Box) and not first.image:
            values = np.asarray(observation, dtype=np.float32)
            return values if len(first.space.shape) == 1 else values.reshape(*_leading(values, first.space), self.width)
        out = None
        for part in self.parts:
            if part.image and not images:
                break
            values = observation
            for key in part.path:
                values = values[key]
            values = np.asarray(values)
            if out is None:
                width = self.width if images else self.vector_width
                out = np.empty((*_leading(values, part.space), width), np.float32)
            _write(part.space, values, out[..., part.start : part.start + part.width])
        assert out is not None
        return out


def _leading(values: np.ndarray, space: spaces.Space) -> tuple[int, ...]:
    shape = space.shape or ()
    return values.shape[: values.ndim - len(shape)]


def _leaves(space: spaces.Space, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], spaces.Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inside:
            yield from _leaves(part, (*path, key))
    else:
        yield path, space


def _is_image(space: spaces.Space) -> bool:
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    return sorted(space.shape)[1] >= SMALLEST_IMAGE


def _width(space: spaces.Space, path: tuple[Any, ...]) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary | spaces.Box):
        return int(np.prod(space.shape))
    where = "".join(f"[{key!r}]" for key in path)
    raise SpaceError(
        f"observation space{where} {type(space).__name__} cannot be encoded; "
        "use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


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
        if isinstance(space, spaces.Box) and _is_image(space) and space.low.min() == 0 and space.high.max() == 255:
            out /= 255


def _one_hot(values: np.ndarray, first: int, size: int, out: np.ndarray) -> None:
    np.equal(values[..., None], np.arange(first, first + size), out=out, casting="unsafe")
