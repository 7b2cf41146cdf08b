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
from agilerl_exp.models.base import SettingsError, Spec, branches, did_you_mean, mistake, refuse
from agilerl_exp.models.env import EnvSpec
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


class ExperimentSpec(Spec):
    """A complete experiment."""

    algo: AlgorithmSpec
    """The algorithm; in a config its `name` picks the spec class."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """How long, how often and how many."""
    env: EnvSpec
    """The environment."""
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
        leaves = _flat(self.to_config())
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
            raise SettingsError([mistake("name", name, text)])
        return ALGO_REGISTRY.get(name).spec_cls.model_validate(fields)

    @model_validator(mode="after")
    def _check(self) -> ExperimentSpec:
        lines = [*self._elsewhere_mistakes(), *self._resume_mistakes()]
        lines += self._ring_mistakes() if self.algo.off_policy else self._no_ring_mistakes()
        lines += [] if self.algo.uses_epsilon else self._epsilon_mistakes()
        refuse(lines)
        return self

    def _elsewhere_mistakes(self) -> list[str]:
        lines = []
        for name, (kinds, hint) in _ELSEWHERE.items():
            if self.algo.agent_type not in kinds and _changed(self.training, name):
                text = f"not read by {self.algo.name}; {hint}"
                lines.append(mistake(f"training.{name}", getattr(self.training, name), text))
        return lines

    def _ring_mistakes(self) -> list[str]:
        lines = []
        batch, ring, training = self.algo.batch_size, self.replay_buffer, self.training
        if ring is not None and ring.max_size < batch:
            text = f"must be >= algo.batch_size={batch}; raise it or lower algo.batch_size"
            lines.append(mistake("training.replay_buffer.max_size", ring.max_size, text))
        seen = training.max_steps * (training.pop_size if training.experience_sharing else 1)
        if seen < batch:
            text = f"the ring never holds algo.batch_size={batch}; raise it or lower the batch"
            lines.append(mistake("training.max_steps", training.max_steps, text))
        learn_step = getattr(self.algo, "learn_step", 1)
        if learn_step > training.max_steps:
            text = f"must be <= training.max_steps={training.max_steps}, or nothing is ever learned"
            lines.append(mistake("algo.learn_step", learn_step, text))
        return lines

    def _no_ring_mistakes(self) -> list[str]:
        text = f"{self.algo.name} learns from no replay ring; leave it at its default"
        names = ("replay_buffer", "learning_delay", "experience_sharing")
        return [f"training.{name}: {text}" for name in names if _changed(self.training, name)]

    def _epsilon_mistakes(self) -> list[str]:
        text = f"{self.algo.name} does not explore with epsilon; leave it at its default"
        names = ("eps_start", "eps_end", "eps_decay", "eps_schedule")
        return [
            mistake(f"training.{name}", getattr(self.training, name), text)
            for name in names
            if _changed(self.training, name)
        ]

    def _resume_mistakes(self) -> list[str]:
        known = _flat(self.to_config())
        return [
            mistake("resume_allow", name, f"no such setting{did_you_mean(name, known)}")
            for name in self.resume_allow
            if not any(_covered(path, [name]) for path in known)
        ]


def field_paths(spec_cls: type[Spec], prefix: str = "") -> list[str]:
    """Return the dotted paths of all fields of a spec class."""
    return [place + name for place, spec in branches(spec_cls, prefix) for name in spec.model_fields]


def _changed(spec: Spec, name: str) -> bool:
    return getattr(spec, name) != type(spec).model_fields[name].get_default(call_default_factory=True)


def _covered(path: str, names: Collection[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            leaves.update(_flat(value, f"{prefix}{key}."))
        else:
            leaves[prefix + key] = value
    return leaves
