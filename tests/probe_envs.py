"""Small environments whose every number is known beforehand. The product never imports this."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Steps(gym.Env):
    """Observation (steps in this episode, episodes before it); reward 1.

    `ends` and `cuts` list the lengths of successive episodes, cyclically: `ends` by termination, `cuts` by
    truncation; both may be given, then both flags are set. With `turns` episodes are counted modulo that.
    """

    action_space: spaces.Space = spaces.Discrete(2)

    def __init__(
        self, ends: list[int] | None = None, cuts: list[int] | None = None, turns: int | None = None
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.ends, self.cuts, self.turns = ends, cuts, turns
        self.t, self.episode = 0, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self.look(), self.info()

    def step(self, action):
        reward = self.reward(action)
        self.t += 1
        return self.look(), reward, self.over(self.ends), self.over(self.cuts), self.info()

    def over(self, lengths: list[int] | None) -> bool:
        return bool(lengths) and self.t >= lengths[self.episode % len(lengths)]

    def look(self) -> Any:
        episode = self.episode % self.turns if self.turns else self.episode
        return np.array([self.t, episode], np.float32)

    def reward(self, action) -> float:
        return 1.0

    def info(self) -> dict[str, Any]:
        return {}


class Lever(Steps):
    """The reward is the action: one-step episodes make it the value of that action."""

    def reward(self, action):
        return float(action)


class Echo(Steps):
    """Observation (what was drawn at the reset, number of seeded resets)."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(cuts=[length])
        self.seeded = 0

    def reset(self, *, seed=None, options=None):
        self.seeded += seed is not None
        super().reset(seed=seed)
        self.drawn = float(np.float32(self.np_random.random()))
        return self.look(), {}

    def look(self):
        return np.array([getattr(self, "drawn", 0.0), self.seeded], np.float32)


class Noisy(Steps):
    """Every step draws; the draw is the reward and part of the observation."""

    def step(self, action):
        self.noise = float(self.np_random.normal())
        return super().step(action)

    def look(self):
        return np.array([getattr(self, "noise", 0.0), self.episode], np.float32)

    def reward(self, action):
        return self.noise + float(np.sum(action))


KINDS = {
    "box": lambda: spaces.Box(-1.0, 1.0, (3,), np.float32),
    "scalar": lambda: spaces.Box(-1.0, 1.0, (), np.float32),
    "double": lambda: spaces.Box(-1.0, 1.0, (2,), np.float64),
    "bytes": lambda: spaces.Box(0, 255, (4, 3, 1), np.uint8),
    "ints": lambda: spaces.Box(-5, 5, (2,), np.int32),
    "discrete": lambda: spaces.Discrete(4, start=2),
    "multidiscrete": lambda: spaces.MultiDiscrete([3, 4]),
    "multidiscrete2d": lambda: spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multibinary": lambda: spaces.MultiBinary(5),
    "multibinary2d": lambda: spaces.MultiBinary([2, 3]),
    "tuple": lambda: spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
    "nested": lambda: spaces.Dict(
        z=spaces.Dict(b=spaces.Box(0.0, 1.0, (2,), np.float32), c=spaces.MultiBinary(3)), a=spaces.Discrete(3)
    ),
}


class Zoo(Steps):
    """Observations drawn from a space of the given kind, which the environment never seeds itself."""

    def __init__(self, kind: str = "box", length: int = 4) -> None:
        super().__init__(cuts=[length])
        self.observation_space = KINDS[kind]()

    def look(self):
        return self.observation_space.sample()


class Camera(Steps):
    """A Dict with an image whose pixels are all t, numbers and a Discrete; or the image alone."""

    def __init__(self, shape: list[int] = (12, 16, 3), alone: bool = False, length: int = 6) -> None:
        super().__init__(cuts=[length])
        self.shape, self.alone = tuple(shape), alone
        cam = spaces.Box(0, 255, self.shape, np.uint8)
        vec = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = cam if alone else spaces.Dict(cam=cam, vec=vec, mode=spaces.Discrete(4))

    def look(self):
        cam = np.full(self.shape, self.t, np.uint8)
        return (
            cam if self.alone else {"cam": cam, "vec": np.zeros(3, np.float32), "mode": np.int64(self.t % 4)}
        )


