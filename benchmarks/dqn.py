"""Env steps a CPU second of a DQN population on CartPole-v1 (work W1 of the peer scripts), beside a plain serial loop.

The work: MLP 64x64, batch 128, ring 100,000, lr 1e-3, tau 0.01, one update each `--grad-every` env steps of a member.
`--variant serial` is the baseline: for each member ordinary `nn.Module`s, autograd, `torch.optim.Adam`, a ring of its
own, stepped one after another. `--variant layer_norm` normalises hidden layers, which takes the autograd engine.
`--work W5` is a population in generations of `--evo` env steps with one evaluation episode each; `--mutate 1` evolves
it by a tournament of two with architecture and weight mutations. `--archs 4` gives the members four architectures.
One `JSON {...}` line; `benchmarks/pair.py` interleaves commands and prints ratios.

    python benchmarks/dqn.py --envs 16 --pop 8
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from dataclasses import dataclass, field

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--work", default="W1", choices=["W1", "W5"])
parser.add_argument("--variant", default="", help="serial, layer_norm, autograd, per, nstep; join with +")
parser.add_argument("--envs", type=int, default=16)
parser.add_argument("--grad-every", type=int, default=4, dest="grad_every", help="env steps an update")
parser.add_argument("--steps", type=int, default=7216, help="env steps of a member")
parser.add_argument("--warm", type=int, default=1216, help="env steps of a member before the clock starts")
parser.add_argument("--pop", type=int, default=1)
parser.add_argument("--archs", type=int, default=1, choices=[1, 2, 4], help="architectures among the members")
parser.add_argument("--evo", type=int, default=2000, help="W5: env steps of a member in a generation")
parser.add_argument("--mutate", type=int, default=0, choices=[0, 1], help="W5: whether members evolve")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--eval", type=int, default=10, dest="n_eval", help="greedy episodes after the clock")
args = parser.parse_args()
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = str(args.threads)  # read when numpy and torch are imported

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from agilerl_exp.buffers import join  # noqa: E402
from agilerl_exp.envs import MemberEnvs, make_member_envs  # noqa: E402
from agilerl_exp.envs.blocks import Blocks  # noqa: E402
from agilerl_exp.models.algorithms.dqn import DQNSpec  # noqa: E402
from agilerl_exp.models.env import EnvSpec  # noqa: E402
from agilerl_exp.models.evolution import TournamentSpec  # noqa: E402
from agilerl_exp.models.training import ReplayBufferSpec, TrainingSpec  # noqa: E402
from agilerl_exp.population.population import Population  # noqa: E402
from agilerl_exp.run.random import Streams  # noqa: E402
from agilerl_exp.training.evaluate import Evaluator  # noqa: E402
from agilerl_exp.training.evolving import evolution_of  # noqa: E402
from agilerl_exp.training.off_policy import OffPolicy  # noqa: E402
from agilerl_exp.training.session import Session  # noqa: E402

torch.set_num_threads(args.threads)
VARIANT = set(filter(None, args.variant.split("+")))
HIDDEN = [(64, 64), (80, 64), (64, 80), (80, 80)]
BATCH, SIZE, LR, TAU, GAMMA, DELAY = 128, 100_000, 1e-3, 0.01, 0.99, 1000


@dataclass
class Clock(Session):
    """CPU seconds and env steps of all members from the warm-up on."""

    start: tuple[float, int] | None = None
    end: tuple[float, int] = field(default=(0.0, 0))

    def tick(self, steps: int, member_steps: int) -> None:
        if self.start is None and member_steps >= args.warm:
            self.start = time.process_time(), steps
        self.end = time.process_time(), steps

    def at_boundary(self, loop):
        self.tick(int(loop.env_step.sum()), int(loop.env_step.min()))

    def at_end(self, loop):
        if args.work == "W5":  # evaluations are part of the work
            self.at_boundary(loop)


def make_env(seeds, member):
    spec = EnvSpec(id="CartPole-v1", num_envs=len(seeds))
    return make_member_envs(spec, seeds, member=member)


def ours(clock: Clock):
    layer_norm = "layer_norm" in VARIANT
    specs = [
        DQNSpec(
            lr=LR,
            batch_size=BATCH,
            learn_step=args.grad_every,
            tau=TAU,
            net_config={"arch": "mlp", "hidden_size": HIDDEN[i % args.archs], "layer_norm": layer_norm},
        )
        for i in range(args.pop)
    ]
    spec, evolves = specs[0], args.work == "W5"
    training = TrainingSpec(
        max_steps=args.steps,
        evo_steps=args.evo if evolves else args.steps,
        pop_size=args.pop,
        learning_delay=DELAY,
        eps_schedule="linear",
        eps_decay=args.warm,
    )
    streams = Streams(args.seed, range(args.pop))
    envs = Blocks([make_env(streams.env_seeds(i, args.envs), i) for i in range(args.pop)])
    spaces = envs.observation_space, envs.action_space
    pop = [own.build_algorithm(*spaces, i) for i, own in enumerate(specs)]
    ring = ReplayBufferSpec(
        max_size=SIZE,
        per_buffer="per" in VARIANT,
        n_step_buffer="nstep" in VARIANT,
        standard_buffer="nstep" not in VARIANT,
    )
    memory, companion = ring.init_buffer(spec), ring.init_n_step_buffer(spec)
    buffer = memory if companion is None else join(memory, companion)
    population = Population(pop)
    if "autograd" in VARIANT:
        for cohort in population.cohorts:
            cohort.engine = "autograd"
    episodes = 1 if evolves else args.n_eval
    evaluator = Evaluator(lambda m, g, n: make_env(streams.env_seeds(m, n, "eval", g), m), episodes, None)
    evolution = None
    if evolves and args.mutate:
        kinds = {"no_mut": 0.4, "arch": 0.3, "new_layer": 0.2, "params": 0.3, "rl_hp": 0.0}
        evolution = evolution_of(TournamentSpec(probabilities=kinds), spec, training, args.seed)
    OffPolicy(population, envs, buffer, training, streams, evaluator, clock, evolution).run()
    return max(agent.fitness[-1] for agent in pop), sum(
        int(cohort.update_step.sum()) for cohort in population.cohorts
    )


class Serial:
    """One member of the baseline: what a short DQN script does, nothing stacked."""

    def __init__(self, seed: int, hidden: tuple[int, int]):
        self.hidden = hidden
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.q, self.target = self.network(), self.network()
        self.target.load_state_dict(self.q.state_dict())
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=LR)
        self.envs = gym.make_vec(
            "CartPole-v1",
            num_envs=args.envs,
            vectorization_mode="vector_entry_point" if args.envs >= 4 else "sync",
        )
        self.obs, _ = self.envs.reset(seed=seed)
        self.ended = np.zeros(args.envs, bool)
        self.rows = [
            np.zeros((SIZE, 4), np.float32),
            np.zeros((SIZE, 4), np.float32),
            np.zeros(SIZE, np.int64),
        ]
        self.rows += [np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)]
        self.steps = self.cursor = self.clock = self.updates = 0

    def network(self) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in zip((4, *self.hidden), self.hidden, strict=False):
            layers += [nn.Linear(a, b), *([nn.LayerNorm(b)] if "layer_norm" in VARIANT else []), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden[-1], 2))

    def step(self) -> None:
        eps = max(0.05, 1 - 0.95 * self.steps / args.warm)
        with torch.no_grad():
            action = self.q(torch.from_numpy(self.obs)).argmax(1).numpy()
        explore = self.rng.random(args.envs) < eps
        action = np.where(explore, self.rng.integers(0, 2, args.envs), action)
        next_obs, reward, terminated, truncated, _ = self.envs.step(action)
        valid = ~self.ended
        where = (self.cursor + np.arange(valid.sum())) % SIZE
        for rows, value in zip(self.rows, (self.obs, next_obs, action, reward, terminated), strict=True):
            rows[where] = value[valid]
        self.cursor = (self.cursor + len(where)) % SIZE
        self.steps += len(where)
        self.clock += len(where)
        self.ended, self.obs = terminated | truncated, next_obs
        while self.clock >= args.grad_every:
            self.clock -= args.grad_every
            if self.steps >= DELAY:
                self.learn()

    def learn(self) -> None:
        index = self.rng.integers(0, min(self.steps, SIZE), BATCH)
        obs, next_obs, action, reward, terminated = (torch.from_numpy(rows[index]) for rows in self.rows)
        with torch.no_grad():
            y = reward + GAMMA * (1 - terminated) * self.target(next_obs).amax(1)
        loss = nn.functional.mse_loss(self.q(obs).gather(1, action[:, None]).squeeze(1), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        self.updates += 1

    def score(self) -> float:
        block = MemberEnvs(gym.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync"), [10_000])
        obs, _ = block.reset()
        total, done = 0.0, 0
        while done < args.n_eval:
            with torch.no_grad():
                step = block.step(self.q(torch.from_numpy(obs)).argmax(1).numpy())
            obs, total = step.obs, total + float(step.reward[0])
            done += bool(step.terminated[0] or step.truncated[0])
        return total / max(1, args.n_eval)


def serial(clock: Clock):
    members = [Serial(args.seed + i, HIDDEN[i % args.archs]) for i in range(args.pop)]
    while min(m.steps for m in members) < args.steps:
        for member in members:
            member.step()
        clock.tick(sum(m.steps for m in members), min(m.steps for m in members))
    return max(m.score() for m in members) if args.n_eval else None, sum(m.updates for m in members)


def main() -> None:
    clock = Clock()
    score, updates = (serial if "serial" in VARIANT else ours)(clock)
    (c0, s0), (c1, s1) = clock.start, clock.end
    line = {
        "peer": "serial" if "serial" in VARIANT else "agilerl_exp",
        "work": args.work,
        "variant": args.variant,
        "envs": args.envs,
        "ge": args.grad_every,
        "pop": args.pop,
        "archs": args.archs,
        "mutate": args.mutate,
        "threads": args.threads,
        "cpu_s": round(c1 - c0, 3),
        "sps_cpu": round((s1 - s0) / (c1 - c0), 1),
        "env_steps": s1 - s0,
        "updates": updates,
        "eval_return": score,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print("JSON " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
