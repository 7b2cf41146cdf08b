"""From an EnvSpec to the environment of one member.

Must not know: training, populations, configuration files.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import partial

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from agilerl_exp.envs import plain
from agilerl_exp.envs.adapter import MemberEnvs
from agilerl_exp.envs.episodes import ENDLESS
from agilerl_exp.envs.keepers import ArrayKeeper, ReplayKeeper, proves
from agilerl_exp.envs.observations import leaves
from agilerl_exp.envs.replay import Replayable
from agilerl_exp.envs.source import build_vector, builder
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
    asked, auto = spec.vectorization == "entry_point", spec.vectorization == "auto"
    if asked or (auto and len(seeds) >= _ENTRY_POINT_FROM and spec.id is not None and not spec.wrappers):
        try:
            return _entry_point(spec, seeds, member)
        except ConfigError:
            if asked:
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


def refuse_endless(spec: EnvSpec) -> None:
    """Try whether an episode ends where nothing declares a time limit: with one action all along, as a policy may.

    Where there are action masks it is the first legal action.

    Raises:
        ConfigError: it passes 100,000 steps.
        EnvError: the environment failed.
    """
    env = _copy(builder(spec), 0, 0)
    with contextlib.closing(env):
        if any(isinstance(layer, TimeLimit) for layer in plain.layers(env)):
            return
        env.action_space.seed(0)
        action = env.action_space.sample()
        _, info = env.reset(seed=0)
        for _ in range(ENDLESS):
            mask = info.get("action_mask")
            legal = action if mask is None else getattr(env.action_space, "start", 0) + mask.argmax()
            _, _, terminated, truncated, info = env.step(legal)
            if terminated or truncated:
                return
    raise ConfigError(
        f"training.eval_steps=null: an episode of {spec.name} passed {ENDLESS:,} steps and no time limit is declared; "
        "give training.eval_steps, the cap of one evaluation episode"
    )


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
