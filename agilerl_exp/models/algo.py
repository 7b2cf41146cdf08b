"""Base specs of all algorithms, and the registry under the names of the spec layer.

Must not know: concrete algorithms, networks, loops; what lies below is resolved by name when asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from agilerl_exp.models import _resolve
from agilerl_exp.models.base import (
    RLHyperparameter,
    Spec,
    Static,
    Tunable,
    did_you_mean,
    lower_first,
    mistake,
    refuse,
    tunables,
)
from agilerl_exp.models.env import EnvSpec
from agilerl_exp.models.network import NetworkSpec
from agilerl_exp.models.registry import ALGO_REGISTRY as ALGO_REGISTRY
from agilerl_exp.models.registry import AlgorithmRegistry as AlgorithmRegistry
from agilerl_exp.models.registry import RegistryEntry as RegistryEntry
from agilerl_exp.models.registry import register as register
from agilerl_exp.models.training import TrainingSpec

HpConfig: TypeAlias = dict[str, RLHyperparameter | None]
AgentType: TypeAlias = Literal["single", "offline", "bandit", "multi_agent", "llm"]


class AlgorithmSpec(Spec):
    """Base of all specs; a concrete `<Name>Spec` sets `agent_type` and overrides `get_training_fn`."""

    agent_type: ClassVar[AgentType]
    """Which kind of learner it is."""
    off_policy: ClassVar[bool] = False
    """It learns from a replay ring."""
    uses_epsilon: ClassVar[bool] = False
    """It explores with probability epsilon."""
    default_evo_steps: ClassVar[int] = 10_000
    """Env steps of a member in one generation when `TrainingSpec.evo_steps` is null."""

    batch_size: Annotated[int, Field(ge=1), Tunable(8, 1024, "log"), Static()] = 128
    """Transitions (sequences for language models) an update."""
    hp_config: HpConfig | None = None
    """Hyperparameters that evolution may move, each with its range or null for the usual one; null: all that can."""

    @property
    def name(self) -> str:
        """The algorithm's name: the class name without `Spec`."""
        return type(self).__name__.removesuffix("Spec")

    @classmethod
    def algo_class(cls) -> type[Any]:
        """Return the algorithm class `<Name>`; it is imported now, so that specs stay light.

        Raises:
            LookupError: There is no such class.
        """
        return _resolve.algorithm_class(cls)

    def build_algorithm(self, *args: Any, **kwargs: Any) -> Any:
        """Build the algorithm from the fields of the spec and what only the run knows."""
        raise NotImplementedError(f"{self.name} cannot be built: its spec does not override build_algorithm")

    @staticmethod
    def get_training_fn() -> Callable[..., tuple[list[Any], list[float]]]:
        """Return the training function: `(env, pop, **get_training_kwargs(...)) -> (population, fitnesses)`.

        Raises:
            NotImplementedError: The concrete spec does not override it.
        """
        raise NotImplementedError("the spec does not override get_training_fn")

    def get_training_kwargs(
        self, *, training: TrainingSpec, env_spec: EnvSpec, memory: Any = None, n_step_memory: Any = None
    ) -> dict[str, Any]:
        """Return the keyword arguments of the training function.

        Args:
            training: How long, how often, how many.
            env_spec: The environment; its name labels what is written.
            memory: The replay ring (off-policy).
            n_step_memory: The companion of a prioritized ring, passed on when given.
        """
        kwargs: dict[str, Any] = {"training": training, "env_name": env_spec.name}
        if self.off_policy:
            kwargs["memory"] = memory
            if n_step_memory is not None:
                kwargs["n_step_memory"] = n_step_memory
        return kwargs

    @classmethod
    def mutable_fields(cls) -> dict[str, type[Spec]]:
        """Return the names that `hp_config` may hold, each with the spec class that declares the field."""
        names: dict[str, type[Spec]] = dict.fromkeys(tunables(cls), cls)
        if cls.uses_epsilon:
            names.update(dict.fromkeys(tunables(TrainingSpec), TrainingSpec))
        return names

    @field_validator("hp_config", mode="after")
    @classmethod
    def _check_hp_config(cls, hp_config: HpConfig | None) -> HpConfig | None:
        refuse(
            [line for name, entry in (hp_config or {}).items() for line in cls.range_mistakes(name, entry)]
        )
        return hp_config

    @classmethod
    def range_mistakes(cls, name: str, entry: RLHyperparameter | None) -> list[str]:
        """Say what is wrong with the range of a hyperparameter, a line each that begins with its name."""
        fields, lines = cls.mutable_fields(), []
        if name not in fields:
            return [
                f"{name}: not a tunable hyperparameter{did_you_mean(name, fields)} (have: {', '.join(fields)})"
            ]
        if entry is None:
            return []
        field = TypeAdapter(Annotated[float, *fields[name].model_fields[name].metadata])
        for end, value in (("min", entry.min), ("max", entry.max)):
            try:
                field.validate_python(value)
            except ValidationError as error:
                lines.append(mistake(f"{name}.{end}", value, lower_first(error.errors()[0]["msg"])))
        return lines


