"""Where an environment comes from: a gymnasium id, a module or a file, with its settings and wrappers.

Every mistake comes out as one ConfigError line that names the field.
Must not know: copies, workers, seeds.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.vector import VectorEnv

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.base import did_you_mean
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.plugins import import_source, see_current_directory


def build(spec: EnvSpec) -> gym.Env:
    """One environment with its wrappers.

    Raises:
        ConfigError: it cannot be built; the line names the field and holds the original message.
    """
    see_current_directory()
    env = _from_entrypoint(spec) if spec.id is None else _from_id(spec)
    if not isinstance(env, gym.Env):
        raise ConfigError(
            f"env.entrypoint={spec.entrypoint}: gives {type(env).__name__}, not a gymnasium.Env; "
            "name an environment class or a function that returns one"
        )
    for index, wrapper in enumerate(spec.wrappers):
        place = f"env.wrappers[{index}]={wrapper.path}"
        wrap = resolve(wrapper.path, place)
        try:
            env = wrap(env, **wrapper.kwargs)
        except Exception as error:
            env.close()
            raise ConfigError(f"{place}: {_reason(error, wrap, wrapper.kwargs)}") from error
    return env


def builder(spec: EnvSpec) -> Callable[[], gym.Env]:
    """Builds one environment at each call, also after the working directory has changed."""
    if spec.entrypoint is None:
        return lambda: build(spec)
    module, _, attr = spec.entrypoint.rpartition(":")
    if module.endswith(".py"):
        spec = spec.model_copy(update={"entrypoint": f"{Path(module).resolve()}:{attr}"})
    return lambda: build(spec)


def vector_builder(spec: EnvSpec, num_envs: int, *, required: bool) -> Callable[[], VectorEnv] | None:
    """Builds the environment's own vector version; None when it has none that works and none is required.

    Raises:
        ConfigError: it is required and cannot be built.
    """
    see_current_directory()
    name = spec.id or ""
    settings: dict[str, Any] = dict(spec.config)

    def make() -> VectorEnv:
        return gym.make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point", **settings)

    try:
        if registration._find_spec(name).vector_entry_point is None:
            raise ValueError(f"{name} has no vector entry point; use auto, sync or async")
        make().close()
    except Exception as error:
        if required:
            raise ConfigError(f"env.vectorization=entry_point: {_one_line(error)}") from error
        return None
    return make


def resolve(path: str, place: str) -> Any:
    """The object at `package.module.attr`, `module:attr` or `file.py:attr`.

    Raises:
        ConfigError: there is none; `place` (field=value) begins the line.
    """
    see_current_directory()
    module_name, _, attr = path.rpartition(":")
    try:
        if not module_name.endswith(".py"):
            return pkgutil.resolve_name(path)
        module = import_source(module_name)
    except AttributeError as error:
        raise ConfigError(f"{place}: {_one_line(error)}{_nearest(error)}") from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"{place}: no file {Path(module_name).resolve()}; give a path from here or an absolute one"
        ) from error
    except Exception as error:  # the import runs code of the user
        raise ConfigError(f"{place}: {_import_reason(error)}") from error
    if not hasattr(module, attr):
        raise ConfigError(f"{place}: {module_name} has no {attr!r}{did_you_mean(attr, vars(module))}")
    return getattr(module, attr)


def _from_id(spec: EnvSpec) -> gym.Env:
    name = spec.id or ""
    place = f"env.id={name}"
    settings: dict[str, Any] = dict(spec.config)
    try:
        registered = registration._find_spec(name)
    except Exception as error:
        raise ConfigError(f"{place}: {_import_reason(error)}") from error
    try:
        return gym.make(name, disable_env_checker=True, **settings)
    except Exception as error:
        creator = registered.entry_point
        with_class = registration.load_env_creator(creator) if isinstance(creator, str) else creator
        raise ConfigError(f"{place}: {_reason(error, with_class, settings)}") from error


def _from_entrypoint(spec: EnvSpec) -> Any:
    place = f"env.entrypoint={spec.entrypoint}"
    create = resolve(spec.entrypoint or "", place)
    if not callable(create):
        raise ConfigError(f"{place}: is a {type(create).__name__}; name an environment class or a function")
    try:
        return create(**spec.config)
    except Exception as error:
        raise ConfigError(f"{place}: {_reason(error, create, spec.config)}") from error


def _reason(error: Exception, create: Any, kwargs: dict[str, Any]) -> str:
    """The message of a failed construction; for a wrong argument, what the environment takes."""
    allowed = _parameters(create)
    unknown = [] if allowed is None else [key for key in kwargs if key not in allowed]
    if not isinstance(error, TypeError) or allowed is None or not unknown:
        return _import_reason(error)
    hint = did_you_mean(unknown[0], allowed)
    takes = f"it takes {', '.join(allowed)}" if allowed else "it takes no settings"
    return f"unexpected keyword argument {unknown[0]!r}; {takes}{hint}"


def _parameters(create: Any) -> list[str] | None:
    """The names of the keyword arguments; None when they cannot be known."""
    try:
        parameters = list(inspect.signature(create).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]


def _import_reason(error: Exception) -> str:
    if isinstance(error, gym.error.DependencyNotInstalled) and "box2d" in str(error).lower():
        return f"{_one_line(error)}; fix: pip install 'agilerl-exp[box2d]'"
    if isinstance(error, ModuleNotFoundError) and error.name and "No module named" in str(error):
        return (
            f"No module named {error.name!r}; install the package or run in the folder that holds the module"
        )
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _nearest(error: AttributeError) -> str:
    return did_you_mean(error.name or "", dir(error.obj)) if error.obj is not None else ""
