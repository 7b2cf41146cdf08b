"""A cohort: members of equal architecture that act and learn by one stacked call each.

Must not know: which algorithm runs (it is handed in), environments, buffers, schedules of exploration.

Hyperparameters that may differ between members are columns `hyper[name]`, `(P,)` float64, beside the bank; the
learning rate, the mixing rate and the batch size are read from there at each update, so that a mutation is one
assignment and Adam's moments live on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agilerl_exp.functional.running_stats import RunningStats
from agilerl_exp.functional.schedules import linear_to
from agilerl_exp.networks.morph import carry
from agilerl_exp.networks.network import Network
from agilerl_exp.networks.observation import ObservationCodec
from agilerl_exp.population.bank import Bank
from agilerl_exp.population.native import TdStep

COUNTERS = ("env_step", "update_step", "target_mark")

Params = Mapping[str, Sequence[Tensor]]
"""The tensors of each network by its name, `(R, *shape)` each."""


@dataclass
class Minibatch:
    """What a loss may see of the experience, leading axes (R, B), encoded and normalised.

    Attributes:
        both: `(R, 2B, D)`, observations then next observations, for networks that need the two.
        scale: sample weight divided by the member's own batch size: `(scale * loss).sum(-1)` is its mean.
    """

    both: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    terminated: Tensor
    scale: Tensor
    next_mask: Tensor | None

    @property
    def obs(self) -> Tensor:
        """`(R, B, D)` observations."""
        return self.both[:, : self.action.shape[1]]

    @property
    def next_obs(self) -> Tensor:
        """`(R, B, D)` observations that the actions led to."""
        return self.both[:, self.action.shape[1] :]


@dataclass
class Loss:
    """Result of a loss, the member axis first: value `(R,)`, td_error `(R, B)`, metrics `(R,)` each."""

    value: Tensor
    td_error: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Outcome:
    """The `Loss` of an update that was made, as numpy arrays; td_error is overwritten by the next update."""

    value: np.ndarray
    td_error: np.ndarray
    metrics: dict[str, np.ndarray]


class Maths(Protocol):
    """What a cohort needs of an algorithm."""

    def loss(
        self, nets: Mapping[str, Network], params: Params, target: Params, batch: Minibatch, spec: Any
    ) -> Loss:
        """The loss, differentiable by autograd."""

    def gradient(
        self,
        nets: Mapping[str, Network],
        params: Params,
        target: Params,
        batch: Minibatch,
        spec: Any,
        out: Params,
    ) -> Loss:
        """The same loss, its gradient written into `out` by hand; asked only where every net has a backward."""

    def native(self, nets: Mapping[str, Network], bank: Bank, spec: Any) -> TdStep | None:
        """The whole step compiled, or None where that does not cover these networks."""


class Cohort:
    """P stacked members.

    Args:
        nets: architectures by name, equal for all members.
        codec: turns observations into network inputs.
        spec: the specification whose Static fields all members share.
        hyper: columns `(P,)` of the Tunable fields.
        device: torch device of the bank.

    Attributes:
        slots: `(P,)` position of each row in the population.
        env_step: `(P,)` env steps of each member.
        horizon: env steps over which learning-rate schedules run; None holds the rate.
        engine: `native` takes the algorithm's compiled step, `stacked` hand-written backward passes where the networks
            have them, `autograd` neither.
    """

    def __init__(
        self,
        nets: Mapping[str, Network],
        codec: ObservationCodec,
        spec: Any,
        hyper: Mapping[str, np.ndarray],
        device: str | torch.device = "cpu",
    ):
        self.nets, self.codec, self.spec = dict(nets), codec, spec
        self.hyper = {name: np.array(column, np.float64) for name, column in hyper.items()}
        pop = len(next(iter(self.hyper.values())))
        leaves = {name: net.shapes() for name, net in self.nets.items()}
        self._names = [(name, len(own)) for name, own in leaves.items()]
        shapes = [(f"{name}.{leaf}", shape) for name, own in leaves.items() for leaf, shape in own]
        self.bank = Bank(pop, shapes, device)
        scaled = spec.normalize_obs and codec.vector_width > 0  # images are from 0 to 1 already
        self.stats = RunningStats(pop, codec.vector_width) if scaled else None
        self.slots = np.arange(pop)
        self._everyone = np.arange(pop)
        self.env_step = np.zeros(pop, np.int64)
        self.update_step = np.zeros(pop, np.int64)
        self.target_mark = np.zeros(pop, np.int64)  # whole target intervals behind each member
        self.horizon: int | None = None
        self.engine = "stacked"
        self._native: TdStep | None = None

    @property
    def pop(self) -> int:
        """Number of members P."""
        return self.bank.pop

    def encode(self, obs: Any, rows: np.ndarray | None) -> np.ndarray:
        """Network inputs `(R, N, D)` float32 of an observation tree `(R, N, ...)`; rows None = all members."""
        return self._normalized(self.codec.encode(obs), rows)

    def _normalized(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        if self.stats is None:
            return x
        chosen, width = slice(None) if rows is None else rows, self.codec.vector_width
        if width == self.codec.width:
            return self.stats.normalize(chosen, x)
        x[..., :width] = self.stats.normalize(chosen, x[..., :width])
        return x

    def observe(self, obs: Any, rows: np.ndarray | None, valid: np.ndarray) -> None:
        """Let the observation statistics take in what the members saw; valid `(R, N)`."""
        if self.stats is not None:
            chosen = np.arange(self.pop) if rows is None else rows
            self.stats.update(chosen, self.codec.encode(obs, images=False), valid)

    def outputs(self, net: str, obs: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """Outputs `(R, N, out)` of a network for acting."""
        weights = self.by_net(self.bank.numpy_weights(rows))
        return self.nets[net].act(weights[net], self.encode(obs, rows))

    def minibatch(self, batch: Any, rows: np.ndarray | None) -> Minibatch:
        """Encode, normalise and move a sampled batch (see `buffers.Batch`) to the bank's device."""
        x = np.concatenate([self.codec.encode(batch.obs), self.codec.encode(batch.next_obs)], axis=1)
        x = self._normalized(x, rows)
        device = self.bank.device
        mask = None if batch.next_mask is None else torch.from_numpy(batch.next_mask).to(device)
        return Minibatch(
            torch.from_numpy(x).to(device),
            torch.from_numpy(batch.action).to(device).long(),
            torch.from_numpy(batch.reward).to(device),
            torch.from_numpy(batch.discount).to(device),
            torch.from_numpy(batch.terminated).to(device),
            torch.from_numpy(batch.weight / _rows_of(batch)[:, None]).to(device),
            mask,
        )

    def update(self, maths: Maths, batch: Any, rows: np.ndarray | None = None) -> Outcome:
        """One gradient step of the members `rows` (None = all), each on its own rows of the batch."""
        chosen = self._everyone if rows is None else rows
        if self.engine == "native":
            outcome = self._update_native(maths, batch, rows, chosen)
        else:
            outcome = self._update_torch(maths, batch, rows, chosen)
        self._sync_targets(chosen)
        self.update_step[chosen] += 1
        return outcome

    def _update_native(
        self, maths: Maths, batch: Any, rows: np.ndarray | None, chosen: np.ndarray
    ) -> Outcome:
        if self._native is None:
            self._native = maths.native(self.nets, self.bank, self.spec)
            assert self._native is not None  # the engine is chosen only where it is there
        count = _rows_of(batch)
        arrays = {
            "obs": self.codec.encode(batch.obs),
            "next_obs": self.codec.encode(batch.next_obs),
            "action": batch.action,
            "reward": batch.reward,
            "discount": batch.discount,
            "terminated": batch.terminated,
            "scale": batch.weight / count[:, None],
            "next_mask": batch.next_mask,
        }
        scaling = None if self.stats is None else self.stats.scaling(slice(None), self.codec.width)
        polyak = self.spec.target_update_interval is None
        tau = self.hyper["tau"][chosen] if polyak else np.full(len(chosen), -1.0)
        value, td_error, q = self._native(chosen, count, arrays, scaling, self.learning_rate(chosen), tau)
        return Outcome(value, td_error, {"q_value": q})

    def _update_torch(self, maths: Maths, batch: Any, rows: np.ndarray | None, chosen: np.ndarray) -> Outcome:
        bank, minibatch = self.bank, self.minibatch(batch, rows)
        if rows is None:
            params, target, grad = bank.views("weights"), bank.views("target"), bank.grad
        else:
            index = torch.from_numpy(rows).to(bank.device)
            params, target = bank.split(bank.weights[index]), bank.split(bank.target[index])
            grad = torch.zeros_like(bank.grad[: len(rows)])
        loss = self._differentiate(maths, params, target, minibatch, grad)
        if self.spec.max_grad_norm is not None:
            bank.clip_grad(grad, np.full(len(chosen), self.spec.max_grad_norm))
        bank.adam(chosen.tolist(), grad, self.learning_rate(chosen))
        if self.spec.target_update_interval is None:
            bank.polyak(rows, self.hyper["tau"][chosen])
        metrics = {name: value.cpu().numpy() for name, value in loss.metrics.items()}
        return Outcome(loss.value.cpu().numpy(), loss.td_error.cpu().numpy(), metrics)

    def learning_rate(self, rows: np.ndarray) -> np.ndarray:
        """`(R,)` learning rates at the members' present env steps."""
        lr = self.hyper["lr"][rows]
        if self.horizon is None or self.spec.lr_schedule == "constant":
            return lr
        return linear_to(self.env_step[rows], self.horizon, lr, lr * self.spec.lr_final_fraction)

    def _differentiate(
        self, maths: Maths, params: list[Tensor], target: list[Tensor], batch: Minibatch, grad: Tensor
    ) -> Loss:
        out = self.bank.split(grad)
        fixed = self.by_net(target)
        if self.engine == "stacked" and all(net.has_manual_backward for net in self.nets.values()):
            with torch.no_grad():
                return maths.gradient(
                    self.nets, self.by_net(params), fixed, batch, self.spec, self.by_net(out)
                )
        leaves = [p.detach().requires_grad_() for p in params]
        loss = maths.loss(self.nets, self.by_net(leaves), fixed, batch, self.spec)
        # Summed over members: each loss depends on its own row only, so gradients cannot couple.
        for view, value in zip(out, torch.autograd.grad(loss.value.sum(0), leaves), strict=True):
            view.copy_(value)
        return Loss(
            loss.value.detach(), loss.td_error.detach(), {k: v.detach() for k, v in loss.metrics.items()}
        )

    def _sync_targets(self, chosen: np.ndarray) -> None:
        """Whole copies into the targets of members that passed an interval, where those are asked for."""
        interval = self.spec.target_update_interval
        if interval is None:
            return
        passed = self.env_step[chosen] // interval
        late = chosen[passed > self.target_mark[chosen]]
        self.bank.sync_target(late.tolist())
        self.target_mark[chosen] = passed

    def by_net(self, tensors: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """Tensors in the order of the bank, by the name of their network."""
        if len(self._names) == 1:
            return {self._names[0][0]: tensors}
        out, start = {}, 0
        for name, count in self._names:
            out[name] = tensors[start : start + count]
            start += count
        return out

    def empty(self, slots: np.ndarray) -> Cohort:
        """A cohort of the same architecture for other members; its rows are zero."""
        hyper = {name: np.zeros(len(slots)) for name in self.hyper}
        cohort = Cohort(self.nets, self.codec, self.spec, hyper, self.bank.device)
        cohort.slots, cohort.engine, cohort.horizon = slots, self.engine, self.horizon
        return cohort

    def state_dict(self, rows: int | np.ndarray) -> dict[str, Any]:
        """All state of a member (views) or of several (copies, axis 0): bank, hyperparameters, statistics, counters."""
        return {
            "bank": self.bank.state_dict(rows),
            "stats": {name: x[rows] for name, x in self.stats.state_dict().items()} if self.stats else {},
            "hyper": {name: column[rows] for name, column in self.hyper.items()},
            "counters": {name: getattr(self, name)[rows] for name in COUNTERS},
        }

    def load_state_dict(self, rows: int | np.ndarray, state: Mapping[str, Any]) -> None:
        """Write into rows what `state_dict` gave."""
        self.bank.load_state_dict(rows, state["bank"])
        for name, column in (self.stats.state_dict() if self.stats else {}).items():
            column[rows] = state["stats"][name]
        for name, value in state["hyper"].items():
            self.hyper.setdefault(name, np.zeros(self.pop))[rows] = value
        for name, value in state["counters"].items():
            getattr(self, name)[rows] = value

    def morphed(self, row: int, other: Cohort, rng: np.random.Generator) -> dict[str, Any]:
        """The state of member `row` as it would be with the architecture of `other` (see `morph.carry`)."""
        state = self.state_dict(row)
        own = self.by_net(self.bank.split(state["bank"]["state"].cpu()))
        after = []
        for name, net in self.nets.items():
            after += carry(net, other.nets[name], [x.numpy() for x in own[name]], rng)
        return state | {"bank": state["bank"] | {"state": other.bank.join(after)}}


def _rows_of(batch: Any) -> np.ndarray:
    """How many rows of a batch are not padding, `(R,)` float32."""
    return np.count_nonzero(batch.index >= 0, axis=1).astype(np.float32)
