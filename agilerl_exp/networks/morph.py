"""Architecture mutations: what may change in a network spec, and what becomes of the trained tensors.

A mutation changes the spec alone; the tensors of the new network follow from comparing the layouts of the two.
Units that stay keep their weights and moments, new ones listen but are not listened to yet (zero outgoing weights),
new layers are identities: the function stays, but for what LayerNorm and activations other than ReLU make of it.
Must not know: cohorts, optimizers, who draws a mutation and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agilerl_exp.models.base import Spec
from agilerl_exp.models.network import Depth, Widths
from agilerl_exp.networks.network import Leaf, Network

Tensors = Sequence[np.ndarray]
Option = tuple[str, dict[str, Any]]
"""Kind of a change, and the new values of the fields, the first of which names it."""


class Change(NamedTuple):
    """One change of an architecture: `add_node` of `hidden_size` from `old` to `new`."""

    kind: str
    field: str
    old: Any
    new: Any
    spec: Any


def draw(spec: Spec, rng: np.random.Generator, new_layer: float) -> Change | None:
    """A random change inside the bounds of the spec; None where nothing may change.

    Args:
        spec: a network spec.
        rng: source of the draw.
        new_layer: probability of a change of depth rather than width; where one of them is impossible the other
            is taken.
    """
    depth, width = rng.random() < new_layer, list(_widths(spec))
    options = (list(_depths(spec)) or width) if depth else (width or list(_depths(spec)))
    kinds = sorted({kind for kind, _ in options})
    if not kinds:
        return None
    kind = kinds[rng.integers(len(kinds))]
    same = [values for other, values in options if other == kind]
    return _change(spec, kind, same[rng.integers(len(same))])


def activation(spec: Spec, rng: np.random.Generator, names: Sequence[str]) -> Change | None:
    """Another of the activations `names`; None where there is no other."""
    old = getattr(spec, "activation", None)
    others = [name for name in names if name != old]
    if old is None or not others:
        return None
    return _change(spec, "activation", {"activation": others[rng.integers(len(others))]})


def sampled(spec: Any, rng: np.random.Generator) -> Any:
    """The spec with each width drawn among the powers of two in its bounds, one for all layers of a list.

    Sides of kernels stay: they have one step only.
    """
    drawn = {}
    for name, mark in ((name, mark) for name, mark in _marks(spec, Widths) if len(mark.steps) > 1):
        low, high = getattr(spec, mark.low), getattr(spec, mark.high)
        sizes = [2**k for k in range(high.bit_length()) if low <= 2**k <= high] or [low]
        size, value = int(rng.choice(sizes)), getattr(spec, name)
        drawn[name] = [size] * len(value) if isinstance(value, list) else size
    return spec.model_copy(update=drawn)


def _marks(spec: Spec, kind: type) -> Iterator[tuple[str, Any]]:
    for name, field in type(spec).model_fields.items():
        yield from ((name, mark) for mark in field.metadata if isinstance(mark, kind))


def _change(spec: Spec, kind: str, values: Mapping[str, Any]) -> Change:
    name = next(iter(values))
    return Change(kind, name, getattr(spec, name), values[name], spec.model_copy(update=dict(values)))


def _widths(spec: Spec) -> Iterator[Option]:
    for name, mark in _marks(spec, Widths):
        value, (low, high) = getattr(spec, name), (getattr(spec, mark.low), getattr(spec, mark.high))
        sizes = value if isinstance(value, list) else [value]
        for i, size in enumerate(sizes):
            for step in (sign * step for sign in (1, -1) for step in mark.steps):
                if low <= size + step <= high:
                    new = [*sizes[:i], size + step, *sizes[i + 1 :]]
                    kind = f"{'add' if step > 0 else 'remove'}_{mark.noun}"
                    yield kind, {name: new if isinstance(value, list) else new[0]}


def _depths(spec: Spec) -> Iterator[Option]:
    for name, mark in _marks(spec, Depth):
        value, lists = getattr(spec, name), {other: getattr(spec, other) for other, _ in mark.along}
        count = len(value) if isinstance(value, list) else value
        if count < getattr(spec, mark.high):
            more = [*value, value[-1]] if isinstance(value, list) else value + 1
            grown = {other: [*lists[other], entry] for other, entry in mark.along}
            yield f"add_{mark.noun}", {name: more, **grown}
        if count > getattr(spec, mark.low):
            less = value[:-1] if isinstance(value, list) else value - 1
            cut = {other: entries[:-1] for other, entries in lists.items()}
            yield f"remove_{mark.noun}", {name: less, **cut}


def carry(
    old: Network, new: Network, tensors: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """The tensors of one member of `old` as tensors of `new`.

    Args:
        old, new: the two architectures.
        tensors: of each leaf of `old`, weights, targets and the optimizer's moments, stacked `(4, *shape)`. Weights and
            targets start alike where they are new; moments of new entries are zero.
        rng: source of the new units' weights.
    """
    before = {leaf.name: (leaf, trained) for leaf, trained in zip(old.layout(), tensors, strict=True)}
    stay = _staying(old, new, [trained[0] for trained in tensors])
    out = []
    for leaf, fresh in zip(new.layout(), new.init_member(rng), strict=True):
        known = before.get(leaf.name)
        value = np.zeros((len(tensors[0]), *leaf.shape), np.float32)
        value[:2] = new.inserted(leaf, fresh) if known is None else fresh
        if known is not None:
            _keep(value, leaf, *known, stay)
        out.append(value)
    return out


def _staying(old: Network, new: Network, weights: Tensors) -> dict[str, np.ndarray]:
    """Which units of a shrinking group stay: those that the layers after them weigh most."""
    sizes = {group: size for leaf in new.layout() for group, size in leaf.axes if group}
    heard: dict[str, np.ndarray] = {}
    for leaf, weight in zip(old.layout(), weights, strict=True):
        for axis in leaf.inputs:
            group, size = leaf.axes[axis]
            if group in sizes and sizes[group] < size:
                others = tuple(i for i in range(weight.ndim) if i != axis)
                heard[group] = heard.get(group, 0) + np.square(weight, dtype=np.float64).sum(others)
    return {
        group: np.sort(np.argsort(-total, kind="stable")[: sizes[group]]) for group, total in heard.items()
    }


def _keep(
    value: np.ndarray, leaf: Leaf, before: Leaf, trained: np.ndarray, stay: Mapping[str, np.ndarray]
) -> None:
    """Write the kept part of trained tensors `(4, ...)`; new entries of an input axis do not speak."""
    place = [slice(None)]
    for axis, ((group, size), (old_group, old_size)) in enumerate(
        zip(leaf.axes, before.axes, strict=True), 1
    ):
        count, start, lead = min(size, old_size), 0, (slice(None),) * axis
        if group is not None and group.startswith("kernel"):  # grows and shrinks around its centre
            start = (size - count) // 2
            cut = (old_size - count) // 2
            trained = trained[(*lead, slice(cut, cut + count))]
        elif size < old_size and group == old_group and group is not None and group in stay:
            trained = trained.take(stay[group], axis)
        else:
            trained = trained[(*lead, slice(count))]
        if axis - 1 in leaf.inputs and size > old_size:
            value[(*lead, slice(start))] = value[(*lead, slice(start + count, None))] = 0.0
        place.append(slice(start, start + count))
    value[tuple(place)] = trained
