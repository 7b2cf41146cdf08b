"""The replay buffer: one interface for uniform, prioritized, n-step and prioritized n-step rings.

Must not know: algorithms, environments, or torch. Samples are numpy copies; who needs tensors wraps them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from agilerl_exp.buffers.priorities import Priorities
from agilerl_exp.buffers.store import Store
from agilerl_exp.buffers.table import Blocks, Where
from agilerl_exp.buffers.transition import Batch, Transition
from agilerl_exp.errors import ConfigError


class Uniform(Protocol):
    """A source of numbers in [0, 1), such as a `Stream` or a `numpy.random.Generator`."""

    def random(self, size: tuple[int, int], /) -> np.ndarray:
        """Float64 numbers in [0, 1) of the given shape."""


class ReplayBuffer:
    """Rings of transitions for P members, allocated at the first `add`.

    Args:
        max_size: rows a ring.
        n_step: longest window; 1 stores plain transitions.
        alpha: exponent of the priorities; None draws uniformly.
        beta: importance exponent where `sample` is given none.
        epsilon: added to |td_error|, above 0.
        keep_one_step: batches of an n-step buffer also carry the one-step view of their rows.
        gamma: discount where `sample` is given none.
        shared: one ring for all members; each still has its own priorities, windows and gamma.
        device: where the owner wants batches; the ring and its samples stay on the host.

    Raises:
        ConfigError: a size or epsilon that cannot work.
    """

    def __init__(  # noqa: PLR0913  (the four kinds of ring are one class, told apart by keywords)
        self,
        max_size: int,
        *,
        n_step: int = 1,
        alpha: float | None = None,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        keep_one_step: bool = False,
        gamma: float = 0.99,
        shared: bool = False,
        device: Any = "cpu",
    ) -> None:
        self.gamma, self.alpha, self.beta, self.epsilon = gamma, alpha, beta, epsilon
        self.max_size, self.n_step, self.shared, self.device = max_size, n_step, shared, device
        if alpha is not None and not epsilon > 0:
            raise ConfigError(
                f"epsilon={epsilon}: must be above 0, else rows without error are never drawn again"
            )
        self._store = Store(max_size, n_step, keep_one_step, shared, alpha is not None)
        self._priorities: Priorities | None = None
        self._lead: ReplayBuffer | None = None

    @property
    def allocated(self) -> bool:
        """Whether a transition was ever added (or a state with rows loaded)."""
        return len(self._store.members) > 0

    @property
    def sizes(self) -> np.ndarray:
        """Rows that each member can draw from, int64 (P,); (0,) before the first `add`."""
        return self._store.sizes

    @property
    def nbytes(self) -> int:
        """Bytes of rings, windows and trees."""
        trees = 0 if self._priorities is None else self._priorities.trees.nodes.nbytes
        return self._store.nbytes + trees

    def __len__(self) -> int:
        """Filled rows of all rings."""
        return int(self._store.rings.sizes.sum())

    def add(self, transition: Transition, members: np.ndarray | None = None) -> None:
        """Store one vector step; slots that are not valid are left out.

        Args:
            transition: leading axes (R, N).
            members: int64 (R,), distinct members of the leading axis; None for all, as in the first call,
                which fixes shapes and kinds.

        Raises:
            ConfigError: at the first call, when the rings would take more than 70 % of the free memory.
        """
        if self._lead is not None:
            raise RuntimeError(
                "this n-step buffer was joined to a memory: add to the buffer that join returned"
            )
        store = self._store
        if not self.allocated:
            if members is not None:
                raise ValueError("the first add must bring transitions of all members (members=None)")
            store.prepare(transition)
            self._plant()
        elif members is None and len(transition.reward) != len(store.members):
            raise ValueError(f"{len(transition.reward)} members given, the buffer holds {len(store.members)}")
        self._enter(store.add(transition, members))

    def copy_members(self, members: np.ndarray, sources: np.ndarray) -> None:
        """Give members the experience of others as it is now: rows, where each has a ring of its own, and priorities.

        Open n-step windows stay as they are; `flush` those of the members before.

        Args:
            members: int64 (R,), distinct.
            sources: int64 (R,); following sources from a member never leads back to it.
        """
        pending = dict(zip(members.tolist(), sources.tolist(), strict=True)) if self.allocated else {}
        while pending:  # whoever is still to be read is written later
            member = next(member for member in pending if member not in pending.values())
            source = pending.pop(member)
            if not self.shared:
                self._store.rings.copy(member, source)
            if self._priorities is not None:
                self._priorities.copy(member, source)

    def flush(self, members: np.ndarray | None = None) -> None:
        """Store the open n-step windows of members (None: all) as if they had been truncated here."""
        self._enter(self._store.flush(members))

    def _plant(self) -> None:
        self._priorities = None
        if self.alpha is not None and self.allocated:
            self._priorities = Priorities(len(self._store.members), self.max_size, self.alpha, self.epsilon)

    def _enter(self, where: Where) -> None:
        if self._priorities is None:
            return
        rows = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        if self.shared:
            members = self._store.members
            self._priorities.enter(np.repeat(members, len(rows)), np.tile(rows, len(members)))
        else:
            self._priorities.enter(*np.divmod(rows, self.max_size))

    def sample(
        self,
        batch_size: int | np.ndarray,
        rng: Uniform,
        *,
        members: np.ndarray | None = None,
        gamma: float | np.ndarray | None = None,
        beta: float | np.ndarray | None = None,
    ) -> Batch:
        """Draw rows with replacement, for R members at once.

        Args:
            batch_size: rows a member, or int64 (R,); smaller batches are padded at the end with weight 0.
            rng: source of one (R, B) block of numbers in [0, 1).
            members: int64 (R,); None for all.
            gamma: discount, or float64 (R,); None for the buffer's.
            beta: importance exponent, or float64 (R,); None for the buffer's. Weights are (N * P(i))**-beta
                divided by the largest of the member's batch.

        Raises:
            ValueError: a member has no rows, or a batch size is below 1.
        """
        store = self._store
        members = store.members if members is None else np.asarray(members, np.int64)
        rings = store.rings_of(members)
        sizes = store.rings.sizes[rings]
        counts = np.full(len(members), batch_size)
        if not len(members) or np.minimum(counts, sizes).min() < 1:
            raise ValueError(
                f"cannot draw batches of {counts.tolist()} from rings that hold {sizes.tolist()} rows"
            )
        uniform = rng.random((len(members), int(counts.max())))
        padding = None
        if np.count_nonzero(counts < uniform.shape[1]):
            padding = np.arange(uniform.shape[1]) >= counts[:, None]
        if self._priorities is None:
            position = (uniform * sizes[:, None]).astype(np.int64)
            weight = np.ones(position.shape, np.float32)
        else:
            position, priority = self._priorities.draw(members, uniform, counts)
            weight = _weights(priority, padding, _column(self.beta if beta is None else beta))
        index = position
        if padding is not None:
            weight[padding] = 0.0
            position = np.where(padding, 0, position)
            index = np.where(padding, -1, position)
        taken = store.rings.table.take(position + (rings * self.max_size)[:, None])
        return self._batch(taken, _column(self.gamma if gamma is None else gamma), index, weight)

    def _batch(self, taken: Blocks, gamma: np.ndarray, index: np.ndarray, weight: np.ndarray) -> Batch:
        fields = self._store.rings.table.trees(taken)
        action, rewards = fields["action"], fields["reward"]
        if action.dtype != np.float32:
            action = action.astype(np.int64)
        reward = rewards
        discount = single = np.full(index.shape, gamma, np.float32)
        if self.n_step > 1:
            reward, discount = _return(rewards, single), _powers(gamma, self.n_step, fields["length"])
        batch = Batch(
            fields["obs"],
            action,
            reward,
            fields["terminated"],
            fields["next_obs"],
            discount,
            fields.get("next_mask"),
            index,
            weight,
        )
        if self._store.keep_one_step:
            first = {name[4:]: value for name, value in fields.items() if name.startswith("one_")}
            if self.n_step > 1:
                first |= {"reward": rewards[..., 0], "discount": single}
            batch.one_step = replace(batch, **first)
        return batch

    def update_priorities(
        self, index: np.ndarray, td_error: np.ndarray, members: np.ndarray | None = None
    ) -> None:
        """Set the priorities of drawn rows from their errors; does nothing in a uniform buffer.

        Args:
            index: `Batch.index`, int64 (R, B); padding (-1) is left out.
            td_error: (R, B).
            members: as in `sample`.

        Raises:
            DivergenceError: a td_error is not finite; no priority is changed.
        """
        if self._priorities is not None:
            self._priorities.update(self._store.members if members is None else members, index, td_error)

    def state_dict(self) -> dict[str, Any]:
        """Filled rows, cursors, open windows and priorities.

        Arrays are views of the live storage: write or copy them before the next `add` or `update_priorities`.
        """
        state = self._store.state_dict()
        if self._priorities is not None:
            state["highest_priority"] = self._priorities.highest
            for member, size in enumerate(self.sizes):
                state[f"priorities.{member}"] = self._priorities.trees.values[member, :size]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; draws then go on bit for bit.

        Raises:
            CheckpointError: the state is of a buffer with other settings.
        """
        self._store.load_state_dict(state)
        self._plant()
        if self._priorities is not None:
            self._priorities.highest[:] = state["highest_priority"]
            for member in range(len(self._store.members)):
                self._priorities.trees.load(member, state[f"priorities.{member}"])


