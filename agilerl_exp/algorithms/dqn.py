"""DQN (Mnih et al. 2015), with double Q-learning (van Hasselt et al. 2016) as an option.

Must not know: how experience is collected, stored or drawn; a weighted, prioritized or n-step batch looks the same.
Deviations from the paper: Adam for RMSprop, mean squared error unless `loss=huber`, a polyak target by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces

from agilerl_exp.algorithms.base import RLAlgorithm
from agilerl_exp.errors import SpaceError
from agilerl_exp.functional.td import elementwise_loss, legal_only, loss_slope, pick, td_target
from agilerl_exp.networks.build import build
from agilerl_exp.networks.mlp import Mlp
from agilerl_exp.networks.network import Network
from agilerl_exp.networks.observation import ObservationCodec
from agilerl_exp.population.bank import Bank
from agilerl_exp.population.cohort import Cohort, Loss, Minibatch, Params
from agilerl_exp.population.native import TdStep, serves


class DQN(RLAlgorithm):
    """A DQN agent: one row of a cohort of action-value networks."""

    @staticmethod
    def networks(spec: Any, inputs: ObservationCodec, action_space: spaces.Space) -> dict[str, Network]:
        """The action-value network, one output an action.

        Raises:
            SpaceError: the actions are not discrete.
        """
        if not isinstance(action_space, spaces.Discrete):
            raise SpaceError(
                f"env: the action space {action_space} is not Discrete; DQN needs a finite set of actions"
            )
        return {"q": build(spec.net_config, inputs, int(action_space.n))}

    @staticmethod
    def act(
        cohort: Cohort,
        obs: Any,
        mask: np.ndarray | None,
        epsilon: np.ndarray,
        noise: np.ndarray | None,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """Epsilon-greedy actions 0..A-1, `(R, N)` int64.

        Args:
            cohort: who acts.
            obs: tree `(R, N, ...)`.
            mask: `(R, N, A)`, nonzero where legal; a row of zeros forbids nothing. None: all legal.
            epsilon: `(R,)` probability of a random legal action.
            noise: `(R, 2N)` uniform numbers in [0, 1); None acts greedily.
            rows: the R rows of the cohort; None for all.
        """
        q = cohort.outputs("q", obs, rows)
        if mask is not None:
            legal = (mask != 0) | ~(mask != 0).any(-1, keepdims=True)
            q = np.where(legal, q, -np.inf)
        greedy = q.argmax(-1)
        if noise is None:
            return greedy
        n = greedy.shape[1]
        explore = noise[:, :n] < epsilon[:, None]
        if mask is None:
            random = (noise[:, n:] * q.shape[-1]).astype(np.int64)
        else:
            rank = (noise[:, n:] * legal.sum(-1)).astype(np.int64)  # the rank-th legal action
            random = (legal.cumsum(-1) > rank[..., None]).argmax(-1)
        return np.where(explore, random, greedy)

    @staticmethod
    def loss(
        nets: Mapping[str, Network], params: Params, target: Params, batch: Minibatch, spec: Any
    ) -> Loss:
        """Weighted mean of the TD losses of each member."""
        net = nets["q"]
        with torch.no_grad():
            next_q = legal_only(net.apply(target["q"], batch.next_obs), batch.next_mask)
            selector = None
            if spec.double:
                selector = legal_only(net.apply(params["q"], batch.next_obs), batch.next_mask)
            y = td_target(batch.reward, batch.discount, batch.terminated, next_q, selector)
        q_value = pick(net.apply(params["q"], batch.obs), batch.action)
        td_error = q_value - y
        value = (batch.scale * elementwise_loss(td_error, spec.loss)).sum(-1)
        return Loss(value, td_error, {"q_value": _own_mean(q_value, batch)})

    @staticmethod
    def gradient(
        nets: Mapping[str, Network], params: Params, target: Params, batch: Minibatch, spec: Any, out: Params
    ) -> Loss:
        """`loss`, with its gradient written into `out` by hand."""
        net, b = cast(Mlp, nets["q"]), batch.action.shape[1]
        next_q = legal_only(net.forward(target["q"], batch.next_obs)[0], batch.next_mask)
        q, cache = net.forward(params["q"], batch.both if spec.double else batch.obs)
        selector = legal_only(q[:, b:], batch.next_mask) if spec.double else None
        y = td_target(batch.reward, batch.discount, batch.terminated, next_q, selector)
        q_value = pick(q[:, :b], batch.action)
        td_error = q_value - y
        slope = (batch.scale * loss_slope(td_error, spec.loss)).unsqueeze(-1)
        grad = torch.zeros_like(q[:, :b]).scatter_(-1, batch.action.unsqueeze(-1), slope)
        net.backward(params["q"], [x[:, :b] for x in cache], grad, out["q"])
        value = (batch.scale * elementwise_loss(td_error, spec.loss)).sum(-1)
        return Loss(value, td_error, {"q_value": _own_mean(q_value, batch)})

    @staticmethod
    def native(nets: Mapping[str, Network], bank: Bank, spec: Any) -> TdStep | None:
        """The compiled step of `gradient`, Adam and the polyak target."""
        net = nets["q"]
        if not serves(net, bank):
            return None
        huber = spec.loss == "huber"
        return TdStep(net, bank, twice=spec.double, huber=huber, max_norm=spec.max_grad_norm)


def _own_mean(q_value: torch.Tensor, batch: Minibatch) -> torch.Tensor:
    """Mean over the rows of each member's own batch; padding, which other members' sizes decide, has no scale."""
    own = batch.scale > 0
    return (q_value * own).sum(-1) / own.sum(-1)
