"""The bytes of a state: a tree of arrays and JSON values, as one JSON and one safetensors file.

Must not know: files, folders, what a state means. Nothing here can run code: JSON and raw arrays only.

In the JSON an array is ``{"$array": name}``, a number that JSON lacks ``{"$float": "nan" | "inf" | "-inf"}``,
a tuple ``{"$tuple": [...]}``; integers are exact whatever their size and floats round-trip. The same state
gives the same bytes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

Array = NDArray[Any]
# safetensors' names of the types a run may hold; anything else (objects, records, text) is refused.
_DTYPES = {"bool": "BOOL"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}
# A JSON document grows up to some thirty times in memory; arrays belong in the other file.
MAX_JSON_BYTES = 64 << 20


def encode(tree: Any) -> tuple[bytes, dict[str, Array]]:
    """Split a tree into JSON bytes and named arrays.

    Args:
        tree: nested dicts (str keys), lists and tuples; leaves: numpy arrays, torch tensors, JSON scalars.

    Raises:
        TypeError: a leaf or key of another kind, named by its place.
    """
    arrays: dict[str, Array] = {}
    return dump(_encode(tree, "", arrays)), arrays


def plain(tree: Any) -> Any:
    """The tree as strict JSON values. Raises TypeError where it holds an array."""
    arrays: dict[str, Array] = {}
    document = _encode(tree, "", arrays)
    if arrays:
        raise TypeError(f"no array may stand here: {sorted(arrays)}")
    return document


def dump(document: Any) -> bytes:
    """Strict JSON with sorted keys, one line."""
    text = json.dumps(document, allow_nan=False, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return text.encode() + b"\n"


def _encode(node: Any, place: str, arrays: dict[str, Array]) -> Any:
    inside = f"{place}/" if place else ""
    if isinstance(node, np.generic):
        node = node.item()
    if node is None or isinstance(node, bool | str | int):
        return node
    if isinstance(node, float):
        return float(node) if math.isfinite(node) else {"$float": str(float(node))}
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str) or key.startswith("$"):
                raise TypeError(f"state '{place}': key {key!r} must be a text that does not start with '$'")
        return {key: _encode(value, inside + key, arrays) for key, value in node.items()}
    if isinstance(node, list | tuple):
        items = [_encode(value, f"{inside}{i}", arrays) for i, value in enumerate(node)]
        return items if isinstance(node, list) else {"$tuple": items}
    if place in arrays:
        raise TypeError(f"state '{place}': two arrays have this place; leave '/' out of the keys")
    arrays[place] = _array(node, place)
    return {"$array": place}


def _array(node: Any, place: str) -> Array:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(node, torch.Tensor):
        node = node.detach().cpu().numpy()
    if not isinstance(node, np.ndarray) or node.dtype.name not in _DTYPES:
        kind = getattr(node, "dtype", type(node).__name__)
        raise TypeError(
            f"state '{place}': {kind} cannot be saved (arrays of numbers, dicts, lists, JSON values)"
        )
    return np.asarray(node, dtype=node.dtype.newbyteorder("<"), order="C")


def safetensors_chunks(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The file's bytes, without a copy of any array: `safetensors.numpy.save` would hold every ring twice."""
    header, offset = {}, 0
    for name, array in sorted(arrays.items()):
        end = offset + array.nbytes
        dtype = _DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in sorted(arrays.items()):
        if array.nbytes:
            yield array.reshape(-1).view(np.uint8).data


def parse(data: bytes) -> Any:
    """Strict JSON. Raises ValueError for anything that is not."""
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"{len(data)} bytes of JSON, at most {MAX_JSON_BYTES} are read")
    try:
        return json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of a safetensors file, writable, each with its dtype and shape. Raises ValueError."""
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(str(error)) from None


def decode(document: Any, arrays: Mapping[str, Array]) -> Any:
    """The tree that `encode` split. Raises ValueError when the two do not belong together."""
    try:
        return _decode(document, arrays)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a state: {error}") from None


def _decode(node: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(node, list):
        return [_decode(value, arrays) for value in node]
    if not isinstance(node, dict):
        return node
    if "$array" in node:
        return arrays[node["$array"]]
    if "$float" in node:
        return float(node["$float"])
    if "$tuple" in node:
        return tuple(_decode(value, arrays) for value in node["$tuple"])
    return {key: _decode(value, arrays) for key, value in node.items()}