def join(memory: ReplayBuffer, n_step_memory: ReplayBuffer | None) -> ReplayBuffer:
    """Let a memory and its n-step companion be one buffer.

    Rows are the companion's windows, priorities the memory's. Both objects then show the same rows
    and cursor; transitions go in through the returned one, which is `memory`.

    Raises:
        ConfigError: the pair does not fit together, or already holds transitions of its own.
    """
    if n_step_memory is None or n_step_memory._store is memory._store:
        return memory
    for name in ("max_size", "shared"):
        if getattr(memory, name) != getattr(n_step_memory, name):
            raise ConfigError(
                f"{name}={getattr(n_step_memory, name)} of n_step_memory: must equal that of memory, "
                f"{getattr(memory, name)}"
            )
    if memory.allocated or n_step_memory.allocated:
        raise ConfigError("memory and n_step_memory must be empty when they are joined")
    n_step_memory._lead = memory
    memory._store, memory.n_step = n_step_memory._store, n_step_memory.n_step
    memory._store.prioritized = memory.alpha is not None
    return memory


def _column(value: float | np.ndarray) -> np.ndarray:
    return np.asarray(value, np.float64).reshape(-1, 1)


def _weights(priority: np.ndarray, padding: np.ndarray | None, beta: np.ndarray) -> np.ndarray:
    """(N * P(i))**-beta over its largest value of the batch: N and the sum of priorities cancel out."""
    if padding is not None:
        priority = np.where(padding, np.inf, priority)
    return ((priority / priority.min(1, keepdims=True)) ** -beta).astype(np.float32)


def _return(rewards: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Discounted sum over the last axis; unused steps hold zeros."""
    total = rewards[..., -1]
    for k in range(rewards.shape[-1] - 2, -1, -1):
        total = rewards[..., k] + gamma * total
    return total


def _powers(gamma: np.ndarray, n_step: int, exponent: np.ndarray) -> np.ndarray:
    """gamma**exponent, by a table of the n_step + 1 powers a member."""
    table = (gamma ** np.arange(n_step + 1)).astype(np.float32)
    rows = np.arange(len(exponent))[:, None] if len(table) > 1 else 0
    return table[rows, exponent]
