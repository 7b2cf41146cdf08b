"""From an EnvSpec to the environment of one member.

Must not know: training, populations, configuration files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl_exp.envs import plain
from agilerl_exp.envs.adapter import MemberEnvs
from agilerl_exp.envs.keepers import ArrayKeeper, ReplayKeeper, proves
from agilerl_exp.envs.observations import leaves
from agilerl_exp.envs.replay import Replayable
from agilerl_exp.envs.source import build_vector, builder, registered
from agilerl_exp.envs.workers import Workers, shut_down
from agilerl_exp.errors import ConfigError, EnvError
from agilerl_exp.models.env import EnvSpec

_ENTRY_POINT_FROM = 4
"""From so many copies on `auto` takes the vector entry point; below, one by one is faster (measured)."""


def make_member_envs(spec: EnvSpec, seeds: Sequence[int], *, member: int = 0) -> MemberEnvs:
    """The vector environment of one member: len(seeds) copies, copy i's first reset seeded with seeds[i].

    Mistakes in the spec show in this process, before any worker starts.

    Raises:
        ConfigError: the environment cannot be built; one line with its own message.
        SpaceError: its observations cannot be stored.
        EnvError: a worker died while it started.
    """
    asked = spec.vectorization == "entry_point"
    auto = spec.vectorization == "auto" and spec.id is not None and not spec.wrappers
    only_way = auto and (known := registered(spec)) is not None and known.entry_point is None
    if asked or only_way or (auto and len(seeds) >= _ENTRY_POINT_FROM):
        try:
            return _entry_point(spec, seeds, member)
        except ConfigError:
            if asked or only_way:
                raise
    make = builder(spec)
    copies = [partial(_copy, make, member, index) for index in range(len(seeds))]
    env: SyncVectorEnv | Workers
    if spec.vectorization == "async":
        try:
            env = Workers(copies)
        except (EOFError, OSError) as error:
            raise EnvError(f"member {member}: a worker died while it built its environment") from error
    else:
        env = SyncVectorEnv(copies, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    return MemberEnvs(env, seeds, member, ReplayKeeper(env))


def _copy(make: Callable[[], gym.Env], member: int, index: int) -> Replayable:
    """One recorded copy, whose observations can be stored."""
    env = Replayable(make, member, index)
    try:
        leaves(env.observation_space)
    except ConfigError:
        env.close()
        raise
    return env


_PROOFS: dict[tuple[str | None, str, int], bool] = {}
"""What `proves` found, so that the members of a population prove it once."""


def _entry_point(spec: EnvSpec, seeds: Sequence[int], member: int) -> MemberEnvs:
    """The environment's own vector version.

    Raises:
        ConfigError: there is none that works; with `auto`, none whose state can be saved.
    """
    key = (spec.id, json.dumps(spec.config, sort_keys=True), len(seeds))
    env = build_vector(spec, len(seeds))
    try:
        if key not in _PROOFS:
            _PROOFS[key] = proves(lambda: build_vector(spec, len(seeds)))
        if spec.vectorization == "auto" and not _PROOFS[key]:
            raise ConfigError(
                f"env.vectorization=auto: the state of {spec.id}'s vector version cannot be saved"
            )
        plain.seed_spaces(env, seeds[0])  # a vector environment draws their seeds from the system otherwise
        return MemberEnvs(env, seeds, member, ArrayKeeper(env, _PROOFS[key]))
    except ConfigError:
        shut_down(env)
        raise
