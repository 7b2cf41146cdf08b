"""How a hyperparameter moves: in the coordinate of its range, so that a step means the same everywhere in it.

`log` moves ln(x), `log1m` ln(1 - x), so that a horizon 1 / (1 - x) moves, `linear` x as a part of the range.
Must not know: where values are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Any

import numpy as np

from agilerl_exp.models.evolution import PbtSpec, Range

_STEP = {"log": log(4), "log1m": log(4), "linear": 0.25}
_RESAMPLE = 0.25
_CHOSEN = 0.5
_FACTORS = (0.8, 1.2)  # Jaderberg et al. 2017
_NEAREST_ONE = 1e-12  # 1 - x at x = 1, which has no logarithm


def mutated(
    values: Mapping[str, float], ranges: Mapping[str, Range], rng: np.random.Generator
) -> dict[str, Any]:
    """About half of the hyperparameters in `ranges`, at least one, moved; returns all that changed.

    One at a time is too slow where most of them are bad: with 8 of them and a mutation in five births, a rate that is
    far off is moved once in 40 births (docs/tuning.md).

    eps_end never passes eps_start: where either moves, eps_end is cut at eps_start.

    Args:
        values: present values of everything in `ranges`.
        ranges: what may move, and how far.
        rng: source of the draws.
    """
    if not ranges:
        return {}
    chosen = [name for name in ranges if rng.random() < _CHOSEN] or [list(ranges)[rng.integers(len(ranges))]]
    return _below_start({name: moved(values[name], ranges[name], rng) for name in chosen}, values)


def explored(
    spec: PbtSpec, values: Mapping[str, float], ranges: Mapping[str, Range], rng: np.random.Generator
) -> dict[str, Any]:
    """All hyperparameters as the exploration of PBT leaves them."""
    out = {}
    for name, within in ranges.items():
        anew = spec.explore == "resample" or rng.random() < spec.resample_probability
        value = values[name] * _FACTORS[rng.integers(2)]
        out[name] = drawn(within, rng) if anew else _fit(value, within)
    return _below_start(out, values)


def sampled(
    values: Mapping[str, float], ranges: Mapping[str, Range], rng: np.random.Generator
) -> dict[str, Any]:
    """All hyperparameters drawn from their ranges, uniformly in their coordinates."""
    return _below_start({name: drawn(within, rng) for name, within in ranges.items()}, values)


def moved(value: float, within: Range, rng: np.random.Generator) -> float | int:
    """A value after one mutation: a step up or down, or (a quarter of the time) a fresh draw; integers always move."""
    factors = [f for f in (within.grow_factor, within.shrink_factor) if f is not None]
    if factors:
        new = _fit(value * factors[rng.integers(len(factors))], within)
    elif rng.random() < _RESAMPLE or not within.low <= value <= within.high:
        new = drawn(within, rng)
    else:
        low, high = _ends(within)
        step = _STEP[within.scale] * (high - low if within.scale == "linear" else 1.0)
        u = _coordinate(value, within) + rng.uniform(-step, step)
        new = _fit(_value(_reflected(u, low, high), within), within)
    if within.integer and new == round(value) and within.low < within.high:
        up = value >= within.high or (value > within.low and rng.random() < 0.5)
        new = int(np.clip(round(value) + (-1 if up else 1), within.low, within.high))
    return new


def drawn(within: Range, rng: np.random.Generator) -> float | int:
    """A value of the range, uniform in its coordinate."""
    return _fit(_value(rng.uniform(*_ends(within)), within), within)


def _fit(value: float, within: Range) -> float | int:
    value = min(max(value, within.low), within.high)
    return round(value) if within.integer else float(value)


def _coordinate(value: float, within: Range) -> float:
    if within.scale == "log":
        return log(value)
    return log(max(1 - value, _NEAREST_ONE)) if within.scale == "log1m" else value


def _value(u: float, within: Range) -> float:
    if within.scale == "log":
        return exp(u)
    return 1 - exp(u) if within.scale == "log1m" else u


def _ends(within: Range) -> tuple[float, float]:
    ends = _coordinate(within.low, within), _coordinate(within.high, within)
    return min(ends), max(ends)


def _reflected(u: float, low: float, high: float) -> float:
    if low == high:
        return low
    period = 2 * (high - low)
    u = (u - low) % period
    return low + min(u, period - u)


def _below_start(new: dict[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    start, end = (new.get(name, values.get(name)) for name in ("eps_start", "eps_end"))
    if {"eps_start", "eps_end"} & new.keys() and start is not None and end is not None and end > start:
        new["eps_end"] = start
    return new
