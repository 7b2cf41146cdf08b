"""Env steps until a task is solved with hyperparameters that nobody chose: evolution beside other ways to tune.

All methods tune the same learner (DQN of the shipped config, buffer per_n_step with 3 steps, one 64x64 network where
the width is not drawn) in the same space: each Tunable hyperparameter over its range, or with `--wide` over ranges in
which most values fail, and the width. Every env step counts: training, evaluation, all members, all trials. Each agent
is evaluated every `--evo` env steps of its own, on 4 episodes; a mean at the task's target on these and on 16 more is
confirmed on 100 fresh ones, and all of them count. No agent is confirmed before its 2,000th step. A run that needs
more than the task's cap is censored there.

    python benchmarks/hpo.py run --methods tournament8 random --seeds 0 1 2 3 4 --out hpo.jsonl   # resumable
    python benchmarks/hpo.py table --out hpo.jsonl
    python benchmarks/hpo.py run --methods static rescue --lr 1e-5 --seeds 0 1 2 3 4 --out rescue.jsonl

`random`, `optuna`: trials of one agent after another, of a limited number of training steps each, drawn uniformly, or
by TPE with Hyperband pruning. `pbt`: truncation selection. `lucky`: drawn agents, nothing selected or mutated.
`shuffled`: `tournament8` with the scores of other members. `static`, `rescue`: 8 agents that all start with `--lr`
and the shipped values, up to 150,000 env steps a member, without and with evolution.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # read when numpy and torch are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from agilerl_exp.app import register  # noqa: E402
from agilerl_exp.evolution.evolve import Evolution  # noqa: E402
from agilerl_exp.models.evolution import TournamentSpec, mutable  # noqa: E402
from agilerl_exp.models.experiment import ExperimentSpec  # noqa: E402
from agilerl_exp.training.evaluate import Evaluator  # noqa: E402
from agilerl_exp.training.off_policy import OffPolicy  # noqa: E402
from agilerl_exp.training.run import build_loop  # noqa: E402
from agilerl_exp.training.session import Session  # noqa: E402

torch.set_num_threads(1)
FEW, MORE, CONFIRM, EARLIEST = 4, 16, 100, 2_000
TASKS = {"cartpole": (475.0, 50_000, 400_000), "acrobot": (-100.0, 100_000, 600_000)}  # target, trial, cap
WIDE = {
    "lr": (1e-5, 1e-1),
    "batch_size": (16, 256),
    "learn_step": (1, 16),
    "tau": (1e-3, 1.0),
    "gamma": (0.95, 0.995),
    "eps_end": (0.001, 0.2),
}
WIDTHS = [32, 64, 128, 256]
NARROW = {"min_nodes": WIDTHS[0], "max_nodes": WIDTHS[-1]}


class Over(Exception):  # noqa: N818  (it ends a run, and is no error)
    """The target is confirmed, or the budget spent."""


class Judge(Session):
    """Counts env steps of all kinds; ends the run when the target is confirmed or `budget` is spent."""

    def __init__(self, target: float, budget: float, report: Callable[[float, int], None] | None = None):
        self.target, self.budget, self.report = target, budget, report
        self.extra, self.hit, self.score, self.steps = 0, False, -np.inf, 0

    def at_generation(self, loop: OffPolicy, returns: np.ndarray) -> None:
        means = returns.mean(1)
        best = int(means.argmax())
        if means[best] >= self.target and loop.env_step[best] >= EARLIEST:
            more = self.play(loop, best, MORE, 1)
            if np.concatenate([returns[best], more]).mean() >= self.target:
                self.score = float(self.play(loop, best, CONFIRM, 2).mean())
                self.hit = self.score >= self.target
        self.steps = int(loop.env_step.sum()) + loop.evaluation_steps + self.extra
        if self.hit or self.steps >= self.budget:
            raise Over
        if self.report is not None:
            self.report(float(means[best]), loop.generation)

    def play(self, loop: OffPolicy, member: int, episodes: int, part: int) -> np.ndarray:
        """Returns of one member on fresh episodes."""
        make = loop.evaluator.make
        alone = Evaluator(lambda _, g, n: make(member, 1000 * part + g, n), episodes, None)
        population = type(loop.population)([loop.population.agents[member].clone()])
        returns, steps = alone(population, loop.generation)
        self.extra += steps
        return returns[0]


class Still(Evolution):
    """Draws the first members; nothing is selected or mutated."""

    def step(self, population, fitness, generation, probe):
        return np.arange(len(population)), []


class Shuffled(Evolution):
    """Selects by the scores of other members."""

    def step(self, population, fitness, generation, probe):
        order = self._generator(f"shuffle/{generation}", 0).permutation(len(fitness))
        return super().step(population, fitness[order], generation, probe)


class Fixed(Evolution):
    """One member with given hyperparameters and width."""

    def __init__(self, base: Evolution, values: dict[str, float], width: int):
        super().__init__(base.spec, base.ranges, base._generator)
        self.values, self.width = values, width

    def start(self, population, probe):
        (agent,) = population.agents
        net = agent.spec.net_config.model_copy(update={"hidden_size": [self.width, self.width]})
        population.evolve(np.arange(1), None, {0: agent.with_network(net)})
        for name, value in self.values.items():
            population.set_column(name, np.array([value]))
        return []

    def step(self, population, fitness, generation, probe):
        return np.arange(1), []


def experiment(args: argparse.Namespace, seed: int, pop: int, *overrides: str) -> ExperimentSpec:
    register()
    with initialize_config_dir(str(Path(__file__).resolve().parents[1] / "conf"), version_base=None):
        cfg = compose(
            "config",
            overrides=[
                "buffer=per_n_step",
                "training.replay_buffer.n_step_buffer_args.n_step=3",
                "network=mlp",
                f"env={args.task}",
                f"+algo.net_config={{min_nodes: {NARROW['min_nodes']}, max_nodes: {NARROW['max_nodes']}}}",
                f"training.pop_size={pop}",
                f"training.max_steps={args.trial}",
                f"training.evo_steps={args.evo}",
                f"training.eval_loop={FEW}",
                f"seed={seed}",
                *(wide(args.trial) if args.wide else []),
                *overrides,
            ],
        )
    return ExperimentSpec.from_config(OmegaConf.to_container(cfg, resolve=True))


def wide(trial: int) -> list[str]:
    ranges = WIDE | {"eps_decay": (trial // 50, trial // 2)}
    entries = (f"{name}: {{min: {low}, max: {high}}}" for name, (low, high) in ranges.items())
    return [f"+algo.hp_config={{{', '.join(entries)}}}"]


def finish(loop: OffPolicy, judge: Judge) -> None:
    try:
        loop.run()
    except Over:
        pass
    finally:
        loop.envs.close()


def population(
    args, seed: int, pop: int, kind: type[Evolution] | None, *overrides: str, budget: float
) -> Judge:
    judge = Judge(args.target, budget)
    loop = build_loop(experiment(args, seed, pop, *overrides), judge)
    if kind is not None:
        base = loop.evolution
        loop.evolution = kind(base.spec, base.ranges, base._generator)
    finish(loop, judge)
    return judge


def trials(args, seed: int, smart: bool, budget: float) -> Judge:
    """Agents one after another, proposed by optuna."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed) if smart else optuna.samplers.RandomSampler(seed=seed)
    pruner = (
        optuna.pruners.HyperbandPruner(1, args.trial // args.evo) if smart else optuna.pruners.NopPruner()
    )
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    total = Judge(args.target, budget)
    while not total.hit and total.steps < budget:
        trial = study.ask()
        scores: list[float] = []

        def report(score: float, generation: int, trial: Any = trial, scores: list[float] = scores) -> None:
            scores.append(score)
            trial.report(score, generation)
            if smart and trial.should_prune():
                raise Over

        judge = Judge(args.target, budget - total.steps, report)
        spec = experiment(args, 1000 * seed + trial.number, 1)
        ranges = mutable(spec.algo, spec.training, spec.evolution)
        values = {name: suggest(trial, name, within) for name, within in ranges.items()}
        if "eps_end" in values:
            values["eps_end"] = min(values["eps_end"], values.get("eps_start", 1.0))
        loop = build_loop(spec, judge)
        base = Evolution(TournamentSpec(), ranges, loop.streams.generator)
        loop.evolution = Fixed(base, values, trial.suggest_categorical("width", WIDTHS))
        finish(loop, judge)
        total.steps += judge.steps
        total.hit, total.score = judge.hit, judge.score
        pruned = smart and scores and judge.steps < budget and loop.env_step[0] < args.trial and not judge.hit
        state = optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE
        study.tell(trial, None if pruned else max(scores, default=0.0), state)
    return total


def suggest(trial: Any, name: str, within: Any) -> float:
    if within.scale == "log1m":
        return 1 - trial.suggest_float(f"1-{name}", 1 - within.high, 1 - within.low, log=True)
    log = within.scale == "log"
    if within.integer:
        return trial.suggest_int(name, int(within.low), int(within.high), log=log)
    return trial.suggest_float(name, within.low, within.high, log=log)


def run_one(args: argparse.Namespace, method: str, seed: int) -> dict[str, Any]:
    start = time.process_time()
    drawn = "evolution.init=sample"
    long = [f"algo.lr={args.lr}", "training.max_steps=150000"]
    ours = {
        "tournament4": lambda: population(
            args, seed, 4, None, drawn, f"training.max_steps={args.cap // 4}", budget=args.cap
        ),
        "tournament8": lambda: population(args, seed, 8, None, drawn, *args.overrides, budget=args.cap),
        "shared8": lambda: population(
            args, seed, 8, None, drawn, "training.experience_sharing=true", *args.overrides, budget=args.cap
        ),
        "multi_frequency8": lambda: population(
            args, seed, 8, None, drawn, "evolution=multi_frequency", budget=args.cap
        ),
        "pbt8": lambda: population(args, seed, 8, None, drawn, "evolution=pbt", budget=args.cap),
        "lucky8": lambda: population(args, seed, 8, Still, drawn, budget=args.cap),
        "shuffled8": lambda: population(args, seed, 8, Shuffled, drawn, *args.overrides, budget=args.cap),
        "lucky4": lambda: population(
            args, seed, 4, Still, drawn, f"training.max_steps={args.cap // 4}", budget=args.cap
        ),
        "random": lambda: trials(args, seed, False, args.cap),
        "optuna": lambda: trials(args, seed, True, args.cap),
        "static": lambda: population(args, seed, 8, None, *long, "training.hpo=false", budget=np.inf),
        "rescue": lambda: population(args, seed, 8, None, *long, *args.overrides, budget=np.inf),
    }
    judge = ours[method]()
    return {
        "method": method,
        "seed": seed,
        "task": args.task,
        "wide": args.wide,
        "evo": args.evo,
        "lr": args.lr if method in ("static", "rescue") else None,
        "hit": judge.hit,
        "env_steps": judge.steps,
        "score": judge.score if judge.hit else None,
        "cpu_s": round(time.process_time() - start, 1),
    }


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def table(rows: list[dict[str, Any]], cap: int, reference: str) -> None:
    """Markdown: hits, median and mean of the censored steps, paired ratio to the reference with a 95 % interval."""
    steps: dict[str, dict[int, int]] = {}
    for row in rows:
        steps.setdefault(row["method"], {})[row["seed"]] = min(cap, row["env_steps"]) if row["hit"] else cap
    hits = {m: sum(r["hit"] and r["env_steps"] <= cap for r in rows if r["method"] == m) for m in steps}
    cpu = {method: np.median([r["cpu_s"] for r in rows if r["method"] == method]) for method in steps}
    rng = np.random.default_rng(0)
    print(
        f"| method | solved | median env steps | mean | ratio to {reference} | CPU s |\n|---|---|---|---|---|---|"
    )
    for method, own in steps.items():
        values = np.array(list(own.values()))
        both = [seed for seed in own if seed in steps.get(reference, {})]
        pairs = np.array([[own[s], steps[reference][s]] for s in both], float).reshape(-1, 2)
        ratio = ""
        if len(pairs) and method != reference:
            draws = pairs[rng.integers(len(pairs), size=(10_000, len(pairs)))].mean(1)
            low, high = np.quantile(draws[:, 0] / draws[:, 1], [0.025, 0.975])
            ratio = f"{pairs[:, 0].mean() / pairs[:, 1].mean():.2f} ({low:.2f} to {high:.2f})"
        print(
            f"| `{method}` | {hits[method]}/{len(own)} | {np.median(values):,.0f} | {values.mean():,.0f} "
            f"| {ratio} | {cpu[method]:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=["run", "table"])
    parser.add_argument("--methods", nargs="+", default=["tournament8"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--evo", type=int, default=5_000, help="env steps of an agent between two evaluations"
    )
    parser.add_argument("--task", choices=sorted(TASKS), default="cartpole")
    parser.add_argument("--wide", action="store_true", help="ranges in which most values fail")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--reference", default="tournament8", help="of the ratios in the table")
    parser.add_argument("--out", type=Path, default=Path("hpo.jsonl"))
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="SETTING", help="after --, for the tournaments"
    )
    args = parser.parse_args()
    args.target, args.trial, args.cap = TASKS[args.task]
    if args.do == "table":
        table(read(args.out), args.cap, args.reference)
        return
    for seed in args.seeds:
        for method in args.methods:
            if any((row["method"], row["seed"]) == (method, seed) for row in read(args.out)):
                continue
            row = run_one(args, method, seed)
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
