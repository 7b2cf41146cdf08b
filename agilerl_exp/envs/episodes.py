"""Playing whole episodes with a given policy: evaluation.

Must not know: which policy plays, what becomes of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agilerl_exp.envs.adapter import MemberEnvs, step_all
from agilerl_exp.envs.observations import Tree, put, stack
from agilerl_exp.errors import ConfigError

ENDLESS = 100_000
"""Steps after which an episode without a cap is refused."""

Act = Callable[[Tree, np.ndarray | None], np.ndarray]


def play(
    act: Act, blocks: Sequence[MemberEnvs], episodes: int, max_steps: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Play exactly `episodes` episodes in each of P blocks of K copies; all blocks are reset first.

    How many each copy plays is fixed beforehand (episodes // K, one more in the first episodes % K copies),
    unfinished ones are waited for and extra ones dropped, so that short episodes are not favoured.

    Args:
        act: from observations (P, K, ...) and masks (P, K, A) or None to actions (P, K, ...).
        blocks: environments with equal spaces and K.
        episodes: per block.
        max_steps: cap of one episode in steps.

    Returns:
        Returns float64 (P, episodes) and lengths int64 (P, episodes), each block in the order of its copies.

    Raises:
        ConfigError: no cap, and an episode passes 100,000 steps.
        EnvError: an environment failed.
    """
    tally = _Tally(len(blocks), blocks[0].num_envs, episodes, max_steps)
    seen = stack([block.reset() for block in blocks])
    while tally.open.any():
        actions = act(*seen)
        reward = np.zeros(tally.open.shape)
        valid, ended = np.zeros_like(tally.open), np.zeros_like(tally.open)
        running = np.flatnonzero(tally.open.any(axis=1))
        step = step_all([blocks[p] for p in running.tolist()], actions[running])
        put(seen, running, (step.obs, step.mask))
        reward[running], valid[running] = step.reward, step.valid
        ended[running] = step.terminated | step.truncated
        capped = tally.add(reward, valid, ended)
        for p in np.flatnonzero(capped.any(axis=1)).tolist():
            again = blocks[p].restart(capped[p])
            if again is None:
                tally.wait_for_end(p, capped[p])
            else:
                put(seen, p, again)
    return tally.returns, tally.lengths


class _Tally:
    """Counts rewards and steps of P x K copies into the places of the episodes they have to play."""

    def __init__(self, P: int, K: int, episodes: int, max_steps: int | None) -> None:
        quota = episodes // K + (np.arange(K) < episodes % K)
        self._next = np.tile(np.cumsum(quota) - quota, (P, 1))
        self._end = np.tile(np.cumsum(quota), (P, 1))
        self._total = np.zeros((P, K))
        self._length = np.zeros((P, K), np.int64)
        self._tail = np.zeros((P, K), bool)
        self._cap = max_steps
        self.open = self._next < self._end
        self.returns = np.zeros((P, episodes))
        self.lengths = np.zeros((P, episodes), np.int64)

    def add(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Add one step of all copies; returns which of them reached the cap and have more to play (P, K)."""
        self._total += np.where(valid, reward, 0.0)
        self._length += valid
        over = valid & ~ended & (self._length >= (ENDLESS if self._cap is None else self._cap)) & ~self._tail
        if self._length.max() >= ENDLESS and (self._cap is None or self._tail.any()):
            self._refuse_endless(ended)
        for p, k in np.argwhere((ended | over) & self.open & ~self._tail):
            self.returns[p, self._next[p, k]] = self._total[p, k]
            self.lengths[p, self._next[p, k]] = self._length[p, k]
            self._next[p, k] += 1
        self._tail &= ~ended
        done = ended | over
        self._total[done], self._length[done] = 0.0, 0
        self.open = self._next < self._end
        return over & self.open

    def wait_for_end(self, p: int, which: np.ndarray) -> None:
        """Do not count the copies of `which` (K,) until their present episode is over."""
        self._tail[p] |= which

    def _refuse_endless(self, ended: np.ndarray) -> None:
        if (self.open & ~ended & (self._length >= ENDLESS)).any():
            raise ConfigError(
                f"training.eval_steps=null: an evaluation episode passed {ENDLESS:,} steps; "
                "give training.eval_steps, the cap of one episode"
            )
