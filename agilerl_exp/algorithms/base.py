"""The agent: a view of one row of a cohort, with everything a user does to a single agent.

Must not know: populations' loops, clocks, evolution. The maths of an algorithm are static functions of its class,
over a whole cohort; the agent only names its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from agilerl_exp.algorithms.saved import SavedAgent
from agilerl_exp.envs import MemberEnvs, leaves, play, walk
from agilerl_exp.errors import ConfigError
from agilerl_exp.models.base import tunables
from agilerl_exp.networks.build import resolve
from agilerl_exp.networks.network import Network
from agilerl_exp.networks.observation import ObservationCodec
from agilerl_exp.population.bank import Bank
from agilerl_exp.population.cohort import Cohort, Loss, Minibatch, Params
from agilerl_exp.population.native import TdStep
from agilerl_exp.run.random import Streams


class RLAlgorithm(SavedAgent):
    """One agent.

    Args:
        spec: the algorithm's specification; all of its fields are used.
        observation_space: gymnasium space of one observation.
        action_space: gymnasium space of one action.
        index: position in the population.
        device: torch device.
        seed: with `index`, decides the initial weights.

    Attributes:
        cohort, row: where the agent lives; a lone agent owns a cohort of one.
        fitness: scores of scheduled evaluations and of `test`, oldest first.
        td_error: `(1, B)` float32, errors of the last `learn`.
    """

    def __init__(
        self,
        spec: Any,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        index: int,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ):
        self.index, self.seed = index, seed
        self.observation_space, self.action_space = observation_space, action_space
        codec = ObservationCodec(observation_space)
        if "net_config" in type(spec).model_fields:
            spec = spec.model_copy(update={"net_config": resolve(spec.net_config, codec)})
        self.fitness: list[float] = []
        self.td_error = np.zeros((1, 0), np.float32)
        self._settle(spec, codec, device)
        rng = Streams(seed, [index]).generator("init", index)
        self.cohort.bank.set_member(0, [x for net in self.cohort.nets.values() for x in net.init_member(rng)])

    def _settle(self, spec: Any, codec: ObservationCodec, device: str | torch.device) -> None:
        """Take a resolved spec, and a cohort of one with all weights zero."""
        hyper = {name: np.array([getattr(spec, name)]) for name in tunables(type(spec))}
        self.cohort = Cohort(self.networks(spec, codec, self.action_space), codec, spec, hyper, device)
        self.spec, self.row = spec, 0
        self.cohort.engine = self._fastest_engine()

    # What a concrete algorithm provides.

    @staticmethod
    def networks(spec: Any, inputs: ObservationCodec, action_space: spaces.Space) -> dict[str, Network]:
        """The networks it asks for, by name; `inputs` turns observations into what they read."""
        raise NotImplementedError

    @staticmethod
    def act(
        cohort: Cohort,
        obs: Any,
        mask: np.ndarray | None,
        epsilon: np.ndarray,
        noise: np.ndarray | None,
        rows: np.ndarray | None = None,
    ) -> np.ndarray:
        """Actions `(R, N)` counted from 0; noise None acts greedily."""
        raise NotImplementedError

    @staticmethod
    def loss(
        nets: Mapping[str, Network], params: Params, target: Params, batch: Minibatch, spec: Any
    ) -> Loss:
        """What to minimise, through autograd."""
        raise NotImplementedError

    @staticmethod
    def gradient(
        nets: Mapping[str, Network], params: Params, target: Params, batch: Minibatch, spec: Any, out: Params
    ) -> Loss:
        """The same by hand, for networks that have a hand-written backward."""
        raise NotImplementedError

    @staticmethod
    def native(nets: Mapping[str, Network], bank: Bank, spec: Any) -> TdStep | None:
        """The whole gradient step compiled, or None where that does not cover these networks."""
        return None

    def _fastest_engine(self) -> str:
        # A class that overrides `loss` alone must not be trained by the faster writings that it inherits.
        order = type(self).__mro__
        age = {
            name: next(i for i, cls in enumerate(order) if name in vars(cls))
            for name in ("loss", "gradient", "native")
        }
        nets, bank = self.cohort.nets, self.cohort.bank
        if age["native"] <= age["loss"] and self.native(nets, bank, self.spec) is not None:
            return "native"
        return "stacked" if age["gradient"] <= age["loss"] else "autograd"

    # What a user does with an agent.

    @property
    def steps(self) -> int:
        """Env steps trained; schedules and target updates read it. Set it in a loop of your own."""
        return int(self.cohort.env_step[self.row])

    @steps.setter
    def steps(self, value: int) -> None:
        self.cohort.env_step[self.row] = value

    @property
    def update_step(self) -> int:
        """Gradient steps taken."""
        return int(self.cohort.update_step[self.row])

    @property
    def hyperparameters(self) -> dict[str, float | int]:
        """Present values of the Tunable hyperparameters, integers where the spec has integers."""
        whole = {name for name, field in type(self.spec).model_fields.items() if field.annotation is int}
        values = {name: float(column[self.row]) for name, column in self.cohort.hyper.items()}
        return {name: int(value) if name in whole else value for name, value in values.items()}

    def networks_as_modules(self) -> dict[str, torch.nn.Module]:
        """Ordinary modules whose parameters view this agent's row; clone a state_dict before saving it.

        Ask again after the agent has joined a population: its row is in another bank then.
        """
        weights = [view[self.row] for view in self.cohort.bank.views("weights")]
        out: dict[str, torch.nn.Module] = {}
        start = 0
        for name, net in self.cohort.nets.items():
            count = len(net.shapes())
            out[name] = net.module(weights[start : start + count])
            start += count
        return out

    def get_action(
        self, obs: Any, epsilon: float = 0.0, mask: np.ndarray | None = None, rng: Any = None
    ) -> np.ndarray:
        """Actions of the env's own space for a batch of N observations, or for a single one.

        Args:
            obs: tree with leaves `(N, ...)` or `(...)`, of the observation space.
            epsilon: probability of a random legal action; above 0 it needs `rng`.
            mask: `(N, A)` or `(A,)`, nonzero where an action is legal.
            rng: anything with `.random((1, n))`, such as a `numpy.random.Generator`.

        Returns:
            int64 `(N,)`, or `()` for a single observation.

        Raises:
            ValueError: epsilon is above 0 and no rng is given.
        """
        if epsilon > 0 and rng is None:
            raise ValueError(f"epsilon={epsilon}: give rng, such as numpy.random.default_rng(seed)")
        single = self._is_single(obs)
        lead = (1, 1) if single else (1,)
        tree = walk(lambda x: np.asarray(x).reshape(lead + np.shape(x)), obs)
        masks = None if mask is None else np.asarray(mask).reshape(lead + np.shape(mask))
        n = len(_first(tree)[0])
        noise = rng.random((1, 2 * n)) if epsilon > 0 else None
        action = self.act(
            self.cohort, tree, masks, np.array([epsilon]), noise, np.array([self.row], dtype=np.int64)
        )[0] + getattr(self.action_space, "start", 0)
        return action[0] if single else action

    def learn(self, batch: Any) -> dict[str, float]:
        """One gradient step on a batch of `memory.sample(batch_size, rng)`, leading axes (1, B).

        The discount comes with the batch: give `sample` a gamma where it differs from the memory's.
        `td_error` then holds the errors `(1, B)` for `memory.update_priorities(batch.index, agent.td_error)`.

        Returns:
            The loss and the algorithm's metrics.
        """
        rows = None if self.cohort.pop == 1 else np.array([self.row])
        out = self.cohort.update(self, batch, rows)
        self.td_error = out.td_error
        return {"loss": float(out.value[0])} | {name: float(v[0]) for name, v in out.metrics.items()}

    def observe(self, obs: Any) -> None:
        """Let the statistics of `normalize_obs` take in observations `(N, ...)`, once each, in a loop of your own."""
        tree = walk(lambda x: np.asarray(x)[None], obs)
        self.cohort.observe(tree, np.array([self.row]), np.ones((1, len(_first(tree)[0])), bool))

    def test(self, env: Any, loop: int = 1, max_steps: int | None = None) -> float:
        """Mean return of `loop` greedy episodes in a gymnasium VectorEnv; appended to `fitness`.

        Args:
            env: a VectorEnv (or a `MemberEnvs`), left open.
            loop: number of episodes.
            max_steps: cap of one episode; None plays until it is done.

        Raises:
            ConfigError: env is not a VectorEnv.
            EnvError: the environment failed.
        """
        if not isinstance(env, MemberEnvs | VectorEnv):
            raise ConfigError(
                f"env={type(env).__name__}: not a gymnasium VectorEnv; "
                "wrap it: gymnasium.vector.SyncVectorEnv([lambda: env])"
            )
        block = env if isinstance(env, MemberEnvs) else MemberEnvs(env)
        rows = np.array([self.row])
        returns, _ = play(
            lambda obs, mask: self.act(self.cohort, obs, mask, np.zeros(1), None, rows),
            [block],
            loop,
            max_steps,
        )
        self.fitness.append(float(returns.mean(-1)[0]))
        return self.fitness[-1]

    def clone(self, index: int | None = None) -> RLAlgorithm:
        """A copy that shares nothing mutable: weights, moments, hyperparameters, statistics, counters."""
        twin = copy(self)
        twin.index = self.index if index is None else index
        twin.cohort, twin.row = self.cohort.empty(np.array([0])), 0
        twin.cohort.load_state_dict(0, self.cohort.state_dict(self.row))
        twin.fitness = list(self.fitness)
        return twin

    def morphed(self, net_config: Any, rng: np.random.Generator) -> RLAlgorithm:
        """A copy with another architecture that goes on from the trained tensors (see `networks.morph.carry`).

        Args:
            net_config: a network spec.
            rng: source of the weights of new units.
        """
        twin = self._blank(net_config)
        twin.cohort.load_state_dict(0, self.cohort.morphed(self.row, twin.cohort, rng))
        return twin

    def _blank(self, net_config: Any) -> RLAlgorithm:
        """A copy with another architecture and with weights, counters and statistics of zero."""
        twin = copy(self)
        spec = self.spec.model_copy(update={"net_config": net_config})
        twin._settle(spec, self.cohort.codec, self.cohort.bank.device)
        twin.cohort.horizon, twin.fitness = self.cohort.horizon, list(self.fitness)
        return twin

    def with_network(self, net_config: Any) -> RLAlgorithm:
        """An untrained agent of the same index, seed, hyperparameters and schedules with another network spec."""
        spec = self.spec.model_copy(update={"net_config": net_config})
        spaces = self.observation_space, self.action_space
        twin = type(self)(spec, *spaces, self.index, self.cohort.bank.device, self.seed)
        twin.cohort.hyper |= {name: column[[self.row]] for name, column in self.cohort.hyper.items()}
        twin.cohort.horizon = self.cohort.horizon
        return twin

    def cohort_key(self) -> tuple[Any, ...]:
        """Agents of equal key may share a cohort: same maths, architectures and Static fields."""
        shared = self.spec.model_dump(exclude={*tunables(type(self.spec)), "hp_config"})
        return (
            type(self),
            *sorted(self.cohort.nets.items()),
            repr(sorted(shared.items())),
            self.cohort.engine,
        )

    def _is_single(self, obs: Any) -> bool:
        return np.ndim(_first(obs)) < _first(leaves(self.observation_space)).ndim


def _first(tree: Any) -> Any:
    while isinstance(tree, dict | tuple):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return tree
