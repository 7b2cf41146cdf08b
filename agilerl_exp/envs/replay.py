"""Episodes that survive a kill: what has to be kept of a running one, and how it is rebuilt from that.

An environment as a whole cannot be saved (Box2D worlds, simulators). What determines a running episode can:
what the environment remembered and its random generators before the last reset, that reset, and the actions
since. Restoring builds a new environment, puts these in place, repeats the actions, and then compares.
Must not know: vector environments, processes, members.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl_exp.envs import plain
from agilerl_exp.envs.observations import in_words
from agilerl_exp.errors import EnvError

MAX_ACTIONS = 100_000
"""Actions kept of one episode; a longer one cannot be restored exactly."""

_NO_INFO: dict[str, Any] = {}


class Replayable(gym.Wrapper):
    """The outermost wrapper of each copy.

    Passes on only `action_mask` of the infos, as a uint8 array (others cost a message, or break the batching
    of gymnasium), copies the last observation of an episode before the environment can reuse its memory, and
    turns an exception into an EnvError whose text holds the traceback.

    Args:
        make: builds the environment.
        member: named in errors.
        index: number of this copy among those of the member.
    """

    def __init__(self, make: Callable[[], gym.Env], member: int, index: int) -> None:
        """Build the environment."""
        super().__init__(make())
        self._make = make
        self._member = member
        self._index = index
        self._begun = False
        self._first_seed: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and a new record of it."""
        if not self._begun:
            self._first_seed = seed
            self._fresh = plain.memory(self.env)
        self._memory = plain.memory(self.env)
        self._generators = plain.generators(self.env)
        self._first = not self._begun
        self._reset = {"seed": seed, "options": options}
        self._actions: list[Any] | None = []
        self._return = 0.0
        self._begun = True
        if seed is not None:
            plain.seed_spaces(self.env, seed)
        try:
            self._obs, info = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._failure("reset", error) from None
        return self._obs, _only_mask(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step and record the action."""
        if self._actions is not None:
            self._actions.append(np.array(action) if isinstance(action, np.ndarray) else action)
            if len(self._actions) > MAX_ACTIONS:
                self._actions = None
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise self._failure("step", error) from None
        try:
            self._return += float(reward)
        except (TypeError, ValueError):
            where = f"member {self._member}, env {self._index}"
            raise EnvError(
                f"{where}: step() gave the reward {in_words(reward)}; it must be a number"
            ) from None
        if terminated or truncated:
            obs = copy.deepcopy(obs)  # the reset that follows may reuse its memory
        self._obs = obs
        return obs, reward, terminated, truncated, _only_mask(info)  # type: ignore[return-value]

    def save_episode(self) -> str:
        """The running episode as text; empty when it cannot be rebuilt from what was kept."""
        if self._actions is None:
            return ""
        changed = {
            path: value
            for path, value in self._memory.items()
            if (fresh := self._fresh.get(path, plain)) is not value
            and (fresh is plain or plain.pack(value) != plain.pack(fresh))
        }
        try:
            state = {
                "first": self._first,
                "first_seed": self._first_seed,
                "reset": self._reset,
                "memory": {} if self._first else changed,  # the first reset is seeded and depends on neither
                "before": {} if self._first else self._generators,
                "actions": _packed_actions(self._actions),
                "outcome": self._outcome(),
            }
            return plain.pack(state)
        except TypeError:  # reset options, actions or observations of a kind that no text can hold
            return ""

    def restore_episodes(self, texts: list[str]) -> tuple[bool, Any, dict[str, Any]]:
        """Continue the episode that this copy saved, one of all copies'.

        Where replay does not lead to the saved observation, return and generators, a new episode begins.

        Returns:
            Whether it could, observation, info.
        """
        text = texts[self._index]
        state = plain.unpack(text) if text else None
        if state is not None:
            with contextlib.suppress(EnvError):
                obs, info = self._replay(state)
                if self._outcome() == state["outcome"]:
                    return True, obs, info
        return False, *self._start_over(state)

    def prove(self) -> bool:
        """Whether a second environment, built here, can continue the running episode (asked of copy 0)."""
        if self._index > 0:
            return True
        try:
            twin = Replayable(self._make, self._member, self._index)
        except Exception:  # whatever a second one raises, e.g. a port that is taken
            return False
        ok = twin.restore_episodes([self.save_episode()])[0]
        twin.close()
        return ok

    def _replay(self, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._rebuild()
        if not state["first"]:
            fresh = plain.memory(self.env)
            # environments make their generators in their first reset
            self.reset(seed=state["first_seed"])
            plain.recall(self.env, {**fresh, **state["memory"]})
            plain.wind(self.env, state["before"])
        obs, info = self.reset(**state["reset"])
        for action in state["actions"]:
            obs, _, _, _, info = self.step(action)
        return obs, info

    def _start_over(self, state: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._rebuild()
        obs, info = self.reset(seed=None if state is None else state["first_seed"])
        if state is not None:
            # go on drawing where the lost episode stood, not with the first episode once more
            plain.wind(self.env, state["outcome"]["generators"])
            obs, info = self.reset()
        return obs, info

    def _rebuild(self) -> None:
        if self._begun:
            self.env.close()
            self.env = self._make()
            self._begun = False

    def _outcome(self) -> dict[str, Any]:
        """What a replay must reproduce."""
        digest = hashlib.sha256(plain.pack(self._obs).encode()).hexdigest()
        return {"obs": digest, "return": self._return, "generators": plain.generators(self.env)}

    def _failure(self, call: str, error: Exception) -> EnvError:
        text = "".join(traceback.format_exception(error)).rstrip()
        name = type(error).__name__
        return EnvError(f"member {self._member}, env {self._index}: {call}() raised {name}: {error}\n{text}")


def _only_mask(info: dict[str, Any]) -> dict[str, Any]:
    mask = info.get("action_mask")
    return _NO_INFO if mask is None else {"action_mask": np.array(mask, np.uint8)}


def _packed_actions(actions: list[Any]) -> Any:
    """One array where all actions are arrays of one kind, otherwise the list."""
    if actions and all(isinstance(action, np.ndarray | np.generic) for action in actions):
        return np.stack(actions)
    return actions
