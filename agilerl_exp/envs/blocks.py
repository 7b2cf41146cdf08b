"""The environments of all members as the loop sees them: one block a member.

Must not know: who acts, what becomes of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl_exp.envs.adapter import MemberEnvs, Restored, Step, step_all
from agilerl_exp.envs.observations import Tree, stack, walk
from agilerl_exp.errors import ConfigError


class Blocks:
    """One vector environment a member: its data do not depend on the other members."""

    together = False
    """Whether no member can wait while others step."""

    def __init__(self, blocks: Sequence[MemberEnvs]) -> None:
        self.blocks = list(blocks)
        for i, block in enumerate(self.blocks):
            for name in ("num_envs", "observation_space", "action_space"):
                first, own = getattr(self.blocks[0], name), getattr(block, name)
                if own != first:
                    raise ConfigError(
                        f"env({i}): {name} is {own}, that of env(0) {first}; give all members the same"
                    )
        self.num_envs = self.blocks[0].num_envs
        self.observation_space = self.blocks[0].observation_space
        self.action_space = self.blocks[0].action_space

    @property
    def exact(self) -> bool:
        """Whether a restored run continues byte for byte."""
        return all(block.exact for block in self.blocks)

    def reset(self) -> tuple[Tree, np.ndarray | None]:
        """Start new episodes everywhere; returns observations (P, N, ...) and masks (P, N, A) or None."""
        obs, mask = stack([block.reset() for block in self.blocks])
        return obs, mask

    def step(self, members: np.ndarray, actions: np.ndarray) -> Step:
        """Step the blocks of `members` (R,) with actions (R, N, ...); leading axes (R, N)."""
        return step_all([self.blocks[i] for i in members.tolist()], actions)

    def state_dict(self) -> dict[str, Any]:
        """The running episodes of each member."""
        return {str(i): block.state_dict() for i, block in enumerate(self.blocks)}

    def load_state_dict(self, state: dict[str, Any]) -> Restored:
        """Continue the saved episodes; leading axes (P, N)."""
        return Restored(*stack([block.load_state_dict(state[str(i)]) for i, block in enumerate(self.blocks)]))

    def close(self) -> None:
        """Close all blocks."""
        for block in self.blocks:
            block.close()


class Split(Blocks):
    """One vector environment of P * N copies, divided in blocks, which all step at once."""

    together = True

    def __init__(self, whole: MemberEnvs, pop: int) -> None:
        if whole.num_envs % pop:
            raise ConfigError(
                f"env: {whole.num_envs} copies cannot be divided among {pop} members; give a multiple of {pop}"
            )
        super().__init__([whole])
        self.num_envs = whole.num_envs // pop
        self._lead = pop, self.num_envs

    def _split(self, parts: tuple[Tree, ...]) -> tuple[Tree, ...]:
        """Leading axes (1, P * N) as (P, N)."""
        return walk(lambda leaf: None if leaf is None else leaf.reshape(*self._lead, *leaf.shape[2:]), parts)

    def reset(self) -> tuple[Tree, np.ndarray | None]:
        """Start new episodes everywhere."""
        obs, mask = self._split(super().reset())
        return obs, mask

    def step(self, members: np.ndarray, actions: np.ndarray) -> Step:
        """Step all copies with actions (P, N, ...); members are all P."""
        whole = step_all(self.blocks, actions.reshape(1, -1, *actions.shape[2:]))
        return Step(*self._split(whole))

    def load_state_dict(self, state: dict[str, Any]) -> Restored:
        """Continue the saved episodes; leading axes (P, N)."""
        return Restored(*self._split(super().load_state_dict(state)))


def blocks_of(
    env: VectorEnv | Callable[[int], VectorEnv | MemberEnvs], pop: int, seeds: Callable[[int, int], list[int]]
) -> Blocks:
    """The blocks of what a library user gives: a callable member -> VectorEnv, or one VectorEnv.

    Args:
        env: what was given; a MemberEnvs keeps its own seeds.
        pop: number of members.
        seeds: from (member, number of copies) to one seed a copy.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(env, VectorEnv):
        each = [seed for i in range(pop) for seed in seeds(i, env.num_envs // pop)]
        return Split(MemberEnvs(env, each), pop)
    if not callable(env):
        raise ConfigError(f"env={type(env).__name__}: give a callable member -> VectorEnv, or one VectorEnv")
    made = [env(i) for i in range(pop)]
    return Blocks(
        [
            m if isinstance(m, MemberEnvs) else MemberEnvs(m, seeds(i, m.num_envs), i)
            for i, m in enumerate(made)
        ]
    )