class RLAlgorithmSpec(AlgorithmSpec):
    """Base of single-agent algorithm specs."""

    agent_type: ClassVar[AgentType] = "single"

    learn_step: Annotated[int, Field(ge=1), Tunable(1, 64, "log"), Static()] = 5
    """Env steps of a member from one update to the next."""
    gamma: Annotated[float, Field(ge=0, le=1), Tunable(0.9, 0.9999, "log1m")] = 0.99
    """Discount of an env step."""
    net_config: NetworkSpec | None = None
    """The network; null: chosen by the observation space."""

    def build_algorithm(
        self,
        observation_space: Any = None,
        action_space: Any = None,
        index: int | None = None,
        resume_from_checkpoint: str | None = None,
        device: Any = "cpu",
        accelerator: Any = None,
    ) -> Any:
        """Build one agent, with every field of this spec.

        Args:
            observation_space: gymnasium space of one observation.
            action_space: gymnasium space of one action.
            index: Index of the agent in its population.
            resume_from_checkpoint: Directory of an agent or a checkpoint to load.
            device: Torch device (str or torch.device).
            accelerator: Must be None; distributed agents come in a later round.

        Returns:
            The agent.

        Raises:
            ValueError: A space or the index is missing.
            NotImplementedError: An accelerator is given.
        """
        _require(self, observation_space=observation_space, action_space=action_space, index=index)
        if accelerator is not None:
            raise NotImplementedError("accelerator: distributed agents are not available yet; leave it None")
        spaces = {"observation_space": observation_space, "action_space": action_space}
        agent = self.algo_class()(spec=self, **spaces, index=index, device=device)
        if resume_from_checkpoint is not None:
            agent.load_checkpoint(resume_from_checkpoint)
        return agent


class MultiAgentRLAlgorithmSpec(AlgorithmSpec):
    """Base of multi-agent algorithm specs."""

    agent_type: ClassVar[AgentType] = "multi_agent"

    learn_step: Annotated[int, Field(ge=1), Tunable(16, 8192, "log"), Static()] = 2048
    """Env steps of a member from one update to the next."""
    gamma: Annotated[float, Field(ge=0, le=1), Tunable(0.9, 0.9999, "log1m")] = 0.99
    """Discount of an env step."""
    torch_compiler: str | None = None
    """Mode of torch.compile; null: not compiled."""

    def build_algorithm(
        self,
        observation_spaces: dict[str, Any] | None = None,
        action_spaces: dict[str, Any] | None = None,
        index: int | None = None,
        resume_from_checkpoint: str | None = None,
        device: Any = "cpu",
        accelerator: Any = None,
    ) -> Any:
        """Build one multi-agent learner (no such algorithm exists yet).

        Args:
            observation_spaces: gymnasium space of one observation of each agent, by agent id.
            action_spaces: gymnasium space of one action of each agent, by agent id.
            index: Index of the learner in its population.
            resume_from_checkpoint: Directory to load.
            device: Torch device (str or torch.device).
            accelerator: For distributed computing.

        Raises:
            ValueError: The spaces or the index are missing.
            NotImplementedError: Otherwise.
        """
        _require(self, observation_spaces=observation_spaces, action_spaces=action_spaces, index=index)
        raise NotImplementedError(f"{self.name}: multi-agent algorithms are not available yet")


