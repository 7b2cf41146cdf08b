"""Environments given as tables, with their action values worked out by hand. The product never imports this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

END = True
"""Third entry of a move: the episode is over by termination."""


@dataclass(frozen=True)
class Probe:
    """A deterministic task: `moves[state][action] = (reward, next state[, END])`.

    A move that ends the episode still names the state that is seen then, on purpose one of high value.
    """

    moves: Sequence[Sequence[tuple[Any, ...]]]
    q: Sequence[Sequence[float]]
    """Optimal values [state][action]; nan where illegal."""
    gamma: float
    observations: Sequence[Any]
    space: spaces.Space = field(default_factory=lambda: spaces.Box(-2e3, 2e3, (1,), np.float32))
    starts: Sequence[int] = (0,)
    """First states of successive episodes, cyclically."""
    limit: int | None = None
    """Steps after which an episode is truncated."""
    legal: Sequence[Sequence[int]] | None = None
    """Masks [state][action]."""
    action_start: int = 0
    bonus: Sequence[float] = (0.0,)
    """Added to the rewards of successive episodes, cyclically."""

    def bellman(self, gamma: float | None = None, rounds: int = 2000) -> np.ndarray:
        """The values found by iterating the Bellman equation: an independent check of `q`."""
        gamma = self.gamma if gamma is None else gamma
        legal = np.ones(np.shape(self.q), bool) if self.legal is None else np.array(self.legal, bool)
        q = np.zeros(legal.shape)
        for _ in range(rounds):
            best = np.where(legal, q, -np.inf).max(1)
            for state, row in enumerate(self.moves):
                for action, (reward, after, *end) in enumerate(row):
                    q[state, action] = reward + np.mean(self.bonus) + (0 if end else gamma * best[after])
        return np.where(legal, q, np.nan)

    def vector(self, num_envs: int = 8, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
        """Copies of the task."""
        return SyncVectorEnv([lambda: TableEnv(self)] * num_envs, autoreset_mode=mode)


class TableEnv(gym.Env):
    """Plays a `Probe`; an illegal action raises."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.observation_space = probe.space
        self.action_space = spaces.Discrete(len(probe.moves[0]), start=probe.action_start)
        self.episode = -1
        self.state = self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.state, self.t = self.probe.starts[self.episode % len(self.probe.starts)], 0
        return self.look()

    def step(self, action):
        action = int(action) - self.probe.action_start
        if self.probe.legal is not None and not self.probe.legal[self.state][action]:
            raise ValueError(f"action {action} is illegal in state {self.state}")
        reward, self.state, *end = self.probe.moves[self.state][action]
        reward += self.probe.bonus[self.episode % len(self.probe.bonus)]
        self.t += 1
        obs, info = self.look()
        return obs, float(reward), bool(end), self.t == self.probe.limit, info

    def look(self):
        seen = self.probe.observations[self.state]
        info = (
            {}
            if self.probe.legal is None
            else {"action_mask": np.array(self.probe.legal[self.state], np.int8)}
        )
        return seen if isinstance(seen, dict | tuple | int) else np.array(seen, self.probe.space.dtype), info


def stacked(probe: Probe) -> Any:
    """The observations of all states as one batch."""
    if isinstance(probe.space, spaces.Dict):
        return {key: np.array([seen[key] for seen in probe.observations]) for key in probe.space}
    if isinstance(probe.space, spaces.Tuple):
        return tuple(np.array(part) for part in zip(*probe.observations, strict=True))
    return np.array(probe.observations)


nan = float("nan")

REWARD_ONLY = Probe([[(1, 0, END), (1, 0, END)]], [[1, 1]], 0.9, [[1.0]])

ACTION_VALUE = Probe([[(0, 0, END), (1, 0, END)]], [[0, 1]], 0.99, [[1.0]])

OBSERVATION = Probe(
    [[(-1, 1, END)] * 2, [(1, 1, END)] * 2], [[-1, -1], [1, 1]], 0.9, [[-1.0], [1.0]], starts=(0, 1)
)

OBSERVATION_AND_ACTION = Probe(
    [[(1, 0, END), (-1, 0, END)], [(-1, 1, END), (1, 1, END)]],
    [[1, -1], [-1, 1]],
    0.9,
    [[-1.0], [1.0]],
    starts=(0, 1),
)

# Nothing now, then the choice between 0 and 1: the choice is worth 1, the step before it gamma.
TWO_STEPS = Probe([[(0, 1)] * 2, [(0, 1, END), (1, 1, END)]], [[0.5, 0.5], [0, 1]], 0.5, [[-1.0], [1.0]])

# Reward 1 for ever, looked at in pieces of 10 steps: 1 / (1 - 0.9).
ALWAYS_TRUNCATES = Probe([[(1, 0)] * 2], [[10, 10]], 0.9, [[1.0]], limit=10)

