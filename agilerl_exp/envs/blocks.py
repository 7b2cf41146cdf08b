"""The environments of all members as the loop sees them: one block a member.

Must not know: who acts, what becomes of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl_exp.envs.adapter import MemberEnvs, Step
from agilerl_exp.envs.observations import Tree, take_rows
from agilerl_exp.errors import ConfigError

Seen = tuple[Tree, np.ndarray | None]
"""What a member acts on next: observations (N, ...) and masks (N, A) or None."""


class Blocks:
    """One vector environment a member: its data do not depend on the other members."""

    together = False
    """Whether no member can wait while others step."""

    def __init__(self, blocks: Sequence[MemberEnvs]) -> None:
        self.blocks = list(blocks)
        self.num_envs = self.blocks[0].num_envs
        self.observation_space = self.blocks[0].observation_space
        self.action_space = self.blocks[0].action_space

    @property
    def exact(self) -> bool:
        """Whether a restored run continues byte for byte."""
        return all(block.exact for block in self.blocks)

    def reset(self) -> list[Seen]:
        """Start new episodes everywhere."""
        return [block.reset() for block in self.blocks]

    def step(self, members: np.ndarray, actions: np.ndarray) -> list[Step]:
        """Step the blocks of `members` (R,) with actions (R, N, ...)."""
        return [self.blocks[i].step(actions[k]) for k, i in enumerate(members.tolist())]

    def state_dict(self) -> dict[str, Any]:
        """The running episodes of each member."""
        return {str(i): block.state_dict() for i, block in enumerate(self.blocks)}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[list[Seen], np.ndarray]:
        """Continue the saved episodes; returns what to act on and which were cut (P, N)."""
        restored = [block.load_state_dict(state[str(i)]) for i, block in enumerate(self.blocks)]
        return [(r.obs, r.mask) for r in restored], np.array([r.cut for r in restored])

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
        self._slices = [slice(i * self.num_envs, (i + 1) * self.num_envs) for i in range(pop)]

    def _split(self, obs: Tree, mask: np.ndarray | None) -> list[Seen]:
        return [(take_rows(obs, rows), take_rows(mask, rows)) for rows in self._slices]

    def reset(self) -> list[Seen]:
        """Start new episodes everywhere."""
        return self._split(*self.blocks[0].reset())

    def step(self, members: np.ndarray, actions: np.ndarray) -> list[Step]:
        """Step all copies with actions (P, N, ...); members are all P."""
        step = self.blocks[0].step(actions.reshape(-1, *actions.shape[2:]))
        return [Step(*(take_rows(part, self._slices[i]) for part in step)) for i in members.tolist()]

    def load_state_dict(self, state: dict[str, Any]) -> tuple[list[Seen], np.ndarray]:
        """Continue the saved episodes; returns what to act on and which were cut (P, N)."""
        (seen,), cut = super().load_state_dict(state)
        return self._split(*seen), cut.reshape(len(self._slices), self.num_envs)


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
