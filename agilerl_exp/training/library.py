"""The training functions of library users: agents in, trained agents out, no config and no job directory.

Must not know: how a loop trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector import VectorEnv

from agilerl_exp.buffers import join
from agilerl_exp.envs.blocks import Blocks, blocks_of
from agilerl_exp.errors import ConfigError
from agilerl_exp.models.evolution import EvolutionSpec, NoEvolutionSpec, TournamentSpec
from agilerl_exp.models.training import TrainingSpec
from agilerl_exp.population.population import Population
from agilerl_exp.run.random import Streams
from agilerl_exp.training.evaluate import evaluator_of
from agilerl_exp.training.evolving import evolution_of
from agilerl_exp.training.off_policy import OffPolicy


def train_off_policy(  # noqa: PLR0913  (what a user may replace, by name)
    env: Any,
    pop: Sequence[Any],
    memory: Any,
    *,
    n_step_memory: Any = None,
    training: TrainingSpec | None = None,
    env_name: str = "env",
    eval_env: Callable[[int], Any] | None = None,
    seed: int = 0,
    evolution: EvolutionSpec | NoEvolutionSpec | None = None,
) -> tuple[list[Any], list[float]]:
    """Train a population of off-policy agents; usable without a config or a job directory.

    Args:
        env: a callable member -> VectorEnv, or one VectorEnv whose copies are divided among the members.
        pop: agents of one algorithm; the same objects are returned.
        memory: `ReplayBufferSpec.init_buffer(...)`.
        n_step_memory: its n-step companion, when the memory is prioritized and n-step.
        training: how long and how often; None takes the defaults.
        env_name: named in messages.
        eval_env: callable member -> VectorEnv for evaluation; None: `env` again, or the same registered id.
        seed: of exploration, sampling, evolution and the environments; a `MemberEnvs` keeps seeds of its own.
        evolution: how the population evolves; None: a tournament, with `training.hpo` and more than one agent.

    Returns:
        The agents and, of each, the score of its last evaluation; nothing happens to an agent after it.

    Raises:
        ConfigError: agents, environments, memory and training do not fit together, or an episode may never end.
        DivergenceError: a loss is not finite.
        EnvError: an environment failed.
    """
    population = Population(pop)
    training = training or TrainingSpec(pop_size=len(pop))
    streams = Streams(seed, range(len(pop)))
    blocks = blocks_of(env, len(pop), streams.env_seeds)
    _refuse_unfit(population.agents, blocks, memory, training)
    evaluator = evaluator_of(env, eval_env, training, env_name, streams.env_seeds)
    buffer = memory if n_step_memory is None else join(memory, n_step_memory)
    evolver = evolution_of(evolution or TournamentSpec(), pop[0].spec, training, seed)
    loop = OffPolicy(population, blocks, buffer, training, streams, evaluator, evolution=evolver)
    try:
        loop.run()
    finally:
        if not isinstance(env, VectorEnv):  # then they were made here
            blocks.close()
    return population.agents, [agent.fitness[-1] for agent in population.agents]


def _refuse_unfit(pop: Sequence[Any], envs: Blocks, memory: Any, training: TrainingSpec) -> None:
    if training.pop_size != len(pop):
        raise ConfigError(
            f"training.pop_size={training.pop_size}: pop has {len(pop)} agents; give one number"
        )
    if training.experience_sharing != memory.shared:
        raise ConfigError(
            f"training.experience_sharing={training.experience_sharing}: memory has shared={memory.shared}; "
            "build it with init_buffer(..., shared=training.experience_sharing)"
        )
    for i, agent in enumerate(pop):
        for name in ("observation_space", "action_space"):
            own, given = getattr(agent, name), getattr(envs, name)
            if own != given:
                raise ConfigError(f"pop[{i}]: built for the {name} {own}, the environment has {given}")
