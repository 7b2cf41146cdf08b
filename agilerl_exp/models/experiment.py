"""The whole tree of an experiment, with the checks that need more than one branch of it.

Must not know: where the tree comes from (a plain dict arrives), and how it is run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_serializer, field_validator, model_validator

from agilerl_exp.errors import ConfigError
from agilerl_exp.models.algo import ALGO_REGISTRY, AlgorithmSpec
from agilerl_exp.models.base import Spec, branches, did_you_mean, mistake, refuse
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.evolution import AnyEvolution, TournamentSpec, mistakes
from agilerl_exp.models.explain import explain
from agilerl_exp.models.plugins import FORGOTTEN
from agilerl_exp.models.tracker import TrackerSpec
from agilerl_exp.models.training import ReplayBufferSpec, TrainingSpec

_OUTSIDE_FINGERPRINT = {
    "resume",
    "resume_allow",
    "tracker",
    "threads",  # recorded with the run, where a change warns in place of refusing
    "training.reporting_interval",
    "training.checkpoint_steps",
    "training.checkpoint_path",
}

_ELSEWHERE = {  # training field -> the kinds of algorithm that read it, and what to use with the others
    "evaluation_interval": ({"llm"}, "evaluations follow training.evo_steps"),
    "num_epochs": ({"llm", "offline"}, "the length is training.max_steps"),
    "episode_steps": ({"bandit"}, "the cap of an evaluation episode is training.eval_steps"),
    "sum_scores": ({"multi_agent"}, "one agent has one score; leave it true"),
}
_EPSILON = ("eps_start", "eps_end", "eps_decay", "eps_schedule")
_RING = ("replay_buffer", "learning_delay", "experience_sharing")


class ExperimentSpec(Spec):
    """A complete experiment."""

    algo: AlgorithmSpec
    """The algorithm; in a config its `name` picks the spec class."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """How long, how often and how many."""
    env: EnvSpec
    """The environment."""
    evolution: AnyEvolution = Field(default_factory=TournamentSpec)
    """How the population evolves, with `training.hpo` and more than one member."""
    tracker: TrackerSpec = Field(default_factory=TrackerSpec)
    """Where metrics go."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of every random stream."""
    threads: Annotated[int | None, Field(ge=1)] = None
    """Threads of the numeric libraries; null: 1."""
    device: str = "cpu"
    """Torch device of the networks: cpu, cuda or cuda:N."""
    plugins: list[str] = Field(default_factory=list)
    """Files or modules with the user's own specs and algorithms, imported before anything is composed."""
    resume: str | None = None
    """Job directory to go on with."""
    resume_allow: list[str] = Field(default_factory=list)
    """Fields that may differ from the job that is resumed."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ExperimentSpec:
        """Validate a tree of plain dicts, lists and scalars.

        Raises:
            ConfigError: One line for each mistake that can be told: `algo.gamma=2: input should be ...`.
        """
        try:
            return cls.model_validate(config)
        except ValidationError as error:
            raise ConfigError("\n".join(explain(error, cls._paths(config), config))) from None

    @classmethod
    def _paths(cls, config: dict[str, Any]) -> list[str]:
        algo = config.get("algo")
        name = algo.get("name") if isinstance(algo, dict) else None
        chosen = [ALGO_REGISTRY.get(name).spec_cls] if name in ALGO_REGISTRY.names() else []
        return [
            *field_paths(cls),
            "algo.name",
            *(path for spec in chosen for path in field_paths(spec, "algo.")),
        ]

    def to_config(self) -> dict[str, Any]:
        """Return the tree as JSON-able dicts; `from_config` of it gives an equal spec."""
        return self.model_dump(mode="json")

    def fingerprint(self) -> str:
        """Return the sha256 of everything that a resumed run must share with the run it goes on with."""
        text = json.dumps(self._identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def diff(self, new: ExperimentSpec, allow: Collection[str] = ()) -> list[str]:
        """List how `new` differs in what the fingerprint covers, as `field: old -> new`.

        Args:
            new: The other experiment.
            allow: Fields, or groups of fields, that are left out (`resume_allow`).
        """
        ours, theirs = self._identity(), new._identity()
        return [
            f"{path}: {json.dumps(ours.get(path))} -> {json.dumps(theirs.get(path))}"
            for path in sorted(ours.keys() | theirs.keys())
            if ours.get(path) != theirs.get(path) and not _covered(path, allow)
        ]

    @property
    def replay_buffer(self) -> ReplayBufferSpec | None:
        """The replay ring with the default filled in; None for algorithms without one."""
        return (self.training.replay_buffer or ReplayBufferSpec()) if self.algo.off_policy else None

    @property
    def generation_steps(self) -> int:
        """Env steps of a member in one generation."""
        return self.training.generation_steps(self.algo.default_evo_steps)

    def _identity(self) -> dict[str, Any]:
        leaves = flat(self.to_config())
        return {path: value for path, value in leaves.items() if not _covered(path, _OUTSIDE_FINGERPRINT)}

    @field_serializer("algo")
    def _dump_algo(self, algo: AlgorithmSpec) -> dict[str, Any]:
        return {"name": algo.name, **algo.model_dump(mode="json")}

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if re.fullmatch(r"cpu|cuda(:\d+)?", device) is None:
            raise ValueError("must be cpu, cuda or cuda:N")
        return device

    @field_validator("algo", mode="before")
    @classmethod
    def _choose_algo(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = dict(value)
        name = fields.pop("name", None)
        names = ALGO_REGISTRY.names()
        if name not in names:
            hint = did_you_mean(str(name), names)
            text = f"no such algorithm{hint} (have: {', '.join(names)}){'' if hint or name is None else FORGOTTEN}"
            refuse([mistake("name", name, text)])
        return ALGO_REGISTRY.get(name).spec_cls.model_validate(fields)

    @model_validator(mode="after")
    def _check(self) -> ExperimentSpec:
        evolution = mistakes(self.algo, self.training, self.evolution)
        refuse([*self._idle_mistakes(), *self._length_mistakes(), *evolution, *self._resume_mistakes()])
        return self

    def _idle_mistakes(self) -> list[str]:
        """Training fields that were changed and that the algorithm does not read."""
        algo, training = self.algo, self.training
        changed = {name: value for name, value in training if value != _default(training, name)}
        kinds = {name: hint for name, (kinds, hint) in _ELSEWHERE.items() if algo.agent_type not in kinds}
        idle = {name: f"not read by {algo.name}; {hint}" for name, hint in kinds.items()}
        if not algo.uses_epsilon:
            idle |= dict.fromkeys(
                _EPSILON, f"{algo.name} does not explore with epsilon; leave it at its default"
            )
        ring = [] if algo.off_policy else [name for name in _RING if name in changed]
        return [
            *(
                f"training.{name}: {algo.name} learns from no replay ring; leave it at its default"
                for name in ring
            ),
            *(
                mistake(f"training.{name}", changed[name], text)
                for name, text in idle.items()
                if name in changed
            ),
        ]

    def _length_mistakes(self) -> list[str]:
        """A ring, a run or an interval with which nothing would ever be learned."""
        ring, training, batch = self.replay_buffer, self.training, self.algo.batch_size
        if ring is None:
            return []
        total, learn_step = training.max_steps, getattr(self.algo, "learn_step", 1)
        seen = total * (training.pop_size if training.experience_sharing else 1)
        small = f"must be >= algo.batch_size={batch}; raise it or lower algo.batch_size"
        short = f"the ring never holds algo.batch_size={batch}; raise it or lower the batch"
        late = f"must be <= training.max_steps={total}, or nothing is ever learned"
        rules = [
            (ring.max_size < batch, "training.replay_buffer.max_size", ring.max_size, small),
            (seen < batch, "training.max_steps", total, short),
            (learn_step > total, "algo.learn_step", learn_step, late),
        ]
        return [mistake(field, value, text) for broken, field, value, text in rules if broken]

    def _resume_mistakes(self) -> list[str]:
        known = flat(self.to_config()) if self.resume_allow else {}
        return [
            mistake("resume_allow", name, f"no such setting{did_you_mean(name, known)}")
            for name in self.resume_allow
            if not any(_covered(path, [name]) for path in known)
        ]


def field_paths(spec_cls: type[Spec], prefix: str = "") -> dict[str, str]:
    """Return the dotted paths of all fields of a spec class, each with what it means."""
    return {
        place + name: field.description or ""
        for place, spec in branches(spec_cls, prefix)
        for name, field in spec.model_fields.items()
    }


def _default(spec: Spec, name: str) -> Any:
    return type(spec).model_fields[name].get_default(call_default_factory=True)


def _covered(path: str, names: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their dotted paths; an empty branch is a leaf."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            leaves.update(flat(value, f"{prefix}{key}."))
        else:
            leaves[prefix + key] = value
    return leaves
