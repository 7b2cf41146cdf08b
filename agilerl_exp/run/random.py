"""Named random streams: every random number of a run, as a pure function of (seed, name, slot, counter).

Must not know: what the numbers are used for. There is no global generator; the whole state of a stream is one
integer a member, so a checkpoint stores a handful of counters.

Scheme. ``key = sha256("seed/name/slot")``, first 8 bytes, little endian. Draw ``j`` of call ``c`` is
``mix(key + c * CALL_STEP + j * DRAW_STEP)`` modulo 2**64, with ``mix`` the finaliser of SplitMix64 (Steele,
Lea and Flood 2014, "Fast splittable pseudorandom number generators"; constants: Stafford's variant 13). The
two odd steps are the fractions of the two-dimensional R2 sequence, so that no small (call, draw) pair meets
another one. The counter counts calls, not numbers: a call that is padded to a wider shape for the sake of
another member leaves the later draws of this member as they were.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agilerl_exp.errors import CheckpointError

CALL_STEP = np.uint64(0xC13FA9A902A6328F)
DRAW_STEP = np.uint64(0x91E10DA5C79E7B1D)
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_S31, _S11 = np.uint64(31), np.uint64(11)
_UNIT = 2.0**-53

Members = Sequence[int] | NDArray[np.int64] | slice | None


def _digest(*parts: object) -> bytes:
    return hashlib.sha256("/".join(map(str, parts)).encode()).digest()


def stream_key(seed: int, name: str, slot: int) -> int:
    """The 64-bit key of one member's stream."""
    return int.from_bytes(_digest(seed, name, slot)[:8], "little")


class Stream:
    """One named stream for all members: a key and a call counter each."""

    def __init__(self, seed: int, name: str, slots: Sequence[int]) -> None:
        self.name = name
        self._keys = np.array([stream_key(seed, name, slot) for slot in slots], dtype=np.uint64)
        self.counters = np.zeros(len(slots), dtype=np.uint64)
        self._steps = np.zeros(0, dtype=np.uint64)

    def random(self, shape: tuple[int, ...], members: Members = None) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1): row i for ``members[i]`` (None: every member), from the top 53 bits.

        Args:
            shape: (R, ...), R = the number of members asked.
            members: distinct row numbers. Their counters advance by one, whatever the shape.
        """
        rows: Any = slice(None) if members is None else members
        counters = self.counters[rows]
        if shape[0] != len(counters):
            raise ValueError(f"stream '{self.name}': {shape[0]} rows asked of {len(counters)} members")
        starts = self._keys[rows] + counters * CALL_STEP
        self.counters[rows] = counters + np.uint64(1)
        bits = starts[:, None] + self._draw_steps(math.prod(shape[1:]))
        _mix(bits)
        bits >>= _S11
        numbers = bits.astype(np.float64)
        numbers *= _UNIT
        return numbers.reshape(shape)

    def of(self, members: Members) -> _Rows:
        """The same stream, bound to some members, for callers that only know ``.random(shape)``."""
        return _Rows(self, members)

    def _draw_steps(self, n: int) -> NDArray[np.uint64]:
        if len(self._steps) < n:
            self._steps = np.arange(n, dtype=np.uint64) * DRAW_STEP
        return self._steps[:n]


class _Rows:
    """Some members of a stream."""

    def __init__(self, stream: Stream, members: Members) -> None:
        self._stream = stream
        self._members = members

    def random(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """See `Stream.random`."""
        return self._stream.random(shape, self._members)


def _mix(bits: NDArray[np.uint64]) -> None:
    """The SplitMix64 finaliser, in place."""
    for shift, factor in _ROUNDS:
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> _S31


class Streams:
    """Every random stream of a run.

    Args:
        seed: the seed of the run (any integer).
        slots: the slot number of each member; member i draws the same numbers wherever its slot stands.
    """

    def __init__(self, seed: int, slots: Sequence[int]) -> None:
        self.seed = int(seed)
        self.slots = [int(slot) for slot in slots]
        self._streams: dict[str, Stream] = {}

    def stream(self, name: str) -> Stream:
        """The stream of that name, made at the first call and kept."""
        if name not in self._streams:
            self._streams[name] = Stream(self.seed, name, self.slots)
        return self._streams[name]

    def generator(self, name: str, slot: int) -> np.random.Generator:
        """A fresh Philox generator for one-off work (such as an initialisation); its state is never saved.

        The same (seed, name, slot) gives the same numbers again: put what must differ into `name`.
        """
        key = int.from_bytes(_digest(self.seed, "generator", name, slot)[:16], "little")
        return np.random.Generator(np.random.Philox(key=key))

    def env_seeds(self, slot: int, n: int, purpose: str = "train", generation: int = 0) -> list[int]:
        """Distinct 31-bit seeds for the n env copies of a member; seed i does not depend on n."""
        seeds: list[int] = []
        attempt = 0
        while len(seeds) < n:
            digest = _digest(self.seed, "env", purpose, generation, slot, attempt)
            seed = int.from_bytes(digest[:4], "little") >> 1
            if seed not in seeds:
                seeds.append(seed)
            attempt += 1
        return seeds

    def state_dict(self) -> dict[str, Any]:
        """The seed, the slots and the call counters of every stream used so far: plain JSON."""
        counters = {name: s.counters.tolist() for name, s in sorted(self._streams.items())}
        return {"seed": self.seed, "slots": list(self.slots), "counters": counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the counters of a saved state.

        Raises:
            CheckpointError: the state was saved with another seed or other slots.
        """
        for field, own in (("seed", self.seed), ("slots", self.slots)):
            if state[field] != own:
                raise CheckpointError(
                    f"random streams: saved with {field}={state[field]}, the run has {field}={own}"
                )
        for stream in self._streams.values():
            stream.counters[:] = 0
        for name, counters in state["counters"].items():
            self.stream(name).counters[:] = counters
