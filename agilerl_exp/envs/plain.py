"""Plain values as text and back, and what an environment remembers in them: attributes and random generators.

A plain value is a number, bool, string, None, array of numbers, or a list, tuple or str-keyed dict of those.
Must not know: episodes, vector environments.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

_MAX_ITEMS = 256
_MAX_BYTES = 65_536
_SCALARS = frozenset((type(None), bool, int, float, str))
_NUMPY = (np.ndarray, np.generic)
_NESTED = (spaces.Dict, spaces.Tuple)
_SKIP = object()


def pack(value: Any) -> str:
    """A plain value as JSON text; `unpack` gives back the same types and bits.

    Raises:
        TypeError: the value is not plain.
    """
    return json.dumps(_encode(value), separators=(",", ":"))


def unpack(text: str) -> Any:
    """The inverse of `pack`. Builds only plain values, whatever the text holds."""
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return {"int": str(value)}  # the state of a generator has 128 bits, more than a JSON reader must keep
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, _NUMPY) and value.dtype.kind in "biufc":
        raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: [value.dtype.str, list(value.shape), raw]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode(item) for item in value]}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: _encode(item) for key, item in value.items()}}
    raise TypeError(f"{type(value).__name__} is not a plain value")


def _array(parts: list[Any]) -> np.ndarray:
    dtype, shape, raw = parts
    return np.frombuffer(base64.b64decode(raw), np.dtype(dtype)).reshape(shape).copy()


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float.fromhex,
    "array": _array,
    "scalar": lambda parts: _array(parts)[()],
    "list": lambda items: [_decode(item) for item in items],
    "tuple": lambda items: tuple(_decode(item) for item in items),
    "dict": lambda items: {key: _decode(item) for key, item in items.items()},
}


def _decode(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, body),) = node.items()
    return _DECODERS[kind](body)


def layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps, outermost first (also for vector environments)."""
    while env is not None:
        yield env
        env = vars(env).get("env")


def memory(
    env: Any, max_bytes: int = _MAX_BYTES, known: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Copies of the plain attributes of all layers, as `layer.attribute`; large ones are left out.

    A frame buffer or a log is large; a counter, a level or a physical state is not.

    Args:
        env: the outermost layer.
        max_bytes: the largest array that is copied.
        known: from `constants`; what is still the same is left out.
    """
    found = {}
    for depth, layer in enumerate(layers(env)):
        same = known[depth] if known else {}
        for name, value in vars(layer).items():
            if type(value) in _SCALARS:
                if same.get(name, _SKIP) is value:
                    continue
                found[f"{depth}.{name}"] = value
            elif (copied := _copy(value, max_bytes)) is not _SKIP:
                found[f"{depth}.{name}"] = copied
    return found


def constants(env: Any) -> list[dict[str, Any]]:
    """The scalar attributes of each layer, to tell later which of them have changed."""
    return [{k: v for k, v in vars(layer).items() if type(v) in _SCALARS} for layer in layers(env)]


def recall(env: Any, remembered: dict[str, Any]) -> None:
    """Set attributes as `memory` found them; one that holds an object by now is left to its owner."""
    chain = list(layers(env))
    for path, value in remembered.items():
        depth, _, name = path.partition(".")
        attributes = vars(chain[int(depth)])
        if _copy(attributes.get(name), 2**40) is not _SKIP:
            attributes[name] = value


def _copy(value: Any, max_bytes: int) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, str):  # numpy's, e.g. the result of a choice
        return str(value)
    if isinstance(value, _NUMPY):
        return value.copy() if value.dtype.kind in "biufc" and value.nbytes <= max_bytes else _SKIP
    if type(value) not in (list, tuple, dict) or len(value) > _MAX_ITEMS:
        return _SKIP
    if type(value) is dict and not all(type(key) is str for key in value):
        return _SKIP
    items: list[Any] = [_copy(item, max_bytes) for item in (value.values() if type(value) is dict else value)]
    if any(item is _SKIP for item in items):
        return _SKIP
    return dict(zip(value, items, strict=True)) if type(value) is dict else type(value)(items)


def generators(env: Any) -> dict[str, dict[str, Any]]:
    """The state of every numpy generator of all layers and of their spaces, by place."""
    return {place: {**generator.bit_generator.state} for place, generator in _generators(env)}


def seed_spaces(env: Any, seed: int) -> None:
    """Seed all spaces of all layers: an environment may sample from its own without ever seeding it."""
    for layer in layers(env):
        for value in vars(layer).values():
            if isinstance(value, spaces.Space):
                value.seed(seed)


def wind(env: Any, states: dict[str, dict[str, Any]]) -> None:
    """Set generators to saved states; places that the environment does not have are left out."""
    for place, generator in _generators(env, states):
        if place in states:
            generator.bit_generator.state = states[place]


def _generators(env: Any, wanted: dict[str, Any] | None = None) -> Iterator[tuple[str, np.random.Generator]]:
    seen: set[int] = set()
    for depth, layer in enumerate(layers(env)):
        for name, value in list(vars(layer).items()):
            if type(value) in _SCALARS:
                continue
            place = f"{depth}.{name}"
            if isinstance(value, spaces.Space):
                yield from _of_space(place, value, seen, wanted or {})
            elif isinstance(value, np.random.Generator) and id(value) not in seen:
                seen.add(id(value))
                yield place, value


def _of_space(
    place: str, space: spaces.Space, seen: set[int], wanted: dict[str, Any]
) -> Iterator[tuple[str, np.random.Generator]]:
    if id(space) in seen:
        return
    seen.add(id(space))
    if space._np_random is not None or place in wanted:  # made by the space at its first draw
        yield place, space.np_random
    if isinstance(space, _NESTED):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in named:
            yield from _of_space(f"{place}[{key}]", part, seen, wanted)
