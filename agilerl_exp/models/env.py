"""Spec of the environment: what to make, with which settings, how many copies.

Must not know: gymnasium.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from agilerl_exp.models.base import Spec, mistake, refuse


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
        refuse([*self._source_mistakes(), *self._vectorization_mistakes()])
        return self

    def _source_mistakes(self) -> list[str]:
        if self.id is None and self.entrypoint is None:
            return [
                "id=null: no environment; choose env=NAME, or give id (a gymnasium id) "
                "or entrypoint (module:attr, file.py:Class)"
            ]
        if self.entrypoint is None:
            return []
        if self.id is not None:
            text = f"id={self.id} is given too; choose env=custom, or set one of them to null"
            return [mistake("entrypoint", self.entrypoint, text)]
        module, _, attr = self.entrypoint.rpartition(":")
        if not module or not attr:
            return [mistake("entrypoint", self.entrypoint, "must read module:attr or file.py:Class")]
        return []

    def _vectorization_mistakes(self) -> list[str]:
        if self.vectorization != "entry_point":
            return []
        cause = "wrappers" if self.wrappers else "entrypoint" if self.entrypoint else None
        if cause is None:
            return []
        text = f"a vector entry point cannot be used with {cause}; use auto, sync or async"
        return [mistake("vectorization", self.vectorization, text)]