class LLMAlgorithmSpec(AlgorithmSpec):
    """Base of specs that fine-tune language models. A concrete spec sets `env_type`."""

    agent_type: ClassVar[AgentType] = "llm"
    env_type: ClassVar[Literal["reasoning", "preference", "sft", "multiturn"]]
    """The kind of data it learns from."""

    beta: Annotated[float, Field(ge=0, le=1), Tunable(1e-4, 0.5, "log")] = 0.001
    """Weight of the divergence from the reference model."""
    max_grad_norm: Annotated[float, Field(ge=0)] = 0.1
    """Norm that the gradient is clipped to."""
    update_epochs: Annotated[int, Field(ge=1), Tunable(1, 8, "log"), Static()] = 1
    """Passes over each batch of rollouts."""
    reduce_memory_peak: bool = False
    """Compute log-probabilities without gradient one sequence at a time."""
    use_separate_reference_adapter: bool = False
    """Keep the reference in a second, frozen adapter; false: the base model without adapters."""
    calc_position_embeddings: bool = True
    """Number positions from the attention mask, so that left padding does not shift them."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass."""
    use_liger_loss: bool = False
    """Use fused loss kernels."""
    seed: Annotated[int, Field(ge=0)] = 42
    """Seed of the minibatch order."""
    quantization: str | dict[str, Any] | None = None
    """Quantised loading of the base model: a name or the options."""
    activation_offload: bool = False
    """Keep activations for the backward pass in host memory."""
    use_sequence_packing: bool = False
    """Put sequences one after the other in place of padding them."""
    lora_target_scope: str | None = None
    """Adapt only modules under this path."""
    fused_logprobs_chunk_rows: Annotated[int | None, Field(ge=1)] = None
    """Rows of the (rows x vocabulary) tile when log-probabilities are formed; null: by memory."""
    fused_loss_chunk_rows: Annotated[int | None, Field(ge=1)] = None
    """Rows of the tile when the token loss is formed; null: by memory."""
    vllm_importance_sampling_correction: bool = True
    """Weight the policy term by the ratio of the trainer's and the sampler's probabilities."""
    vllm_importance_sampling_cap: Annotated[float, Field(ge=0)] = 2.0
    """Largest such weight."""
    attn_implementation: str | None = None
    """Attention kernel, by the name the model loader knows; null: the best that is installed."""
    pretrained_model_name_or_path: Annotated[str | None, Field(min_length=1)] = None
    """The model to load."""
    max_model_len: Annotated[int, Field(ge=1)] = 1024
    """Tokens of prompt and completion together."""
    lora_config: Any | None = None
    """Configuration of the adapters."""

    def build_algorithm(
        self,
        tokenizer: Any = None,
        index: int = 0,
        resume_from_checkpoint: str | None = None,
        accelerator: Any = None,
        device: Any = "cpu",
        actor_network: Any = None,
    ) -> Any:
        """Build one language-model learner (no such algorithm exists yet).

        Args:
            tokenizer: The tokenizer of the model.
            index: Index of the learner in its population.
            resume_from_checkpoint: Directory to load.
            accelerator: For distributed computing.
            device: Torch device (str or torch.device).
            actor_network: A model to train in place of loading `pretrained_model_name_or_path`.

        Raises:
            ValueError: The tokenizer is missing.
            NotImplementedError: Otherwise.
        """
        _require(self, tokenizer=tokenizer)
        raise NotImplementedError(f"{self.name}: language-model algorithms are not available yet")


def _require(spec: AlgorithmSpec, **arguments: Any) -> None:
    missing = [name for name, value in arguments.items() if value is None]
    if missing:
        raise ValueError(f"{spec.name}.build_algorithm: {', '.join(missing)} must be given")
