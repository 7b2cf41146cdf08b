#!/usr/bin/env python3
"""Writes the tables in docs/ that repeat what the code says: options, settings, hyperparameters.

A table stands between `<!-- table NAME -->` and `<!-- end -->`. Run it after a change of a spec or of conf/:

    .venv/bin/python scripts/docs.py

Must not know: how anything runs.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from agilerl_exp import catalogue
from agilerl_exp.models.algo import ALGO_REGISTRY
from agilerl_exp.models.base import Spec, tunables
from agilerl_exp.models.env import EnvSpec, WrapperSpec
from agilerl_exp.models.evolution import MultiFrequencySpec, MutationProbabilities, PbtSpec, TournamentSpec
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.models.network import (
    CnnSpec,
    CustomSpec,
    EncoderSpec,
    HeadSpec,
    ImageSpec,
    MultiInputSpec,
    ResNetSpec,
    SimbaSpec,
)
from agilerl_exp.models.tracker import TrackerSpec
from agilerl_exp.models.training import NStepBufferArgs, PerBufferArgs, ReplayBufferSpec, TrainingSpec

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKED = re.compile(r"(<!-- table (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
SETTINGS: dict[str, list[tuple[str, type[Spec]]]] = {
    "experiment": [("", ExperimentSpec)],
    "training": [("training.", TrainingSpec)],
    "buffer": [
        ("training.replay_buffer.", ReplayBufferSpec),
        ("training.replay_buffer.n_step_buffer_args.", NStepBufferArgs),
        ("training.replay_buffer.per_buffer_args.", PerBufferArgs),
    ],
    "env": [("env.", EnvSpec), ("env.wrappers[i].", WrapperSpec)],
    "network": [("algo.net_config.", HeadSpec)],
    "network simba": [("algo.net_config.", SimbaSpec)],
    "network encoder": [("algo.net_config.", EncoderSpec)],
    "network image": [("algo.net_config.", ImageSpec)],
    "network cnn": [("algo.net_config.", CnnSpec)],
    "network resnet": [("algo.net_config.", ResNetSpec)],
    "network multi_input": [("algo.net_config.", MultiInputSpec)],
    "network custom": [("algo.net_config.", CustomSpec)],
    "evolution tournament": [("evolution.", TournamentSpec)],
    "evolution probabilities": [("evolution.probabilities.", MutationProbabilities)],
    "evolution multi_frequency": [("evolution.", MultiFrequencySpec)],
    "evolution pbt": [("evolution.", PbtSpec)],
    "tracker": [("tracker.", TrackerSpec)],
}
BEYOND = {
    "network encoder": HeadSpec,
    "network image": EncoderSpec,
    "network cnn": ImageSpec,
    "network resnet": ImageSpec,
    "network multi_input": CnnSpec,
    "network custom": EncoderSpec,
}
"""A spec whose settings another table of the page lists already."""
TAKEN = {"training": [("training", "default"), ("training/exploration", "exponential")]}
"""The options that are taken when nothing is said, of groups whose options differ from the spec."""


def main() -> None:
    """Rewrite the tables of every page."""
    for page in sorted(DOCS.rglob("*.md")):
        page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", text)


def table(name: str) -> str:
    """One table: `options`, `settings GROUP` or `hyperparameters ALGORITHM`."""
    kind, _, about = name.partition(" ")
    makers = {"options": option_rows, "settings": setting_rows, "hyperparameters": hyperparameter_rows}
    rows = list(makers[kind](about))
    rows.insert(1, ["---"] * len(rows[0]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def option_rows(_: str) -> Iterator[list[str]]:
    """Every option of every group."""
    yield ["Group", "Its settings stand in", "Option", "What it is"]
    for group in [*catalogue.PACKAGES, *catalogue.EXTRA_GROUPS]:
        place = catalogue.PACKAGES.get(group, "training" if "/" in group else "anywhere")
        for option in catalogue.options(group, [catalogue.CONF]):
            yield [
                f"`{group}`",
                f"`{place}`" if place != "anywhere" else place,
                f"`{option.name}`",
                option.about,
            ]


def setting_rows(group: str) -> Iterator[list[str]]:
    """Every setting of a group with its default and what it may be."""
    yield ["Setting", "Default", "Allowed", "Meaning"]
    shipped: dict[str, Any] = {}
    for place, name in TAKEN.get(group, []):
        shipped |= _option(place, name)
    known = (
        {name: _about(field) for name, field in BEYOND[group].model_fields.items()} if group in BEYOND else {}
    )
    for prefix, cls in SETTINGS[group]:
        for name, field in cls.model_fields.items():
            if (
                _nested(field.annotation)
                or (name, _about(field)) in known.items()
                or (name == "arch" and group != "evolution probabilities")
            ):
                continue
            default = "must be given" if field.is_required() else _show(_default(field))
            if name in shipped and shipped[name] != _default(field):
                default = f"{_show(shipped[name])} (spec: {default})"
            yield [f"`{prefix}{name}`", default, _allowed(field.annotation, field.metadata), _about(field)]


def hyperparameter_rows(stem: str) -> Iterator[list[str]]:
    """Every field of an algorithm's spec, and of the training fields that evolution may move."""
    yield ["Setting", "Spec", f"`algo={stem}`", "Search range", "Meaning"]
    known = {name.lower(): ALGO_REGISTRY.get(name).spec_cls for name in ALGO_REGISTRY.names()}
    spec, shipped = known[stem], _option("algo", stem)
    for prefix, cls in (("algo.", spec), ("training.", TrainingSpec)):
        marks = tunables(cls)
        for name, field in cls.model_fields.items():
            if _nested(field.annotation) or (cls is TrainingSpec and name not in marks):
                continue
            mark = marks.get(name)
            search = f"{mark.low:g} to {mark.high:g}, {mark.scale}" if mark else ""
            mine = _show(shipped[name]) if cls is spec and name in shipped else ""
            yield [f"`{prefix}{name}`", _show(_default(field)), mine, search, _about(field)]


def _option(group: str, name: str) -> dict[str, Any]:
    return next(o.values for o in catalogue.options(group, [catalogue.CONF]) if o.name == name)


def _default(field: Any) -> Any:
    return field.get_default(call_default_factory=True)


def _show(value: Any) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _about(field: Any) -> str:
    return " ".join(field.description.split()).replace("|td_error|", "abs(td_error)")


def _nested(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (list, dict):
        return False
    parts = typing.get_args(annotation)
    return any(map(_nested, parts)) or (isinstance(annotation, type) and issubclass(annotation, Spec))


def _allowed(annotation: Any, metadata: Any = ()) -> str:
    """A type with its bounds, in words."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _allowed(inner[0], inner[1:])
    if origin in (typing.Union, types.UnionType):
        return ", ".join(_allowed(part, metadata) for part in inner)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is list:
        return f"list of {_allowed(inner[0])}"
    if annotation is type(None):
        return "`null`"
    words = {int: "integer", float: "number", str: "text", bool: "`true`, `false`", dict: "mapping"}
    word = words.get(origin or annotation, "path or {path, kwargs}")
    return " ".join([word, *(bound for mark in metadata for bound in _bounds(mark))])


def _bounds(mark: Any) -> Iterator[str]:
    for part in [mark, *getattr(mark, "metadata", [])]:
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            if getattr(part, name, None) is not None:
                yield f"{sign} {getattr(part, name):g}"


if __name__ == "__main__":
    main()