class Offset(Steps):
    """Actions 5, 6, 7; the reward is the action, anything else raises."""

    action_space = spaces.Discrete(3, start=5)

    def reward(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return float(action)


class Doubles(Steps):
    """float64 observations and actions; remembers the dtype it got as the reward (8 bytes or not)."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(cuts=[length])
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float64)

    def look(self):
        return super().look().astype(np.float64)

    def reward(self, action):
        return float(action.dtype == np.float64 and action.shape == (1,))


class Scratch(Steps):
    """Hands out the same array each time and overwrites it."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(cuts=[length])
        self.board = np.zeros(2, np.float32)

    def look(self):
        self.board[:] = self.t, self.episode
        return self.board


class Legal(Steps):
    """At time t only action t % 4 is legal; at t = `none_at` none is. An illegal action raises."""

    action_space = spaces.Discrete(4)

    def __init__(self, length: int = 6, none_at: int = -1, late: bool = False) -> None:
        super().__init__(cuts=[length])
        self.none_at, self.late = none_at, late

    def info(self):
        mask = np.zeros(4, np.int8)
        mask[self.t % 4] = self.t != self.none_at
        return {} if self.late and self.t == 0 else {"action_mask": mask, "text": "not for the loop"}

    def reward(self, action):
        if action != self.t % 4 and self.t != self.none_at:
            raise ValueError(f"illegal {action}")
        return 1.0


class Clock(Steps):
    """The observation is the number of steps in this episode, modulo `hours`."""

    def __init__(self, ends: list[int] | None = None, cuts: list[int] | None = None, hours: int = 12) -> None:
        super().__init__(ends, cuts)
        self.observation_space = spaces.Discrete(hours)
        self.hours = hours

    def look(self):
        return np.int64(self.t % self.hours)


class Pair(Clock):
    """At time t only t % 5, which pays 1, and the action after it, which pays nothing, are legal."""

    action_space = spaces.Discrete(5)

    def info(self):
        mask = np.zeros(5, np.int8)
        mask[[self.t % 5, (self.t + 1) % 5]] = 1
        return {"action_mask": mask}

    def reward(self, action):
        if action not in (self.t % 5, (self.t + 1) % 5):
            raise ValueError(f"illegal {action} at {self.t}")
        return float(action == self.t % 5)


class Rings(Steps):
    """At its n-th step ever sends the signal to its own process, unless the file `told` says it was done."""

    def __init__(self, n: int, told: str, number: int = 15, cuts: list[int] | None = None) -> None:
        super().__init__(cuts=cuts or [7])
        self.n, self.told, self.number, self.total = n, told, number, 0

    def step(self, action):
        self.total += 1
        if self.total == self.n and not os.path.exists(self.told):
            open(self.told, "x").close()
            os.kill(os.getpid(), self.number)
        return super().step(action)


class Breaks(Steps):
    """At its n-th step ever: raises ("raise"), ends the process ("exit"), gives a bad "reward" or "obs"."""

    def __init__(self, n: int = 5, how: str = "raise", value: str = "nan") -> None:
        super().__init__(cuts=[3])
        self.n, self.how, self.value, self.total = n, how, float(value), 0

    def step(self, action):
        self.total += 1
        bad = self.total >= self.n
        if bad and self.how == "raise":
            raise RuntimeError("100% probe: boom")
        if bad and self.how == "exit":
            os._exit(17)
        obs, reward, *rest = super().step(action)
        if bad and self.how == "obs":
            obs[1] = self.value
        return obs, self.value if bad and self.how == "reward" else reward, *rest


class Fickle(Steps):
    """Observations that no seed determines."""

    def look(self):
        return np.frombuffer(os.urandom(8), np.uint32).astype(np.float32)


class Shy(Steps):
    """Refuses to be built without a colour."""

    def __init__(self, colour: str, size: int = 1) -> None:
        super().__init__(cuts=[3])
        if size < 0:
            raise RuntimeError("size\nmust not be negative")
        self.colour = colour


class Added(gym.RewardWrapper):
    """Adds `extra` to each reward."""

    def __init__(self, env: gym.Env, extra: float = 10.0) -> None:
        super().__init__(env)
        self.extra = extra

    def reward(self, reward):
        return float(reward) + self.extra


class Doubled(gym.RewardWrapper):
    """Twice each reward."""

    def reward(self, reward):
        return 2.0 * float(reward)


class Batch(VectorEnv):
    """Hand-written vector env of 2 copies: episodes of 2 steps in copy 0, of 3 in copy 1; obs = (t, copy).

    Hands out its own arrays and overwrites them. In SAME_STEP mode final_obs comes as `final`: "rows" (an
    array of whole observations), "batch" (one array) or None (left out).
    """

    def __init__(
        self, mode: AutoresetMode | None = AutoresetMode.NEXT_STEP, final: str | None = "rows"
    ) -> None:
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.mode, self.final = mode, final
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.length = np.array([2, 3])
        self.obs = np.zeros((2, 2), np.float32)
        self.flags = np.zeros(2, bool)
        self.t = np.zeros(2, np.int64)

    def look(self) -> np.ndarray:
        self.obs[:, 0], self.obs[:, 1] = self.t, (0, 1)
        return self.obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t[:] = 0
        self.flags[:] = False
        return self.look(), {}

    def step(self, actions):
        old = self.flags.copy()
        self.t += 1
        info: dict[str, Any] = {}
        if self.mode is AutoresetMode.NEXT_STEP:
            self.t[old] = 0
        self.flags[:] = self.t >= self.length
        reward = 100.0 * self.t
        flags = self.flags.copy()
        if self.mode is AutoresetMode.SAME_STEP and self.flags.any():
            last = self.look().copy()
            rows = np.full(2, None, dtype=object)
            for row in np.flatnonzero(flags):
                rows[row] = last[row]
            info = {} if self.final is None else {"final_obs": rows if self.final == "rows" else last}
            self.t[flags] = 0
        return self.look(), reward, flags, flags.copy(), info


class Secretive(CartPoleVectorEnv):
    """A vector entry point with a state where no snapshot finds it."""

    steps_ever: list[int] = []  # noqa: RUF012

    def step(self, action):
        self.steps_ever.append(0)
        obs, reward, *rest = super().step(action)
        return obs, reward + len(self.steps_ever), *rest


def broken(**settings: Any) -> VectorEnv:
    """A vector entry point that does not work."""
    raise ImportError("no accelerator")


KNOWN = (
    Steps,
    Lever,
    Echo,
    Noisy,
    Zoo,
    Camera,
    Offset,
    Doubles,
    Scratch,
    Legal,
    Clock,
    Pair,
    Rings,
    Breaks,
    Fickle,
    Shy,
)


def register() -> None:
    """Make the environments known to gymnasium as probe/Name-v0."""
    for name, vector in (("Secretive", Secretive), ("Broken", broken)):
        if f"probe/{name}-v0" not in gym.registry:
            gym.register(
                f"probe/{name}-v0", entry_point=Steps, vector_entry_point=vector, max_episode_steps=500
            )
    for kind in KNOWN:
        if f"probe/{kind.__name__}-v0" not in gym.registry:
            gym.register(f"probe/{kind.__name__}-v0", entry_point=kind)


register()
