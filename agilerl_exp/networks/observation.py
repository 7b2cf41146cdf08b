"""Observations of any space as flat float32 vectors, the input of every network.

Must not know: environments, buffers, what the network does with the vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from agilerl_exp.errors import SpaceError


class Part(NamedTuple):
    """Where a leaf of the space stands in an encoded observation.

    Attributes:
        path: keys and numbers that lead to it.
        top: of an image, the value that becomes 1; None for everything else.
    """

    path: tuple[Any, ...]
    space: spaces.Space
    start: int
    width: int
    top: float | None

    def __str__(self) -> str:
        """What it is, in the words of an error message."""
        shape = self.space.shape if isinstance(self.space, spaces.Box) else ""
        return f"observation space{_written(self.path)} {type(self.space).__name__}{shape}"

    @property
    def planar(self) -> bool:
        """Whether a convolution can read it: a Box of three dimensions."""
        return _planar(self.space)


class ObservationCodec:
    """Encodes trees of observations of one space.

    Discrete and each part of a MultiDiscrete become a one-hot (an entry outside the space, such as an unused
    row of zeros, becomes all zeros), MultiBinary and Box their values, Dict (in the order of its keys) and
    Tuple the concatenation of their parts, images after all others. An image is a Box of three dimensions that is
    uint8 or goes from 0 to 255 or to 1; it is divided by its highest value.

    Attributes:
        parts: the leaves of the space, in the order of the encoded observation.
        width: length D of an encoded observation.
        vector_width: length of what comes before the images.

    Raises:
        SpaceError: the space, or a part of it, cannot be encoded.
    """

    def __init__(self, space: spaces.Space) -> None:
        """Work out the layout."""
        found = [(path, leaf, _width(leaf, path), _top(leaf)) for path, leaf in _leaves(space)]
        self.parts: list[Part] = []
        self.width = 0
        for path, leaf, width, top in sorted(found, key=lambda part: (_planar(part[1]), part[3] is not None)):
            self.parts.append(Part(path, leaf, self.width, width, top))
            self.width += width
        self.vector_width = sum(part.width for part in self.parts if part.top is None)
        if self.width == 0:
            raise SpaceError(f"observation space {space} is empty; an observation needs at least one number")
        self._plain = space if isinstance(space, spaces.Box) and self.vector_width else None

    def encode(self, observation: Any, images: bool = True) -> np.ndarray:
        """Observations with any leading axes as float32 (..., D), or (..., vector_width) without images.

        A flat float32 Box comes back as it is, without a copy.
        """
        box = self._plain
        if box is not None:
            values = np.asarray(observation, dtype=np.float32)
            return values if len(box.shape) == 1 else values.reshape(*_leading(values, box), self.width)
        parts = self.parts if images else [part for part in self.parts if part.top is None]
        arrays = [_at(observation, part.path) for part in parts]
        lead = _leading(arrays[0], parts[0].space)
        out = np.empty((*lead, self.width if images else self.vector_width), np.float32)
        for part, values in zip(parts, arrays, strict=True):
            _write(part, values, out[..., part.start : part.start + part.width])
        return out


def _leading(values: np.ndarray, space: spaces.Space) -> tuple[int, ...]:
    shape = space.shape or ()
    return values.shape[: values.ndim - len(shape)]


def _leaves(
    space: spaces.Space, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inside:
            yield from _leaves(part, (*path, key))
    else:
        yield path, space


def _at(observation: Any, path: tuple[Any, ...]) -> np.ndarray:
    for key in path:
        observation = observation[key]
    return np.asarray(observation)


def _planar(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def _top(space: spaces.Space) -> float | None:
    """The highest value of an image; None when it is none."""
    if not isinstance(space, spaces.Box) or not _planar(space) or space.low.min(initial=0) < 0:
        return None
    top = float(space.high.max(initial=0))
    return top if top > 0 and (space.dtype == np.uint8 or top in (1.0, 255.0)) else None


def _written(path: tuple[Any, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _width(space: spaces.Space, path: tuple[Any, ...]) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.MultiBinary | spaces.Box):
        return int(np.prod(space.shape))
    raise SpaceError(
        f"observation space{_written(path)} {type(space).__name__} cannot be encoded; "
        "use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _write(part: Part, values: np.ndarray, out: np.ndarray) -> None:
    """Write the encoded leaf (..., *shape) into the slice (..., width)."""
    space = part.space
    if isinstance(space, spaces.Discrete):
        _one_hot(values, int(space.start), int(space.n), out)
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel(), space.start.ravel()
        flat = values.reshape(*_leading(values, space), sizes.size)
        end = 0
        for k, (size, first) in enumerate(zip(sizes, starts, strict=True)):
            start, end = end, end + int(size)
            _one_hot(flat[..., k], int(first), int(size), out[..., start:end])
    else:
        out[...] = values.reshape(out.shape)
        if part.top is not None:
            out /= np.float32(part.top)


def _one_hot(values: np.ndarray, first: int, size: int, out: np.ndarray) -> None:
    np.equal(values[..., None], np.arange(first, first + size), out=out, casting="unsafe")
