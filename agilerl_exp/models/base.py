"""The base of every spec: unknown keys refused, values frozen, aliases, marks for mutable hyperparameters.

Must not know: any concrete spec, and who reads the marks.
"""

from __future__ import annotations

import difflib
import json
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator


@dataclass(frozen=True)
class Tunable:
    """Mark of a hyperparameter that evolution may mutate and a sweep may search.

    Attributes:
        low: Lower end of the search range, inside the bounds of the field.
        high: Upper end of the search range, inside the bounds of the field.
        scale: The coordinate that moves: `log` ln(x), `log1m` ln(1 - x) (a horizon moves), `linear` x.
    """

    low: float
    high: float
    scale: Literal["log", "log1m", "linear"] = "linear"


@dataclass(frozen=True)
class Static:
    """Mark of a field that is a shape, not a column of the bank (it may be Tunable as well)."""


class SettingsError(ValueError):
    """Wrong settings; `lines` holds `field=value: what is allowed; the fix`, relative to the spec."""

    def __init__(self, lines: list[str]) -> None:
        """Keep the lines, so that they can be prefixed with the place of the spec in the tree."""
        super().__init__("\n".join(lines))
        self.lines = lines


def show(value: object) -> str:
    """Write a value the way a user types it on the command line, cut at 80 characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def mistake(field: str, value: object, text: str) -> str:
    """Write one line about a wrong setting."""
    return f"{field}={show(value)}: {text}"


def tag_of(key: str, default: str) -> Callable[[Any], str]:
    """Return what tells the specs of a union apart: from a spec or settings to the tag `key=value`."""

    def tag(value: Any) -> str:
        given = value.get(key, default) if isinstance(value, dict) else getattr(value, key, default)
        return f"{key}={given}"

    return tag


def lower_first(text: str) -> str:
    """Return the text with a small first letter, to stand after a colon."""
    return text[:1].lower() + text[1:]


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean <prefix>X?` for the nearest known name X, whatever its case, or nothing."""
    by_lower = {other.lower(): other for other in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {prefix}{by_lower[near[0]]}?" if near else ""


def refuse(lines: list[str]) -> None:
    """Raise `SettingsError` when there is at least one line."""
    if lines:
        raise SettingsError(lines)


class Spec(BaseModel):
    """Base of all specs. A misspelt key is refused: a typo must never train."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )

    aliases: ClassVar[dict[str, str]] = {}
    """Other input names of fields (a dot leads into a nested spec); they are never dumped."""

    def refuse_where(self, *rules: tuple[bool, str, str]) -> None:
        """Refuse the spec with a line for each rule that is broken: (broken, field, what is allowed; the fix)."""
        refuse([mistake(field, attrgetter(field)(self), text) for broken, field, text in rules if broken])

    @model_validator(mode="before")
    @classmethod
    def _rename_aliases(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data, conflicts = dict(data), []
        for alias, target in cls.aliases.items():
            value = data.pop(alias, None)
            group, _, name = target.rpartition(".")
            fields = data.get(group, {}) if group else data
            fields = fields.model_dump(exclude_unset=True) if isinstance(fields, Spec) else fields
            if value is None or not isinstance(fields, dict):  # no value; or the nested spec itself refuses
                continue
            other = fields.get(name, value)
            if other != value:
                text = f"{target}={show(other)} is given too and means the same; keep one"
                conflicts.append(mistake(alias, value, text))
            data |= {group: {**fields, name: value}} if group else {name: value}
        refuse(conflicts)
        return data

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts True as 1: `gamma=true` would train with gamma 1.
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _parts(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("input should be a number, not true or false")
        return value


def branches(spec_cls: type[Spec], prefix: str = "") -> Iterator[tuple[str, type[Spec]]]:
    """Walk over a spec class and those nested in it, each after its dotted place (`training.`)."""
    yield prefix, spec_cls
    for name, field in spec_cls.model_fields.items():
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, Spec):
                yield from branches(part, f"{prefix}{name}.")


def _parts(annotation: Any) -> set[Any]:
    inner = typing.get_args(annotation)
    if not inner or typing.get_origin(annotation) is Literal:
        return {annotation}
    return set().union(*(_parts(part) for part in inner))


def tunables(spec_cls: type[Spec]) -> dict[str, Tunable]:
    """Return the tunable fields of a spec class with their search ranges, in the order of the fields."""
    return {
        name: mark
        for name, field in spec_cls.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Tunable)
    }


class RLHyperparameter(Spec):
    """The range in which evolution may move one hyperparameter, and optionally by which factors."""

    min: float
    """Smallest value it may take."""
    max: float
    """Largest value it may take."""
    grow_factor: Annotated[float, Field(gt=1)] | None = None
    """When given: a growing mutation multiplies by it (cut at max) in place of the general move."""
    shrink_factor: Annotated[float, Field(gt=0, lt=1)] | None = None
    """When given: a shrinking mutation multiplies by it (cut at min) in place of the general move."""

    @model_validator(mode="after")
    def _ordered(self) -> RLHyperparameter:
        self.refuse_where((self.min > self.max, "min", f"must be <= max={show(self.max)}"))
        return self