# The same with a true end after 4 steps: 1, 1.9, 2.71, 3.439.
TERMINATES = Probe(
    [*([(1, t + 1)] * 2 for t in range(3)), [(1, 0, END)] * 2],
    [[3.439] * 2, [2.71] * 2, [1.9] * 2, [1.0] * 2],
    0.9,
    np.eye(4).tolist(),
    space=spaces.Box(0, 1, (4,), np.float32),
)

# A ring of 4 states that pays 4 in the last; cut after 6 steps in state 2, begun in state 0. V(3) = 4 / (1 - 0.7**4).
_V3 = 4 / (1 - 0.7**4)
CYCLE = Probe(
    [[(0, 1)] * 2, [(0, 2)] * 2, [(0, 3)] * 2, [(4, 0)] * 2],
    [[0.343 * _V3] * 2, [0.49 * _V3] * 2, [0.7 * _V3] * 2, [_V3] * 2],
    0.7,
    np.eye(4).tolist(),
    space=spaces.Box(0, 1, (4,), np.float32),
    limit=6,
)

# States 1 and 2 look the same, and only the mask tells which action is left: one pays 1, the other 10.
# A target that takes the maximum over all actions makes action 0 of state 0 worth 5.
MASKED = Probe(
    [[(0, 1), (0, 2)], [(1, 1, END), (99, 1, END)], [(99, 2, END), (10, 2, END)]],
    [[0.5, 5], [1, nan], [nan, 10]],
    0.5,
    [[-1.0], [1.0], [1.0]],
    legal=[[1, 1], [1, 0], [0, 1]],
)

# Discrete(start) observations and actions, and a Dict; state s pays s for the first action, nothing for the second.
DISCRETE_START = Probe(
    [[(s, s, END), (0, s, END)] for s in range(3)],
    [[0, 0], [1, 0], [2, 0]],
    0.9,
    [-1, 0, 1],
    space=spaces.Discrete(3, start=-1),
    starts=(0, 1, 2),
    action_start=5,
)

DICT = Probe(
    [[(s, s, END), (0, s, END)] for s in range(4)],
    [[0, 0], [1, 0], [2, 0], [3, 0]],
    0.9,
    [
        {
            "place": np.int64(4 + s % 2),
            "flags": np.array([s // 2, 1], np.int8),
            "far": np.zeros(2, np.float32),
        }
        for s in range(4)
    ],
    space=spaces.Dict(
        place=spaces.Discrete(2, start=4),
        flags=spaces.MultiBinary(2),
        far=spaces.Box(-1, 1, (2,), np.float32),
    ),
    starts=(0, 1, 2, 3),
)

TUPLE = Probe(
    [[(s, s, END), (0, s, END)] for s in range(4)],
    [[0, 0], [1, 0], [2, 0], [3, 0]],
    0.9,
    [(np.array([s % 2, 1], np.int64), np.array([s // 2], np.float32)) for s in range(4)],
    space=spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (1,), np.float32))),
    starts=(0, 1, 2, 3),
)


def picture(*bright: tuple[int, int], shape: tuple[int, int, int] = (8, 6, 1)) -> np.ndarray:
    """An image, black but for some points."""
    image = np.zeros(shape, np.uint8)
    for row, column in bright:
        image[row, column] = 255
    return image


# The point tells the state: state s pays s for the first action and leads on; the last one ends.
IMAGE = Probe(
    [[(0, 1), (0, 0, END)], [(1, 2), (0, 1, END)], [(2, 2, END), (0, 2, END)]],
    [[1, 0], [2, 0], [2, 0]],
    0.5,
    [picture((1, 1)), picture((6, 4)), picture((1, 4))],
    space=spaces.Box(0, 255, (8, 6, 1), np.uint8),
    starts=(0, 1, 2),
)

# What pays is in the image for half of the states, and in the flag for the other half.
DICT_WITH_IMAGE = Probe(
    [[(s, s, END), (0, s, END)] for s in range(4)],
    [[0, 0], [1, 0], [2, 0], [3, 0]],
    0.9,
    [
        {
            "cam": picture((1, 1) if s % 2 else (6, 4)),
            "flag": np.array([s // 2], np.float32),
            "far": np.int64(0),
        }
        for s in range(4)
    ],
    space=spaces.Dict(
        cam=spaces.Box(0, 255, (8, 6, 1), np.uint8),
        flag=spaces.Box(0, 1, (1,), np.float32),
        far=spaces.Discrete(2),
    ),
    starts=(0, 1, 2, 3),
)

# The same as OBSERVATION_AND_ACTION far from zero, where a network learns nothing without scaling.
FAR_AWAY = Probe(
    OBSERVATION_AND_ACTION.moves, OBSERVATION_AND_ACTION.q, 0.9, [[1000.0], [1001.0]], starts=(0, 1)
)

# One reward in ten is 1. Prioritized draws without importance weights settle at 0.25 (alpha=1), not at 0.1.
RARE = Probe([[(0, 0, END)] * 2], [[0.1, 0.1]], 0.9, [[1.0]], bonus=(1.0, *[0.0] * 9))
