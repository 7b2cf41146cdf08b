"""The off-policy loop: act, step, store, learn; evaluate each generation.

Must not know: which algorithm runs, how rings draw, where state and metrics are written (a `Session` does).
Every cadence counts env steps of one member, with exact accumulators, whatever the number of env copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl_exp.buffers import Transition
from agilerl_exp.envs import put, take
from agilerl_exp.envs.blocks import Blocks
from agilerl_exp.errors import DivergenceError
from agilerl_exp.evolution.evolve import Evolution
from agilerl_exp.functional.schedules import epsilon, linear_to
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.population.population import Population
from agilerl_exp.run.random import Streams
from agilerl_exp.training.evaluate import Evaluator
from agilerl_exp.training.meter import Meter
from agilerl_exp.training.session import Session

EPS_COLUMNS = ("eps_start", "eps_end", "eps_decay")


class OffPolicy:
    """State and steps of one off-policy run.

    Args:
        population: who learns.
        envs: their environments.
        buffer: where experience lives.
        training: cadences, schedules and lengths.
        streams: all randomness.
        evaluator: greedy scores on environments of its own.
        session: reports, checkpoints and signals; None keeps nothing.
        evolution: selects and mutates after each generation but the last; None leaves the members alone.
    """

    def __init__(
        self,
        population: Population,
        envs: Blocks,
        buffer: Any,
        training: TrainingSpec,
        streams: Streams,
        evaluator: Evaluator,
        session: Session | None = None,
        evolution: Evolution | None = None,
    ):
        self.population, self.envs, self.buffer = population, envs, buffer
        self.training, self.streams, self.evaluator = training, streams, evaluator
        self.session, self.evolution = session or Session(), evolution
        self.agent = population.agents[0]  # its class holds the maths of all members
        pop = len(population)
        self.env_step = np.zeros(pop, np.int64)
        self.learn_clock = np.zeros(pop, np.int64)  # env steps since the last update that was due
        self.generation = 0
        self.scored = 0  # env steps of a member at the end of the last evaluated generation
        self.evaluation_steps = 0
        self.diverged = np.zeros(pop, bool)  # members with a loss that is not finite, which learn no more
        self.generation_steps = training.generation_steps(self.agent.spec.default_evo_steps)
        self.horizon = training.max_steps
        self.meter = Meter(pop, envs.num_envs)
        self.seen: tuple[Any, np.ndarray | None] | None = None
        """What to act on next: observations (P, N, ...) and masks (P, N, A) or None."""
        self._set_schedules()

    def _set_schedules(self) -> None:
        for cohort in self.population.cohorts:
            cohort.horizon = self.horizon
        for name, value in zip(EPS_COLUMNS, self.training.epsilon, strict=True):
            self.population.set_column(name, np.full(len(self.population), value))

    # The run.

    def run(self) -> None:
        """Train until every member has its env steps, or the target score is reached."""
        if self.seen is None:
            self.seen = self.envs.reset()
            if self.evolution is not None:
                self.session.at_births(self, self.evolution.start(self.population, self._seen_by))
        while not self.finished:
            while (members := self._training_members()).size:
                self.tick(members)
                self.session.at_boundary(self)
            self.end_generation()
        self.buffer.flush()
        self.session.at_end(self)

    @property
    def finished(self) -> bool:
        """Whether the last evaluation was the last of the run."""
        return self.scored >= self.training.max_steps or self.target_reached

    def tick(self, members: np.ndarray) -> None:
        """One vector step of the members (R,), and the updates that it makes due."""
        obs, mask = _pick(self.seen, members, len(self.population))
        noise = self.streams.stream("explore").random((len(members), 2 * self.envs.num_envs), members)
        actions = self._act(members, obs, mask, self.epsilon(members), noise)
        step = self.envs.step(members, actions)
        reward, terminated, truncated, valid = step.reward, step.terminated, step.truncated, step.valid
        transition = Transition(
            obs, actions, reward, terminated, truncated, step.next_obs, step.next_mask, valid
        )
        everyone = len(members) == len(self.population)
        self.buffer.add(transition, None if everyone else members)
        for cohort, rows, where in self.population.parts(members):
            cohort.observe(_pick(obs, where, len(members)), rows, valid[where])
        if everyone:
            self.seen = step.obs, step.mask
        else:
            put(self.seen, members, (step.obs, step.mask))
        count = valid.sum(1)
        self.env_step[members] += count
        self.population.set_env_step(self.env_step)
        self.meter.step(members, reward, valid, terminated | truncated)
        self._learn(members, count)

    def end_generation(self) -> None:
        """Evaluate every member, report, and let the session save."""
        returns, steps = self.evaluator(self.population, self.generation)
        self.evaluation_steps += steps
        self.diverged |= ~self.population.finite
        for slot, agent in enumerate(self.population.agents):
            agent.fitness.append(-np.inf if self.diverged[slot] else float(returns[slot].mean()))
        self.scored = self._generation_end
        self.generation += 1
        self.session.at_generation(self, returns)
        if self.evolution is not None and not self.finished:
            self._evolve(self.evolution)
        self.session.at_next_generation(self)

    def _evolve(self, evolution: Evolution) -> None:
        """Replace and mutate members; experience goes with them, environments stay with the slots."""
        fitness = np.array([agent.fitness[-1] for agent in self.population.agents])
        parents, births = evolution.step(self.population, fitness, self.generation, self._seen_by)
        changed = np.array(sorted(birth.member for birth in births), np.int64)
        replaced = np.flatnonzero(parents != np.arange(len(parents)))
        self.buffer.flush(changed)
        self.buffer.copy_members(replaced, parents[replaced])
        self.meter.forget(replaced)
        self.diverged[replaced] = False
        self.session.at_births(self, births)

    def _seen_by(self, member: int) -> Any:
        """What a member acts on next, `(1, N, ...)`."""
        assert self.seen is not None
        return take(self.seen[0], np.array([member]))

    # What a step is made of.

    def epsilon(self, members: np.ndarray) -> np.ndarray:
        """Exploration probability of the members (R,) at their present env steps."""
        start, end, decay = (self.population.column(name)[members] for name in EPS_COLUMNS)
        return epsilon(self.training.eps_schedule, self.env_step[members], start, end, decay)

    def _act(
        self, members: np.ndarray, obs: Any, mask: np.ndarray | None, eps: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        parts = [
            (
                where,
                self.agent.act(
                    cohort,
                    _pick(obs, where, len(members)),
                    take(mask, where),
                    eps[where],
                    noise[where],
                    rows,
                ),
            )
            for cohort, rows, where in self.population.parts(members)
        ]
        if len(parts) == 1:
            return parts[0][1]
        actions = np.zeros((len(members), *parts[0][1].shape[1:]), parts[0][1].dtype)
        for where, part in parts:
            actions[where] = part
        return actions

    def _training_members(self) -> np.ndarray:
        """Members before the end of the generation; the others wait where they can, and keep what they overshot."""
        behind = self.env_step < self._generation_end
        if self.envs.together:
            behind[:] = behind.any()
        return np.flatnonzero(behind)

    @property
    def _generation_end(self) -> int:
        return min(self.scored + self.generation_steps, self.training.max_steps)

    @property
    def target_reached(self) -> bool:
        """Whether the best of the last evaluation has the target score."""
        target = self.training.target_score
        if target is None or not self.generation:
            return False
        return max(agent.fitness[-1] for agent in self.population.agents) >= target

    def _learn(self, members: np.ndarray, stepped: np.ndarray) -> None:
        """All updates that are due; what fell due before a member was ready is not caught up."""
        learn_step = self.population.column("learn_step").astype(np.int64)[members]
        batch_size = self.population.column("batch_size").astype(np.int64)[members]
        clock = self.learn_clock[members] + stepped
        due, self.learn_clock[members] = np.divmod(clock, learn_step)
        ready = self.env_step[members] >= self.training.learning_delay
        ready &= self.buffer.sizes[members] >= batch_size
        ready &= ~self.diverged[members]
        due[~ready] = 0
        beta = linear_to(self.env_step[members], self.horizon, self.buffer.beta, 1.0)
        for k in range(due.max()):
            part = due > k
            if part.all():
                self.update(members, batch_size, beta)
            else:
                self.update(members[part], batch_size[part], beta[part])

    def update(self, members: np.ndarray, batch_size: np.ndarray, beta: np.ndarray) -> None:
        """One gradient step of the members, each on a batch of its own; arguments (R,)."""
        gamma = self.population.column("gamma")[members]
        draws = self.streams.stream("replay").of(members)
        batch = self.buffer.sample(batch_size, draws, members=members, gamma=gamma, beta=beta)
        value, td_error = np.zeros(len(members)), np.zeros(batch.weight.shape, np.float32)
        metrics: dict[str, np.ndarray] = {}
        for cohort, rows, where in self.population.parts(members):
            part = batch if len(where) == len(members) else batch.part(where)
            loss = cohort.update(self.agent, part, rows)
            value[where], td_error[where, : part.weight.shape[1]] = loss.value, loss.td_error
            for name, own in loss.metrics.items():
                metrics.setdefault(name, np.zeros(len(members)))[where] = own
        good = np.isfinite(value)
        if not good.all():
            self._freeze(members[~good])
        self.buffer.update_priorities(batch.index[good], td_error[good], members[good])
        self.meter.update(members[good], value[good], {name: own[good] for name, own in metrics.items()})

    def _freeze(self, members: np.ndarray) -> None:
        """Let members with a loss that is not finite learn no more, where evolution will replace them."""
        slot = int(members[0])
        what = f"member {slot}: the loss is not finite at env step {self.env_step[slot]}"
        if self.evolution is None:
            raise DivergenceError(
                f"{what}; lower algo.lr, set algo.max_grad_norm, or look at the rewards of the environment"
            )
        self.diverged[members] = True
        self.session.warn(f"{what}; it learns no more and is replaced at the end of the generation")

    # What a checkpoint holds.

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """`policy`: what acting needs; `resume`: what going on to the same bytes needs besides."""
        members = {str(i): agent.state_dict() for i, agent in enumerate(self.population.agents)}
        loop = {
            "env_step": self.env_step.tolist(),
            "learn_clock": self.learn_clock.tolist(),
            "generation": self.generation,
            "scored": self.scored,
            "evaluation_steps": self.evaluation_steps,
            "diverged": self.diverged.tolist(),
            "horizon": self.horizon,
            "meter": self.meter.state_dict(),
            "streams": self.streams.state_dict(),
        }
        resume = {"loop": loop, "buffer": self.buffer.state_dict(), "envs": self.envs.state_dict()}
        return {"policy": {"population": {"members": members}}, "resume": resume}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state (policy and resume parts merged)."""
        self.population.load_state_dict(state["population"]["members"])
        loop = state["loop"]
        self.env_step[...] = loop["env_step"]
        self.learn_clock[...] = loop["learn_clock"]
        self.diverged[...] = loop["diverged"]
        for name in ("generation", "scored", "evaluation_steps", "horizon"):
            setattr(self, name, loop[name])
        for cohort in self.population.cohorts:
            cohort.horizon = self.horizon
        self.meter.load_state_dict(loop["meter"])
        self.streams.load_state_dict(loop["streams"])
        self.buffer.load_state_dict(state["buffer"])
        obs, mask, cut = self.envs.load_state_dict(state["envs"])
        self.seen = obs, mask
        if cut.any():  # those episodes count as truncated
            self.buffer.flush(np.flatnonzero(cut.any(1)))
            self.meter.cut(cut)


def _pick(tree: Any, where: np.ndarray, count: int) -> Any:
    """Members `where` of a tree stacked over `count` members; all of them are the tree itself."""
    return tree if len(where) == count else take(tree, where)
