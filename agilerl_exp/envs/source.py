"""Where an environment comes from: a gymnasium id, a module or a file, with its settings and wrappers.

Every mistake comes out as one ConfigError line that names the field.
Must not know: copies, workers, seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
from gymnasium.vector import VectorEnv

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.plugins import resolve, see_current_directory, told


def builder(spec: EnvSpec) -> Callable[[], gym.Env]:
    """Builds one environment with its wrappers at each call, also after the working directory has changed.

    Raises:
        ConfigError: here or in a call: it cannot be built; the line names the field and holds the original message.
    """
    see_current_directory()
    make: Callable[..., gym.Env]
    if spec.id is None:
        place = f"env.entrypoint={spec.entrypoint}"
        make = create = resolve(spec.entrypoint or "", place)
        if not callable(create):
            raise ConfigError(
                f"{place}: is a {type(create).__name__}; name an environment class or a function"
            )
    else:
        place = f"env.id={spec.id}"
        with told(place):
            create = registration._find_spec(spec.id).entry_point
            create = registration.load_env_creator(create) if isinstance(create, str) else create
        make = partial(gym.make, spec.id, disable_env_checker=True)
    wrappers = []
    for index, wrapper in enumerate(spec.wrappers):
        where = f"env.wrappers[{index}]={wrapper.path}"
        wrappers.append((where, resolve(wrapper.path, where), wrapper.kwargs))

    def build() -> gym.Env:
        with told(place, create, spec.config):
            env = make(**spec.config)
        if not isinstance(env, gym.Env):
            raise ConfigError(
                f"{place}: gives {type(env).__name__}, not a gymnasium.Env; "
                "name an environment class or a function that returns one"
            )
        try:
            for where, wrap, kwargs in wrappers:
                with told(where, wrap, kwargs):
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
    with told("env.vectorization=entry_point"):
        if registration._find_spec(name).vector_entry_point is None:
            raise ValueError(f"{name} has no vector entry point; use auto, sync or async")
        return gym.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **settings)
