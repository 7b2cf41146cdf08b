"""The vector environments of members behind one contract, whichever way they reset their copies.

Owns autoreset, masks, dtypes, Discrete(start), the check for NaN and the seeding rule.
Must not know: how environments are made, who the member is, what becomes of a transition.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from agilerl_exp.envs import observations
from agilerl_exp.envs.keepers import Keeper
from agilerl_exp.envs.observations import Tree
from agilerl_exp.envs.workers import diagnose, shut_down
from agilerl_exp.errors import CheckpointError, ConfigError, EnvError


class Step(NamedTuple):
    """What one vector step brought; N copies, or leading axes (R, N) where R members step together.

    `next_obs` is the true last observation of the step, `obs` what to act on next; they share memory unless
    an episode ended here. Nothing aliases the memory of the environment.
    """

    reward: np.ndarray
    """float32 (N,)."""
    terminated: np.ndarray
    """bool (N,); wins when the environment reports both flags."""
    truncated: np.ndarray
    """bool (N,); never True together with `terminated`."""
    next_obs: Tree
    next_mask: np.ndarray | None
    """uint8 (N, A), the legal actions at `next_obs`; None when the environment gives no masks."""
    obs: Tree
    mask: np.ndarray | None
    valid: np.ndarray
    """bool (N,); False on the slot of a copy that only reset itself: no transition."""


class Restored(NamedTuple):
    """Where a restored environment stands: what to act on, and which running episodes were lost."""

    obs: Tree
    mask: np.ndarray | None
    cut: np.ndarray
    """bool (N,); True where a new episode had to begin: the one before it counts as truncated."""


class MemberEnvs:
    """A gymnasium VectorEnv as the training loop sees it.

    Takes vector environments in NEXT_STEP mode (their reset slots come out with `valid` False) and in
    SAME_STEP mode (they must give `final_obs`). Only the first reset is seeded.

    Args:
        vector_env: the environment; closed by `close`.
        seeds: one seed a copy; a vector environment that takes a single seed gets the first. None: unseeded.
        member: named in errors.
        keeper: saves and restores the environment; None: episodes do not survive a checkpoint.

    Raises:
        ConfigError: autoreset is disabled or not declared.
        SpaceError: the observation space cannot be stored.
    """

    def __init__(
        self,
        vector_env: VectorEnv,
        seeds: Sequence[int] | None = None,
        member: int = 0,
        keeper: Keeper | None = None,
    ) -> None:
        """Adapt a vector environment; nothing is reset yet."""
        self._env = vector_env
        self.time_limit: int | None = getattr(vector_env.spec, "max_episode_steps", None)
        """Env steps of an episode that the environment's registration declares."""
        self._next_step = _autoreset(vector_env) is AutoresetMode.NEXT_STEP
        self._copies = isinstance(vector_env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._seeds = None if seeds is None else [int(seed) for seed in seeds]
        self._member = member
        self._keeper = keeper or Keeper()
        self.num_envs: int = vector_env.num_envs
        self.observation_space: spaces.Space = deepcopy(vector_env.single_observation_space)
        # copies: drawing from these must not move the generators of the environment
        self.action_space: spaces.Space = deepcopy(vector_env.single_action_space)
        self._leaves = observations.leaves(self.observation_space)
        self._write = _action_writer(self.action_space)
        self._obs: Tree = None
        self._mask: np.ndarray | None = None
        self._mask_shape: tuple[int, ...] | None = None
        self._ended = np.zeros(self.num_envs, bool)
        self._steps = 0

    @property
    def exact(self) -> bool:
        """Whether a restored run continues byte for byte, as far as is known: proved at the first save."""
        return self._keeper.exact

    def reset(self) -> tuple[Tree, np.ndarray | None]:
        """Start new episodes in all copies; returns (observations (N, ...), masks uint8 (N, A) or None).

        Raises:
            EnvError: the environment raised, died or returned NaN/Inf.
        """
        seeds, self._seeds = self._seeds, None
        seed = seeds if self._copies or seeds is None else seeds[0]
        return self._begin(*self._guard(self._env.reset, seed=seed))

    def restart(self, which: np.ndarray) -> tuple[Tree, np.ndarray | None] | None:
        """Start new episodes in the copies of `which` (bool (N,)) only; None when that cannot be done."""
        if not self._copies:
            return None
        old = self._mask
        obs, mask = self._begin(*self._guard(self._env.reset, options={"reset_mask": which}))
        if mask is not None and old is not None:
            mask[~which] = old[~which]
        return obs, mask

    def step(self, action: np.ndarray) -> Step:
        """Step all copies; `action` counts from 0 whatever the start of a discrete space.

        Raises:
            EnvError: the environment raised, died, returned NaN/Inf, or ended an episode without `final_obs`.
        """
        return Step(*(observations.take(part, 0) for part in step_all([self], [action])))

    def state_dict(self) -> dict[str, Any]:
        """The running episodes as JSON values; the first call proves once that they can be restored.

        Raises:
            EnvError: the environment raised or died.
        """
        copies = None
        if self._obs is not None:
            copies = self._guard(self._keeper.save, self._obs, self._mask)
        return {
            "num_envs": self.num_envs,
            "steps": self._steps,
            "started": self._obs is not None,
            "ended": self._ended.tolist(),
            "kind": self._keeper.kind,
            "copies": copies,
        }

    def load_state_dict(self, state: dict[str, Any]) -> Restored:
        """Continue the saved episodes, instead of a first `reset`.

        An episode that cannot be restored is replaced by a new one, marked in `cut`, with one RuntimeWarning.

        Raises:
            CheckpointError: the state belongs to another number of copies.
            EnvError: as `reset`.
        """
        if state["num_envs"] != self.num_envs:
            raise CheckpointError(
                f"env.num_envs={self.num_envs}: the checkpoint has {state['num_envs']}; use that number"
            )
        self._steps = int(state["steps"])
        loaded = None
        if state["copies"] is not None and state["kind"] == self._keeper.kind:
            loaded = self._guard(self._keeper.load, list(state["copies"]))
        if loaded is None:
            if state["started"] and self._seeds is not None:  # not the first episodes of the run once more
                self._seeds = [(seed + 1 + self._steps) % 2**31 for seed in self._seeds]
            obs, mask = self.reset()
            cut = np.full(self.num_envs, bool(state["started"]))
        else:
            raw, info, cut = loaded
            self._seeds = None
            obs, mask = self._begin(raw, info)
            self._ended = np.array(state["ended"], bool) & ~cut
        if cut.any():
            warnings.warn(
                "some environments could not be restored exactly: their running episodes end as truncated "
                "and new ones begin, so this run is not byte-identical to an uninterrupted one",
                RuntimeWarning,
                stacklevel=2,
            )
        return Restored(obs, mask, cut)

    def close(self) -> None:
        """Close the environment and end its workers; safe to call twice."""
        shut_down(self._env)

    def _guard(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call into the environment; whatever it raises comes out as an EnvError that names the member."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            raise diagnose(self._env, error, self._member) from error

    def _begin(self, raw: Any, info: dict[str, Any]) -> tuple[Tree, np.ndarray | None]:
        """Take over the observations and masks of a reset."""
        if self._obs is None and "action_mask" in info:
            self._mask_shape = self._shape_of_masks(info["action_mask"])
        self._obs, self._mask = self._empty()
        self._read(self._obs, self._mask, raw, info)
        self._ended = np.zeros(self.num_envs, bool)
        _check([self], observations.take(self._obs, None), "observation")
        return self._obs, self._mask

    def _shape_of_masks(self, masks: Any) -> tuple[int, ...]:
        shape = np.shape(masks)
        if isinstance(self.action_space, spaces.Discrete) and shape != (self.num_envs, self.action_space.n):
            raise EnvError(
                f"member {self._member}: info['action_mask'] has shape {shape[1:]}; "
                f"give one entry for each of the {self.action_space.n} actions"
            )
        return shape

    def _empty(self, *lead: int) -> tuple[Tree, np.ndarray | None]:
        """Room for observations and masks with the leading axes (*lead, N)."""
        mask = None if self._mask_shape is None else np.empty((*lead, *self._mask_shape), np.uint8)
        return observations.empty(self._leaves, (*lead, self.num_envs)), mask

    def _read(self, obs: Tree, mask: np.ndarray | None, raw: Any, info: dict[str, Any]) -> None:
        """Copy observations and masks (N, A); a copy that gave no mask this time has every action legal."""
        observations.put(obs, ..., raw)
        given = info.get("action_mask")
        if mask is not None:
            mask[...] = 1
            if given is not None:
                rows = info.get("_action_mask", slice(None))
                mask[rows] = np.asarray(given)[rows]
        elif given is not None:
            raise EnvError(
                f"member {self._member}: step() gives info['action_mask'], reset() does not; give both"
            )

    def _read_step(self, step: Step, row: int, action: Any) -> dict[str, Any]:
        """Step, and write what came into row `row` of `step`; returns the infos."""
        came = self._env.step(self._write(action))
        raw, step.reward[row], step.terminated[row], step.truncated[row], info = came
        self._steps += 1
        np.logical_not(self._ended, out=step.valid[row])
        self._obs, self._mask = observations.take(step.obs, row), observations.take(step.mask, row)
        self._read(self._obs, self._mask, raw, info)
        return info

    def _read_last(
        self, seen: tuple[Tree, np.ndarray | None], ended: np.ndarray, info: dict[str, Any]
    ) -> None:
        """SAME_STEP: put the last observations and masks of ended episodes in the place of first ones."""
        obs, mask = seen
        final = info.get("final_obs")
        for row in np.flatnonzero(ended).tolist():
            if final is None or (isinstance(final, np.ndarray) and final[row] is None):
                why: str | Exception = (
                    "an episode ended without info['final_obs']; in SAME_STEP mode a vector env must give "
                    "the last observation there (or use NEXT_STEP)"
                )
                if self._copies:  # gymnasium handed on what the environment gave
                    why = observations.misfit(self.observation_space, None) or why
                raise EnvError(f"member {self._member}, env {row}: {why}")
            try:
                observations.put(obs, row, observations.take(final, row))
            except Exception as error:
                why = observations.misfit(self.observation_space, final[row]) or error
                raise EnvError(f"member {self._member}, env {row}: {why}") from error
            if mask is not None:
                last = _final_mask(info.get("final_info"), row)
                mask[row] = 1 if last is None else last


def step_all(members: Sequence[MemberEnvs], actions: Sequence[Any] | np.ndarray) -> Step:
    """Step R members of equal spaces with actions (R, N, ...); the checks are made once for all.

    Raises:
        EnvError: as `MemberEnvs.step`.
    """
    shape = len(members), members[0].num_envs
    obs, mask = members[0]._empty(len(members))
    reward, flags = np.empty(shape, np.float32), np.empty((3, *shape), bool)
    terminated, truncated, valid = flags
    step = Step(reward, terminated, truncated, obs, mask, obs, mask, valid)
    infos = [m._guard(m._read_step, step, row, actions[row]) for row, m in enumerate(members)]
    np.greater(truncated, terminated, out=truncated)
    if np.count_nonzero(valid) < valid.size:
        reward[~valid] = 0.0
        flags[:2] &= valid
    _check(members, reward, "reward")
    ended = terminated | truncated
    late = [row for row, m in enumerate(members) if not m._next_step and np.count_nonzero(ended[row])]
    if late:  # SAME_STEP: the observations are those of new episodes already
        last = observations.walk(lambda leaf: None if leaf is None else leaf.copy(), (obs, mask))
        for row in late:
            members[row]._read_last(observations.take(last, row), ended[row], infos[row])
        _check(members, last[0], "observation")
        step = step._replace(next_obs=last[0], next_mask=last[1])
    for row, m in enumerate(members):
        if m._next_step:
            m._ended = ended[row]
    _check(members, obs, "observation")
    return step


def _check(members: Sequence[MemberEnvs], tree: Tree, what: str) -> None:
    """Refuse NaN and Inf in a tree with leading axes (R, N)."""
    if observations.finite(tree):
        return
    places = np.ndindex(len(members), members[0].num_envs)
    row, env = next(place for place in places if not observations.finite(observations.take(tree, place)))
    raise EnvError(
        f"member {members[row]._member}, env {env}: {what} is not finite at vector step "
        f"{members[row]._steps}: {observations.take(tree, (row, env))}; nothing was learned from it"
    )


def _autoreset(vector_env: VectorEnv) -> AutoresetMode:
    declared = (vector_env.metadata or {}).get("autoreset_mode")
    mode = AutoresetMode(declared) if isinstance(declared, str) else declared
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        raise ConfigError(
            f"vector env metadata['autoreset_mode']={getattr(mode, 'name', mode)}: must be "
            "AutoresetMode.NEXT_STEP or AutoresetMode.SAME_STEP"
        )
    return mode


def _action_writer(space: spaces.Space) -> Callable[[Any], Any]:
    """From actions that count from 0 to what the environment takes, in the dtype of its space, as a copy."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return lambda action: np.add(action, space.start, dtype=space.dtype)
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return lambda action: np.array(action, space.dtype)
    return lambda action: action


def _final_mask(final_info: Any, row: int) -> np.ndarray | None:
    """The mask at the last observation, from batched infos or from an array with one info a copy."""
    if final_info is None:
        return None
    if isinstance(final_info, dict):
        masks, given = final_info.get("action_mask"), final_info.get("_action_mask")
        return None if masks is None or (given is not None and not given[row]) else masks[row]
    return (final_info[row] or {}).get("action_mask")
