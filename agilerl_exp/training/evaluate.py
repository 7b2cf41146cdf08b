"""Greedy scores on environments of their own; evaluating never changes training.

Must not know: what the scores decide.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from agilerl_exp.envs import MemberEnvs, play, take
from agilerl_exp.errors import ConfigError
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.population.population import Population

MakeBlock = Callable[[int, int, int], MemberEnvs]
"""(member, generation, episodes) -> the environments of one evaluation."""


class Evaluator:
    """Plays exactly `episodes` greedy episodes a member.

    Args:
        make: environments of a member, made anew for each evaluation and closed after it.
        episodes: a member.
        max_steps: cap of one episode; None plays until it is done.
    """

    def __init__(self, make: MakeBlock, episodes: int, max_steps: int | None):
        self.make, self.episodes, self.max_steps = make, episodes, max_steps

    def __call__(self, population: Population, generation: int) -> tuple[np.ndarray, int]:
        """Returns of all members `(P, episodes)`, and the env steps played."""
        members = np.arange(len(population))
        blocks = [self.make(i, generation, self.episodes) for i in members.tolist()]
        agent, zeros = population.agents[0], np.zeros(len(population))

        def act(obs: Any, mask: np.ndarray | None) -> np.ndarray:
            out = np.zeros((len(population), blocks[0].num_envs), np.int64)
            for cohort, rows, where in population.parts(members):
                part = obs if rows is None and len(where) == len(members) else take(obs, where)
                out[where] = agent.act(cohort, part, take(mask, where), zeros[where], None, rows)
            return out

        try:
            returns, lengths = play(act, blocks, self.episodes, self.max_steps)
        finally:
            for block in blocks:
                block.close()
        return returns, int(lengths.sum())

    def refuse_endless(self) -> None:
        """Try whether an episode ends under the first legal action all along, as a policy may act.

        An environment that declares a time limit is not tried.

        Raises:
            ConfigError: no cap, and it passes 100,000 steps.
            EnvError: the environment failed.
        """
        with closing(self.make(0, 0, 1)) as block:
            if block.time_limit is not None:
                return
            still = np.zeros((1, block.num_envs), np.int64)
            play(lambda _, mask: still if mask is None else mask.argmax(-1), [block], 1, self.max_steps)


def evaluator_of(
    env: Any,
    eval_env: Callable[[int], Any] | None,
    training: TrainingSpec,
    env_name: str,
    seeds: Callable[..., list[int]],
) -> Evaluator:
    """The evaluator of a library user: from `eval_env`, from `env` when it is callable, or from its registered id.

    Raises:
        ConfigError: `env` is a VectorEnv without a spec, and no `eval_env` is given; or an episode may never end.
    """
    make = eval_env or (None if isinstance(env, VectorEnv) else env)
    if make is None:
        make = _same_id(env, env_name)

    def block(member: int, generation: int, episodes: int) -> MemberEnvs:
        made = make(member)
        if isinstance(made, MemberEnvs):
            return made
        return MemberEnvs(made, seeds(member, made.num_envs, "eval", generation), member)

    evaluator = Evaluator(block, training.eval_loop, training.eval_steps)
    if training.eval_steps is None:
        evaluator.refuse_endless()
    return evaluator


def _same_id(env: VectorEnv, env_name: str) -> Callable[[int], VectorEnv]:
    spec = env.spec
    if spec is None:
        raise ConfigError(f"{env_name}: evaluation needs environments of its own; give eval_env")
    return lambda _: gym.make_vec(spec, num_envs=1, vectorization_mode="sync")
