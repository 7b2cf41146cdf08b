"""Specs of a training run and of its replay rings.

Must not know: algorithms' own fields, and how loops and rings work. Steps are env steps of ONE member.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from agilerl_exp.models import _resolve
from agilerl_exp.models.base import Spec, Static, Tunable, show

if TYPE_CHECKING:
    from agilerl_exp.models.algo import AlgorithmSpec

_EPS_START, _EPS_END, _EPS_HORIZON = 1.0, 0.05, 0.1  # the horizon: a fraction of max_steps


class NStepBufferArgs(Spec):
    """Settings of n-step windows."""

    n_step: Annotated[int, Field(ge=1), Static()] = 3
    """Rewards summed before the bootstrap; 1 equals the standard ring."""


class PerBufferArgs(Spec):
    """Settings of prioritized sampling (Schaul et al. 2016)."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Exponent of the priority; 0 samples uniformly."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Exponent of the importance weights at the start; it rises to 1 over max_steps."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    """Added to |td_error|, so that no row becomes unreachable."""


class ReplayBufferSpec(Spec):
    """The replay ring of an off-policy algorithm: standard, n-step, prioritized, or prioritized n-step."""

    aliases: ClassVar[dict[str, str]] = {"memory_size": "max_size", "n_step": "n_step_buffer_args.n_step"}

    max_size: Annotated[int, Field(ge=1)] = 100_000
    """Transitions a ring holds (not vector steps)."""
    standard_buffer: bool = True
    """Store the 1-step fields; false needs another kind switched on and drops them from n-step rows."""
    n_step_buffer: bool = False
    """Learn from n-step windows."""
    n_step_buffer_args: NStepBufferArgs = Field(default_factory=NStepBufferArgs)
    """Settings of the n-step windows."""
    per_buffer: bool = False
    """Sample in proportion to the priority."""
    per_buffer_args: PerBufferArgs = Field(default_factory=PerBufferArgs)
    """Settings of the priorities."""

    @model_validator(mode="after")
    def _check(self) -> ReplayBufferSpec:
        kinds = self.standard_buffer or self.n_step_buffer or self.per_buffer
        fix = "set n_step_buffer=true or per_buffer=true, or leave it true"
        too_long = self.n_step_buffer and self.n_step_buffer_args.n_step > self.max_size
        self.refuse_where(
            (not kinds, "standard_buffer", f"no kind of ring is left; {fix}"),
            *self._idle("n_step_buffer", "n_step"),
            *self._idle("per_buffer", "per"),
            (too_long, "n_step_buffer_args.n_step", f"must be <= max_size={self.max_size}"),
        )
        return self

    def _idle(self, flag: str, option: str) -> Iterator[tuple[bool, str, str]]:
        args: Spec = getattr(self, f"{flag}_args")
        for name, value in args:
            idle = not getattr(self, flag) and value != type(args).model_fields[name].default
            yield idle, f"{flag}_args.{name}", f"has no effect while {flag} is false; use buffer={option}"

    def init_buffer(self, algo_spec: AlgorithmSpec, device: Any = "cpu", *, shared: bool = False) -> Any:
        """Build the ring that the loop samples from.

        Args:
            algo_spec: The algorithm; its gamma discounts the windows when `sample` is given none.
            device: Where samples land (str or torch.device); the ring itself stays on the host.
            shared: One ring for all members (`TrainingSpec.experience_sharing`) in place of one a member.

        Returns:
            A `ReplayBuffer`. With both per_buffer and n_step_buffer it is the prioritized half of a pair;
            the other half comes from `init_n_step_buffer`.

        Raises:
            ValueError: The algorithm has no discount.
        """
        if self.per_buffer:
            return self._ring(algo_spec, device, shared, n_step=1, **self.per_buffer_args.model_dump())
        return self._ring(algo_spec, device, shared, n_step=self._window)

    def init_n_step_buffer(
        self, algo_spec: AlgorithmSpec, device: Any = "cpu", *, shared: bool = False
    ) -> Any | None:
        """Build the n-step companion of a prioritized ring, which moves with the same cursor.

        Args:
            algo_spec: The algorithm; its gamma discounts the windows when `sample` is given none.
            device: Where samples land (str or torch.device).
            shared: One ring for all members in place of one a member.

        Returns:
            A `ReplayBuffer`, or None unless both per_buffer and n_step_buffer are set.

        Raises:
            ValueError: The algorithm has no discount.
        """
        if not (self.per_buffer and self.n_step_buffer):
            return None
        return self._ring(algo_spec, device, shared, n_step=self._window)

    @property
    def _window(self) -> int:
        return self.n_step_buffer_args.n_step if self.n_step_buffer else 1

    def _ring(
        self, algo_spec: AlgorithmSpec, device: Any, shared: bool, *, n_step: int, **priority: float
    ) -> Any:
        gamma = getattr(algo_spec, "gamma", None)
        if gamma is None:
            raise ValueError(f"{algo_spec.name} has no gamma: a replay ring cannot discount for it")
        return _resolve.attribute("buffers", "ReplayBuffer")(
            self.max_size,
            n_step=n_step,
            keep_one_step=self.standard_buffer and n_step > 1,
            gamma=gamma,
            shared=shared,
            device=device,
            **priority,
        )


class Epsilon(NamedTuple):
    """The exploration schedule without gaps; `TrainingSpec.eps_schedule` says how to read decay."""

    start: float
    end: float
    decay: float


class TrainingSpec(Spec):
    """How long, how often and how many."""

    aliases: ClassVar[dict[str, str]] = {"population_size": "pop_size"}

    max_steps: Annotated[int, Field(ge=1)] = 1_000_000
    """Env steps each member trains for; evaluation is not counted."""
    evo_steps: Annotated[int | None, Field(ge=1)] = None
    """Env steps of a member between two evaluations (one generation); null: the algorithm's default."""
    pop_size: Annotated[int, Field(ge=1)] = 1
    """Members of the population."""
    eval_steps: Annotated[int | None, Field(ge=1)] = None
    """Cap on the steps of one evaluation episode; null: until it is done."""
    eval_loop: Annotated[int, Field(ge=1)] = 1
    """Evaluation episodes a member each time, greedy, on environments of their own."""
    replay_buffer: ReplayBufferSpec | None = None
    """The replay ring; null: the defaults of ReplayBufferSpec for off-policy algorithms."""
    hpo: bool = True
    """Evolve the population (with more than one member)."""
    target_score: float | None = None
    """Stop when the best member's scheduled evaluation reaches it."""
    learning_delay: Annotated[int, Field(ge=0)] = 0
    """Env steps of a member before its first update."""
    eps_start: Annotated[float | None, Field(ge=0, le=1), Tunable(0.1, 1.0)] = None
    """Exploration probability at the start; null: 1.0."""
    eps_end: Annotated[float | None, Field(ge=0, le=1), Tunable(0.001, 0.2, "log")] = None
    """Lowest exploration probability; null: 0.05."""
    eps_decay: Annotated[float | None, Field(gt=0), Tunable(0.9, 0.999999, "log1m")] = None
    """exponential: factor an env step, at most 1; linear: env steps from start to end, at least 1.
    null: eps_end is reached at 10 % of max_steps. The search range is that of the exponential schedule."""
    eps_schedule: Literal["exponential", "linear", "constant"] = "exponential"
    """How exploration falls with env steps t of a member: max(end, start * decay**t), a line, not at all."""
    checkpoint_steps: Annotated[int | None, Field(ge=1)] = None
    """Env steps of a member between checkpoints; null: one a generation."""
    checkpoint_path: Annotated[str | None, Field(min_length=1)] = None
    """Where checkpoints go; null: `checkpoints` in the job directory; relative: inside it."""
    overwrite_checkpoints: bool = False
    """Keep only the newest two checkpoints; false keeps the policy of every one."""
    evaluation_interval: Annotated[int, Field(ge=1)] = 10
    """Language models only: iterations between evaluations."""
    num_epochs: Annotated[int | None, Field(ge=1)] = None
    """Language models and offline algorithms only: passes over the data."""
    episode_steps: Annotated[int, Field(ge=1)] = 500
    """Bandits only: pulls between two score rows."""
    sum_scores: bool = True
    """Multi-agent only: fitness is the sum over agents; false: their mean."""
    reporting_interval: Annotated[int, Field(ge=1)] = 1024
    """Env steps of a member between metric rows."""
    experience_sharing: bool = False
    """One ring for all members in place of one a member."""

    @property
    def epsilon(self) -> Epsilon:
        """The exploration schedule with the defaults filled in; `decay` as `eps_schedule` reads it."""
        start, end = self._eps_ends
        if self.eps_schedule == "constant":
            return Epsilon(start, start, 1.0)
        if self.eps_decay is not None:
            return Epsilon(start, end, self.eps_decay)
        horizon = _EPS_HORIZON * self.max_steps
        if self.eps_schedule == "linear":
            return Epsilon(start, end, max(1.0, horizon))
        return Epsilon(start, end, (end / start) ** (1 / horizon) if end < start else 1.0)

    @property
    def _eps_ends(self) -> tuple[float, float]:
        start = _EPS_START if self.eps_start is None else self.eps_start
        return start, _EPS_END if self.eps_end is None else self.eps_end

    def generation_steps(self, default: int) -> int:
        """Env steps of one generation: evo_steps, else the algorithm's default, capped at max_steps."""
        return min(self.evo_steps or default, self.max_steps)

    @model_validator(mode="after")
    def _check(self) -> TrainingSpec:
        (start, end), decay, total = self._eps_ends, self.eps_decay, f"max_steps={self.max_steps}"
        kind, fix = self.eps_schedule, "lower it or raise max_steps"
        unlearned = f"must be < {total}, or nothing is ever learned; {fix}"
        idle = "has no effect with eps_schedule=constant, which holds eps_start; set it to null"
        above = f"must be >= eps_end={show(end)}; raise it or lower eps_end"
        never = "never reached by eps_schedule=exponential; give eps_decay, or use eps_schedule=linear"
        steps = "env steps from eps_start to eps_end, >= 1; a factor needs eps_schedule=exponential"
        factor = "factor of an env step, <= 1; a number of env steps needs eps_schedule=linear"
        self.refuse_where(
            ((self.evo_steps or 0) > self.max_steps, "evo_steps", f"must be <= {total}; {fix}"),
            (self.learning_delay >= self.max_steps, "learning_delay", unlearned),
            (kind == "constant" and self.eps_end is not None, "eps_end", idle),
            (kind == "constant" and decay is not None, "eps_decay", idle),
            (kind != "constant" and start < end, "eps_start", above),
            (kind == "exponential" and decay is None and end == 0 < start, "eps_end", never),
            (kind == "linear" and decay is not None and decay < 1, "eps_decay", steps),
            (kind == "exponential" and decay is not None and decay > 1, "eps_decay", factor),
        )
        return self
