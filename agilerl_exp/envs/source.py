"""Where an environment comes from: a gymnasium id, a module or a file, with its settings and wrappers.

Every mistake comes out as one ConfigError line that names the field.
Must not know: copies, workers, seeds.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.vector import VectorEnv

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.base import did_you_mean
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.plugins import import_source, see_current_directory


def builder(spec: EnvSpec) -> Callable[[], gym.Env]:
    """Builds one environment with its wrappers at each call, also after the working directory has changed.

    Raises:
        ConfigError: here or in a call: it cannot be built; the line names the field and holds the original message.
    """
    see_current_directory()
    make: Callable[..., gym.Env]
    if spec.id is None:
        place = f"env.entrypoint={spec.entrypoint}"
        make = create = _resolve(spec.entrypoint or "", place)
        if not callable(create):
            raise ConfigError(
                f"{place}: is a {type(create).__name__}; name an environment class or a function"
            )
    else:
        place = f"env.id={spec.id}"
        with _named(place):
            create = registration._find_spec(spec.id).entry_point
            create = registration.load_env_creator(create) if isinstance(create, str) else create
        make = partial(gym.make, spec.id, disable_env_checker=True)
    wrappers = []
    for index, wrapper in enumerate(spec.wrappers):
        where = f"env.wrappers[{index}]={wrapper.path}"
        wrappers.append((where, _resolve(wrapper.path, where), wrapper.kwargs))

    def build() -> gym.Env:
        with _named(place, create, spec.config):
            env = make(**spec.config)
        if not isinstance(env, gym.Env):
            raise ConfigError(
                f"{place}: gives {type(env).__name__}, not a gymnasium.Env; "
                "name an environment class or a function that returns one"
            )
        try:
            for where, wrap, kwargs in wrappers:
                with _named(where, wrap, kwargs):
                    env = wrap(env, **kwargs)
        except ConfigError:
            env.close()
            raise
        return env

    return build


def registered(spec: EnvSpec) -> registration.EnvSpec | None:
    """What gymnasium's registry holds under the id; None for an environment by entrypoint, or not there (yet)."""
    return registration.registry.get((spec.id or "").rpartition(":")[2])


def time_limit(spec: EnvSpec) -> int | None:
    """The steps of an episode that the environment's registration declares."""
    return known.max_episode_steps if (known := registered(spec)) else None


def build_vector(spec: EnvSpec, num_envs: int) -> VectorEnv:
    """The environment's own vector version.

    Raises:
        ConfigError: there is none, or it cannot be built.
    """
    see_current_directory()
    name, settings = spec.id or "", dict[str, Any](spec.config)
    with _named("env.vectorization=entry_point"):
        if registration._find_spec(name).vector_entry_point is None:
            raise ValueError(f"{name} has no vector entry point; use auto, sync or async")
        return gym.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **settings)


def _resolve(path: str, place: str) -> Any:
    """The object at `package.module.attr`, `module:attr` or `file.py:attr`."""
    file, _, attr = path.rpartition(":")
    with _named(place):
        if not file.endswith(".py"):
            return pkgutil.resolve_name(path)
    if not Path(file).is_file():
        raise ConfigError(
            f"{place}: no file {Path(file).resolve()}; give a path from here or an absolute one"
        )
    with _named(place):
        module = import_source(file)
    if not hasattr(module, attr):
        raise ConfigError(f"{place}: {file} has no {attr!r}{did_you_mean(attr, vars(module))}")
    return getattr(module, attr)


@contextmanager
def _named(place: str, create: Any = None, settings: Iterable[str] = ()) -> Iterator[None]:
    """Whatever the user's code raises inside comes out as one line that begins with `place` (field=value)."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{place}: {_reason(error, create, settings)}") from error


def _reason(error: Exception, create: Any, settings: Iterable[str]) -> str:
    """The message in one line; for a wrong argument of `create`, what it takes."""
    allowed = _parameters(create) if isinstance(error, TypeError) else None
    unknown = [] if allowed is None else [key for key in settings if key not in allowed]
    if allowed is not None and unknown:
        hint = did_you_mean(unknown[0], allowed)
        takes = f"it takes {', '.join(allowed)}" if allowed else "it takes no settings"
        return f"unexpected keyword argument {unknown[0]!r}; {takes}{hint}"
    if isinstance(error, ModuleNotFoundError) and error.name and "No module named" in str(error):
        return (
            f"No module named {error.name!r}; install the package or run in the folder that holds the module"
        )
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, gym.error.DependencyNotInstalled) and "box2d" in text.lower():
        return f"{text}; fix: pip install 'agilerl-exp[box2d]'"
    if isinstance(error, AttributeError) and error.name:
        return text + did_you_mean(error.name, dir(error.obj))
    return text


def _parameters(create: Any) -> list[str] | None:
    """The names of the keyword arguments; None when they cannot be known."""
    try:
        parameters = inspect.signature(create).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
