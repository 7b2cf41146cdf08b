"""Spec of the environment: what to make, with which settings, how many copies.

Must not know: gymnasium.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from agilerl_exp.models.base import Spec


class WrapperSpec(Spec):
    """One wrapper around each copy of the environment. A bare string stands for `path` alone."""

    path: Annotated[str, Field(min_length=1)]
    """`package.module.Class`, `module:attr` or `file.py:Class`."""
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments after the environment."""


def _wrapper(entry: Any) -> Any:
    return {"path": entry} if isinstance(entry, str) else entry


class EnvSpec(Spec):
    """The environment of a run: exactly one of `id` and `entrypoint`."""

    id: Annotated[str, Field(min_length=1)] | None = None
    """A gymnasium id, e.g. `CartPole-v1` or `module:namespace/Name-v0`."""
    entrypoint: str | None = None
    """`module:attr` or `file.py:Class`; called with `config` it returns one environment."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    wrappers: list[Annotated[WrapperSpec, BeforeValidator(_wrapper)]] = Field(default_factory=list)
    """Wrappers around each copy, the first one innermost."""
    num_envs: Annotated[int, Field(ge=1)] = 16
    """Copies of the environment for each member."""
    vectorization: Literal["auto", "entry_point", "sync", "async"] = "auto"
    """How the copies are stepped: by the env's own vector entry point, in this process, in workers."""

    @property
    def name(self) -> str:
        """The gymnasium id or the entrypoint, as written."""
        return self.id or self.entrypoint or ""

    @model_validator(mode="after")
    def _check(self) -> EnvSpec:
        given = [source for source in (self.id, self.entrypoint) if source is not None]
        path, _, attribute = (self.entrypoint or "").rpartition(":")
        malformed = self.id is None and self.entrypoint is not None and not (path and attribute)
        cause = "wrappers" if self.wrappers else "entrypoint"
        apart = self.vectorization == "entry_point" and bool(self.wrappers or self.entrypoint)
        give = "choose env=NAME, or give id (a gymnasium id) or entrypoint (module:attr, file.py:Class)"
        one = f"id={self.id} is given too; choose env=custom, or set one of them to null"
        use = f"a vector entry point cannot be used with {cause}; use auto, sync or async"
        self.refuse_where(
            (not given, "id", f"no environment; {give}"),
            (len(given) == 2, "entrypoint", one),
            (malformed, "entrypoint", "must read module:attr or file.py:Class"),
            (apart, "vectorization", use),
        )
        return self
