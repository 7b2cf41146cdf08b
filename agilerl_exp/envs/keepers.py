"""How the state of a vector environment is saved and restored: by replay of each copy, or by its own arrays.

Must not know: how environments are made, what the loop does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from agilerl_exp.envs import plain
from agilerl_exp.envs.observations import Tree

Loaded = tuple[Any, dict[str, Any], np.ndarray]
"""Batched observations, batched infos, and which running episodes were lost (N,)."""

_PROOF_STEPS = 64


class Keeper:
    """How the state of a vector environment is saved and restored; this one does not."""

    kind = "none"
    exact = False
    """Whether a restored run continues byte for byte, as far as is known: proved at the first save."""

    def save(self, obs: Tree, mask: np.ndarray | None) -> list[str] | None:
        """The state as texts, given what was last handed to the loop."""
        return None

    def load(self, texts: list[str]) -> Loaded | None:
        """Restore; None when it cannot."""
        return None


class ReplayKeeper(Keeper):
    """For SyncVectorEnv and AsyncVectorEnv over `Replayable` copies (SAME_STEP: they have no other state).

    Attributes:
        exact: episodes continue byte for byte: True until the proof at the first save or a load fails.
    """

    kind = "replay"

    def __init__(self, env: SyncVectorEnv | AsyncVectorEnv) -> None:
        """Keep the vector environment whose copies are asked."""
        self._env = env
        self._proved = False
        self.exact = True

    def save(self, obs: Tree, mask: np.ndarray | None) -> list[str]:
        """One text a copy."""
        texts = list(self._env.call("save_episode"))
        if not self._proved:
            self._proved = True
            self.exact = self.exact and all(self._env.call("prove"))
        self.exact = self.exact and all(texts)
        return texts

    def load(self, texts: list[str]) -> Loaded:
        """Replay each copy where it lives; those that do not come out the same begin a new episode."""
        done, observations, infos = zip(*self._env.call("restore_episodes", texts), strict=True)
        space = self._env.single_observation_space
        empty: Any = create_empty_array(space, n=len(done), fn=np.zeros)
        batch = concatenate(space, observations, empty)
        info: dict[str, Any] = {}
        for row, given in enumerate(infos):
            info = self._env._add_info(info, given, row)
        cut = ~np.array(done, bool)
        self.exact = self.exact and not cut.any()
        return batch, info, cut


class ArrayKeeper(Keeper):
    """For a vector environment whose whole state is plain attributes and numpy generators; `proves` tells.

    Attributes:
        exact: whether that was proved.
    """

    kind = "arrays"

    def __init__(self, env: VectorEnv, exact: bool) -> None:
        """Keep the vector environment, and what `proves` said about it."""
        self._env = env
        self.exact = exact

    def save(self, obs: Tree, mask: np.ndarray | None) -> list[str]:
        """One text for all copies, with what the loop acts on next."""
        return [plain.pack({"env": _snapshot(self._env), "obs": obs, "mask": mask})]

    def load(self, texts: list[str]) -> Loaded | None:
        """Put the attributes and generators in place; None when the saved state was not exact."""
        if not self.exact:
            return None
        state = plain.unpack(texts[0])
        _put(self._env, state["env"])
        info = {} if state["mask"] is None else {"action_mask": state["mask"]}
        return state["obs"], info, np.zeros(self._env.num_envs, bool)


def proves(make: Callable[[], VectorEnv]) -> bool:
    """Whether a copy of a vector environment, given the snapshot of another, continues byte for byte.

    Runs random actions before and after the snapshot, so that episodes of usual length end on both sides.
    """
    first, second = make(), make()
    try:
        first.action_space.seed(0)
        actions = [first.action_space.sample() for _ in range(2 * _PROOF_STEPS)]
        first.reset(seed=0)
        for action in actions[:_PROOF_STEPS]:
            first.step(action)
        _put(second, plain.unpack(plain.pack(_snapshot(first))))
        return all(
            plain.pack(first.step(action)[:4]) == plain.pack(second.step(action)[:4])
            for action in actions[_PROOF_STEPS:]
        )
    except Exception:  # whatever it raises, it is not proved
        return False
    finally:
        first.close()
        second.close()


def _snapshot(env: VectorEnv) -> dict[str, Any]:
    return {"memory": plain.memory(env, max_bytes=2**40), "generators": plain.generators(env)}


def _put(env: VectorEnv, snapshot: dict[str, Any]) -> None:
    env.reset(seed=0)  # makes the generators
    plain.recall(env, snapshot["memory"])
    plain.wind(env, snapshot["generators"])
