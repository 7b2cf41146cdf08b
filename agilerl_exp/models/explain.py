"""Turns a pydantic error into one line a mistake: what was set where, what is allowed, what was meant.

Must not know: any concrete spec.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from agilerl_exp.models.base import SettingsError, did_you_mean, lower_first, mistake

PACKAGES = {
    "algo": "algo",
    "network": "algo.net_config",
    "training": "training",
    "buffer": "training.replay_buffer",
    "env": "env",
    "evolution": "evolution",
    "tracker": "tracker",
}
"""Where the settings of each config group stand in the experiment."""


def explain(error: ValidationError, known: Collection[str], config: Any, prefix: str = "") -> list[str]:
    """Return the lines of a validation error.

    Args:
        error: What pydantic raised.
        known: Dotted paths of all settings, for the hint at what was meant.
        config: What was validated.
        prefix: Where the validated spec stands in the tree, with a dot at the end, or nothing.
    """
    lines: list[str] = []
    for entry in error.errors(include_url=False):
        keys, value = _keys(entry["loc"], config)
        path = prefix + ".".join(keys)
        cause = entry.get("ctx", {}).get("error")
        inside = f"{path}." if keys else prefix
        if isinstance(cause, ValidationError):
            lines += explain(cause, known, value, inside)
        elif isinstance(cause, SettingsError):
            lines += [inside + line for line in cause.lines]
        elif entry["type"] == "extra_forbidden":
            lines.append(f"{path}: no such setting{nearest(path, known)}")
        elif entry["type"] == "union_tag_invalid":
            key, _, tag = entry["ctx"]["tag"].partition("=")
            tags = entry["ctx"]["expected_tags"].replace(f"{key}=", "").replace("'", "")
            hint = did_you_mean(tag, tags.split(", "))
            lines.append(mistake(inside + key, tag, f"must be one of {tags}{hint}"))
        elif entry["type"] == "missing":
            lines.append(f"{path}: must be given")
        else:
            lines.append(mistake(path, entry["input"], _text(path, entry, cause)))
    return lines


def _keys(loc: tuple[str | int, ...], value: Any) -> tuple[list[str], Any]:
    """The keys along a location, without the branches of unions that pydantic names too, and what stands there."""
    keys = []
    for part, after in zip(loc, (*loc[1:], None), strict=False):
        if "=" in str(part):  # the tag of a union
            continue
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and part in inside:
            value = inside[part]
        elif isinstance(inside, str | int | float) or (isinstance(inside, dict) and after in inside):
            continue
        else:
            value = None  # a key that is missing, or given by another name: from here on each part is one
        keys.append(str(part))
    return keys, value


def _text(path: str, entry: Any, cause: object) -> str:
    if entry["type"].startswith("model_"):
        groups = [group for group, place in PACKAGES.items() if place == path]
        use = f"; use {groups[0]}={entry['input']}" if groups and isinstance(entry["input"], str) else ""
        return f"this is a group of settings, not a value{use}"
    return lower_first(str(cause) if isinstance(cause, ValueError) else entry["msg"])


def nearest(path: str, known: Collection[str]) -> str:
    """Look for the same name elsewhere in the tree first, then beside the misspelt key, then everywhere."""
    if path in known:
        return "; it belongs to another option of its group than the one that is chosen"
    folder, _, leaf = path.rpartition(".")
    # The entries of a list share one spec: their numbers are no part of a known path.
    group = ".".join(part for part in folder.split(".") if not part.isdigit())
    beside = {other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == group}
    elsewhere = {other for other in known if other.rpartition(".")[2] == leaf}
    return (
        (f"; did you mean {min(elsewhere)}?" if elsewhere else "")
        or did_you_mean(leaf, beside, f"{folder}." if folder else "")
        or did_you_mean(path, known)
    )
