"""One experiment from its spec to its result, in its job directory.

Must not know: Hydra. The same call starts, resumes, or finds that nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agilerl_exp.buffers import join
from agilerl_exp.envs import MemberEnvs, make_member_envs
from agilerl_exp.envs.blocks import Blocks
from agilerl_exp.envs.source import time_limit
from agilerl_exp.errors import ConfigError
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.models.training import ReplayBufferSpec
from agilerl_exp.population.population import Population
from agilerl_exp.run.display import make_display
from agilerl_exp.run.job import Job
from agilerl_exp.run.random import Streams
from agilerl_exp.run.signals import Signals
from agilerl_exp.run.trackers import make_tracker
from agilerl_exp.training.evaluate import Evaluator
from agilerl_exp.training.evolving import evolution_of
from agilerl_exp.training.job_session import JobSession
from agilerl_exp.training.off_policy import OffPolicy

FINAL_EPISODES = 100
MAX_EVAL_COPIES = 20


def run(spec: ExperimentSpec, job_dir: Path, overrides: Sequence[str] = ()) -> float:
    """Train, or go on training, and write the result.

    Args:
        spec: the experiment.
        job_dir: holds everything that the run writes; may hold an earlier, interrupted run of the same spec.
        overrides: how the spec was asked for, for the record.

    Returns:
        The final policy's mean return over 100 fresh greedy episodes of the best member.

    Raises:
        AgilerlError: see `errors.py`.
        SystemExit: a signal asked the run to leave; it has been saved.
    """

    def diff(old: dict[str, Any], fingerprint: str | None) -> list[str]:
        before = ExperimentSpec.from_config(old)
        lines = before.diff(spec, spec.resume_allow)
        if lines and fingerprint not in (None, before.fingerprint()):
            raise ConfigError(f"{lines[0]}: not what was run by the fingerprint in status.json")
        return lines

    root = job_dir / (spec.training.checkpoint_path or "checkpoints")
    if spec.training.checkpoint_path is not None and Path(spec.training.checkpoint_path).is_absolute():
        root = root / job_dir.parent.name / job_dir.name
    job = Job(
        job_dir,
        spec.to_config(),
        spec.fingerprint(),
        diff=diff,
        overrides=overrides,
        checkpoint_dir=None if root.is_relative_to(job_dir) else root,
    )
    with job:
        if job.complete:
            display = make_display(spec.training.max_steps)
            display.message(f"{job_dir}: already complete, nothing to do")
            return float(job.read("result.json")["score"])
        return _run_job(spec, job, root)


def _run_job(spec: ExperimentSpec, job: Job, root: Path) -> float:
    training = spec.training
    display = make_display(training.max_steps, members=training.pop_size)
    tracker = make_tracker(spec.tracker, job.job_dir)
    summary: dict[str, Any] | None = None
    loop = None
    try:
        with Signals() as signals:
            session = JobSession(spec, job, root, tracker, signals, display)
            loop = build_loop(spec, session)
            if training.hpo and training.pop_size == 1 and spec.evolution.name != "none":
                display.message("one member: nothing evolves")
            if not session.restore(loop) and training.eval_steps is None and time_limit(spec.env) is None:
                loop.evaluator.refuse_endless()
            display.update({"env_step": int(loop.env_step.min())})
            loop.run()
            result = _result(spec, loop, session)
            job.finish(result)
            summary = _summary(result, job.job_dir, root)
            return float(result["score"])
    finally:
        display.close(summary)
        tracker.close()
        if loop is not None:
            loop.envs.close()


def build_loop(spec: ExperimentSpec, session: JobSession | None = None) -> OffPolicy:
    """Everything a run needs, from its spec: environments, agents, rings, streams.

    Raises:
        ConfigError: something the spec names cannot be made.
    """
    training, slots = spec.training, range(spec.training.pop_size)
    if spec.device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device={spec.device}: no CUDA device is available here; use device=cpu")
    streams = Streams(spec.seed, slots)
    seeds = [streams.env_seeds(slot, spec.env.num_envs) for slot in slots]
    envs = Blocks([make_member_envs(spec.env, seeds[slot], member=slot) for slot in slots])
    algo_class = spec.algo.algo_class()
    pop = [
        algo_class(spec.algo, envs.observation_space, envs.action_space, slot, spec.device, spec.seed)
        for slot in slots
    ]
    ring = spec.replay_buffer or ReplayBufferSpec()
    memory = ring.init_buffer(spec.algo, spec.device, shared=training.experience_sharing)
    companion = ring.init_n_step_buffer(spec.algo, spec.device, shared=training.experience_sharing)
    buffer = memory if companion is None else join(memory, companion)

    def fresh(member: int, generation: int, episodes: int) -> MemberEnvs:
        seeds = streams.env_seeds(member, min(episodes, MAX_EVAL_COPIES), "eval", generation)
        return make_member_envs(spec.env, seeds, member=member)

    evaluator = Evaluator(fresh, training.eval_loop, training.eval_steps)
    evolution = evolution_of(spec.evolution, spec.algo, training, spec.seed)
    return OffPolicy(Population(pop), envs, buffer, training, streams, evaluator, session, evolution)


def _result(spec: ExperimentSpec, loop: OffPolicy, session: JobSession) -> dict[str, Any]:
    """Scores of the final policies on fresh episodes: no seed of theirs was used before."""
    fitness = [agent.fitness[-1] for agent in loop.population.agents]
    best = int(np.argmax(fitness))
    fresh = Evaluator(loop.evaluator.make, FINAL_EPISODES, loop.evaluator.max_steps)
    returns, played = fresh(loop.population, loop.generation)
    scores = returns.mean(1).tolist()
    return {
        "score": scores[best],
        "score_std": float(returns[best].std()),
        "score_episodes": FINAL_EPISODES,
        "best_member": best,
        "fitness": fitness,
        "member_scores": scores,
        "best_checkpoint": session.best,
        "env_steps": loop.env_step.tolist(),
        "total_env_steps": int(loop.env_step.sum()) + loop.evaluation_steps + played,
        "seed": spec.seed,
    }


def _summary(result: dict[str, Any], job_dir: Path, root: Path) -> dict[str, Any]:
    return {
        "best member": result["best_member"],
        "score": f"{result['score']:.4g} +- {result['score_std']:.3g}, {FINAL_EPISODES} fresh greedy episodes",
        "last evaluation": result["fitness"][result["best_member"]],
        "env steps": f"{result['total_env_steps']:,}, all members and evaluations",
        "job directory": str(job_dir),
        "checkpoints": str(root),
    }
