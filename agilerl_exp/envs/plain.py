"""Plain values as text and back, and what an environment remembers in them: attributes and random generators.

A plain value is a number, bool, string, None, array of numbers, or a list, tuple or str-keyed dict of those.
Must not know: episodes, vector environments.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

_MAX_ITEMS = 256
_MAX_BYTES = 65_536
_SCALARS = frozenset((type(None), bool, int, float, str))
_NUMPY = (np.ndarray, np.generic)
_RANDOM = (spaces.Space, np.random.Generator)
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


def memory(env: Any, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """Copies of the plain attributes of all layers, as `layer.attribute`; arrays above `max_bytes` are left out.

    A frame buffer or a log is large; a counter, a level or a physical state is not.
    """
    found = {}
    for depth, layer in enumerate(layers(env)):
        for name, value in vars(layer).items():
            if type(value) in _SCALARS or (value := _copy(value, max_bytes)) is not _SKIP:
                found[f"{depth}.{name}"] = value
    return found


def recall(env: Any, remembered: dict[str, Any]) -> None:
    """Set attributes as `memory` found them; one that holds an object by now is left to its owner."""
    chain = list(layers(env))
    for path, value in remembered.items():
        depth, _, name = path.partition(".")
        attributes = vars(chain[int(depth)])
        if _copy(attributes.get(name), 2**40) is not _SKIP:
            attributes[name] = value


def _copy(value: Any, max_bytes: int) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, str):  # numpy's, e.g. the result of a choice
        return str(value)
    if isinstance(value, _NUMPY):
        return value.copy() if value.dtype.kind in "biufc" and value.nbytes <= max_bytes else _SKIP
    if kind is dict and all(type(key) is str for key in value):
        items = _copy(list(value.values()), max_bytes)
        return _SKIP if items is _SKIP else dict(zip(value, items, strict=True))
    if kind not in (list, tuple) or len(value) > _MAX_ITEMS:
        return _SKIP
    items = [_copy(item, max_bytes) for item in value]
    return _SKIP if any(item is _SKIP for item in items) else kind(items)


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


def _generators(env: Any, wanted: Iterable[str] = ()) -> Iterator[tuple[str, np.random.Generator]]:
    seen: set[int] = set()
    places = [
        (f"{depth}.{name}", value)
        for depth, layer in enumerate(layers(env))
        for name, value in vars(layer).items()
        if type(value) not in _SCALARS and isinstance(value, _RANDOM)
    ]
    for place, value in places:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, np.random.Generator):
            yield place, value
            continue
        if value._np_random is not None or place in wanted:  # made by the space at its first draw
            yield place, value.np_random
        if isinstance(value, spaces.Dict | spaces.Tuple):
            named = value.items() if isinstance(value, spaces.Dict) else enumerate(value)
            places.extend((f"{place}[{key}]", part) for key, part in named)
