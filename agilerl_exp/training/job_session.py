"""A job's session: metric rows, checkpoints, signals, the display.

Must not know: how a loop trains, which algorithm runs. Everything here that decides what is written is part of the
resume state, so that a resumed run writes the same bytes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.run.checkpoint import newest_valid, prune, read_checkpoint, write_best, write_checkpoint
from agilerl_exp.run.display import Display
from agilerl_exp.run.environment import environment_changes
from agilerl_exp.run.job import Job
from agilerl_exp.run.signals import Signals
from agilerl_exp.run.trackers import Tracker
from agilerl_exp.training.session import Session


class JobSession(Session):
    """Keeps a run in its job directory.

    Args:
        spec: the experiment.
        job: the directory, held by this process.
        root: where checkpoints go.
        tracker: where metric rows go.
        signals: asks for saves.
        display: what a person sees.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        job: Job,
        root: Path,
        tracker: Tracker,
        signals: Signals,
        display: Display,
    ):
        self.training, self.job, self.root = spec.training, job, root
        self.tracker, self.signals, self.display = tracker, signals, display
        self.best: dict[str, Any] | None = None
        self._reported = np.zeros(spec.training.pop_size, np.int64)  # reporting intervals that have a row
        self._row_step = np.full(spec.training.pop_size, -1)  # env step of each member's newest train row
        self._saved = 0
        self._newest: dict[int, dict[str, Any]] = {}
        self._shown = 0
        self._exact = True
        self._started = time.monotonic(), time.process_time()

    # Called by the loop.

    def at_boundary(self, loop: Any) -> None:
        """Report members that passed a reporting interval; save when due or asked by a signal."""
        passed, due = self._passed(loop)
        late = np.flatnonzero(passed > self._reported).tolist()
        for member in late:
            self._report(loop, member)
        self._reported = passed
        if late and passed.min() > self._shown:
            self._show(loop)
        asked = self.signals.pending
        if due > self._saved or asked:
            self._saved = due
            self.save(loop)
        if asked:
            self.display.message(f"saved at env step {int(loop.env_step.min())} on a signal")
            self.signals.obey()

    def at_generation(self, loop: Any, returns: np.ndarray) -> None:
        """Write a row a member, keep the best agent, save."""
        for member, agent in enumerate(loop.population.agents):
            if self._row_step[member] != loop.env_step[member]:
                self._report(loop, member)
            row = self._row(loop, "eval", member)
            row |= {"fitness": agent.fitness[-1], "fitness_std": float(returns[member].std())}
            self.tracker.log(row | {"eval_episodes": returns.shape[1]})
            self._keep_best(loop, member)
        self._timing(loop)
        self._show(loop)
        if loop.target_reached:
            self.display.message(f"target score {self.training.target_score:g} reached")

    def at_births(self, loop: Any, births: Sequence[Any]) -> None:
        """Write a lineage row a birth; say who was replaced by whom and what was changed."""
        for birth in births:
            row = {"generation": loop.generation, "env_step": int(loop.env_step[birth.member])}
            self.tracker.log_birth(row | birth._asdict())
        told = [_told(birth) for birth in births if birth.kind != "founder"]
        if told:
            self.display.message(f"generation {loop.generation}: {', '.join(told)}")

    def at_next_generation(self, loop: Any) -> None:
        """Save, where a checkpoint a generation is asked for."""
        if self.training.checkpoint_steps is None and not loop.finished:
            self.save(loop)

    def warn(self, text: str) -> None:
        """Show a line."""
        self.display.message(text)

    def at_end(self, loop: Any) -> None:
        """Save the end of the run."""
        self.save(loop)

    # Checkpoints.

    def save(self, loop: Any) -> None:
        """Write a checkpoint of the whole run at this step boundary, then prune older ones."""
        state = loop.state_dict()
        session = {"best": self.best, "row_step": self._row_step.tolist()}
        if self._exact and not loop.envs.exact:
            self._exact = False
            self.display.message(
                "environment episodes cannot be restored exactly: a resume is not byte-exact"
            )
        meta = {"tracker": self.tracker.position(), "exact_resume": self._exact, **_stacking(loop)}
        step = int(loop.env_step.min())
        write_checkpoint(self.root, step, state["policy"], {**state["resume"], "session": session}, meta)
        prune(self.root, keep_policies=not self.training.overwrite_checkpoints)
        self.job.update(step=step)

    def restore(self, loop: Any) -> bool:
        """Go on from the newest valid checkpoint, if there is one.

        Raises:
            CheckpointError: there are checkpoints, and none can be used.
        """
        path = newest_valid(self.root, self.display.message)
        if path is None:
            self.tracker.truncate({})
            return False
        state, manifest = read_checkpoint(path)
        changes = environment_changes(manifest)
        was = manifest["meta"]
        changes += [
            f"{name} {was[name]} -> {now}" for name, now in _stacking(loop).items() if was[name] != now
        ]
        for line in changes:
            self.display.message(f"{line}: the resumed run is not byte-exact")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            loop.load_state_dict(state)
        for warning in caught:
            self.display.message(str(warning.message))
        session = state["session"]
        self.best, self._row_step[...] = session["best"], session["row_step"]
        self._reported, self._saved = self._passed(loop)
        self._exact = was["exact_resume"] and not caught
        self.tracker.truncate(was["tracker"])
        self.display.message(f"resumed from {path.name}")
        return True

    def _passed(self, loop: Any) -> tuple[np.ndarray, int]:
        """Reporting intervals of each member, and checkpoint intervals of the slowest, that are over."""
        due = int(loop.env_step.min()) // (self.training.checkpoint_steps or np.iinfo(np.int64).max)
        return loop.env_step // self.training.reporting_interval, due

    # Rows.

    def _report(self, loop: Any, member: int) -> None:
        row = self._row(loop, "train", member)
        row |= {"epsilon": float(loop.epsilon(np.array([member]))[0])} | loop.meter.take(member)
        row["update_step"] = loop.population.agents[member].update_step
        row |= loop.population.agents[member].hyperparameters
        self.tracker.log(row)
        self._row_step[member] = loop.env_step[member]
        self._newest[member] = row

    def _show(self, loop: Any) -> None:
        """Show where the slowest member is and the figures of the best, by training score."""
        step = int(loop.env_step.min())
        self._shown = step // self.training.reporting_interval
        rows = self._newest.values()  # none yet right after a resume
        row = max(rows, key=lambda r: -np.inf if r["score"] is None else r["score"], default={})
        figures = {"score": row.get("score"), "eps": row.get("epsilon"), "loss": row.get("loss")}
        self.display.update({"env_step": step, **figures})

    def _row(self, loop: Any, kind: str, member: int) -> dict[str, Any]:
        row = {"kind": kind, "generation": loop.generation, "member": member}
        return row | self._steps(loop) | {"env_step": int(loop.env_step[member])}

    def _steps(self, loop: Any) -> dict[str, int]:
        total = int(loop.env_step.sum()) + loop.evaluation_steps
        return {"env_step": int(loop.env_step.min()), "total_env_steps": total}

    def _timing(self, loop: Any) -> None:
        wall, cpu = self._started
        took = {"wall_s": round(time.monotonic() - wall, 3), "cpu_s": round(time.process_time() - cpu, 3)}
        self.tracker.log_timing(self._steps(loop) | took)
        self.job.update(step=int(loop.env_step.min()))

    def _keep_best(self, loop: Any, member: int) -> None:
        agent, step = loop.population.agents[member], int(loop.env_step[member])
        if self.best is None or agent.fitness[-1] > self.best["fitness"]:
            self.best = {"fitness": agent.fitness[-1], "member": member, "step": step}
            write_best(self.root, self.best, {"agent": agent.state_dict()})


def _told(birth: Any) -> str:
    """A birth in a few words: `3<-1 lr 0.001 -> 0.0021`; several changes in parentheses."""
    source = "" if birth.parent == birth.member else f"<-{birth.parent}"
    change = {"none": "", "params": "weights"}.get(birth.kind, "")
    if birth.name is not None:
        change = _moved(birth.name, birth.old, birth.new)
    elif isinstance(birth.new, dict):
        change = f"({', '.join(_moved(name, birth.old[name], new) for name, new in birth.new.items())})"
    return f"{birth.member}{source} {change}".strip()


def _moved(name: str, *values: Any) -> str:
    return f"{name} " + " -> ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in values)


def _stacking(loop: Any) -> dict[str, Any]:
    """How members are stacked and computed: other groups or engines round differently."""
    cohorts = loop.population.cohorts
    return {"engines": [c.engine for c in cohorts], "cohorts": [c.slots.tolist() for c in cohorts]}
