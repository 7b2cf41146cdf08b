"""CPU time of one generation step of 8 members of a 64x64 DQN, beside deep copies of modules with new optimizers.

`copies`: what a population of ordinary agents does: a deep copy of network and target and a new `torch.optim.Adam` for
each member. `selection`: choose parents in a tournament and let their members go on (weights, targets, moments,
statistics, hyperparameters). `generation`: the same with mutations of all kinds and regrouping. `rings`: copies of
replay rings of 20,000 rows for the members that were replaced. Interleaved; medians, in milliseconds.

    python benchmarks/evolution.py
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import time

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # read when numpy and torch are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402
from torch import nn  # noqa: E402

from agilerl_exp.buffers import ReplayBuffer, Transition  # noqa: E402
from agilerl_exp.models.algorithms.dqn import DQNSpec  # noqa: E402
from agilerl_exp.models.evolution import TournamentSpec  # noqa: E402
from agilerl_exp.models.training import TrainingSpec  # noqa: E402
from agilerl_exp.population.population import Population  # noqa: E402
from agilerl_exp.training.evolving import evolution_of  # noqa: E402

POP, ROUNDS, ROWS = 8, 60, 20_000
torch.set_num_threads(1)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def copies(members: list[tuple[nn.Module, nn.Module]]) -> None:
    for q, target in members:
        q = copy.deepcopy(q)
        copy.deepcopy(target)
        torch.optim.Adam(q.parameters(), lr=1e-3)


def ring() -> ReplayBuffer:
    buffer, obs = ReplayBuffer(ROWS), np.zeros((POP, 1000, 4), np.float32)
    flags = np.zeros((POP, 1000), bool)
    for _ in range(ROWS // 1000):
        buffer.add(Transition(obs, flags.astype(np.int64), flags.astype(np.float32), flags, flags, obs))
    return buffer


def main() -> None:
    spec, training = (
        DQNSpec(net_config={"hidden_size": [64, 64]}, normalize_obs=True),
        TrainingSpec(pop_size=POP),
    )
    box = spaces.Box(-1, 1, (4,), np.float32)
    obs = np.zeros((1, 16, 4), np.float32)
    populations, evolutions = {}, {}
    for name, kinds in (("selection", {"no_mut": 1, "arch": 0, "params": 0, "rl_hp": 0}), ("generation", {})):
        populations[name] = Population([spec.build_algorithm(box, spaces.Discrete(2), i) for i in range(POP)])
        evolutions[name] = evolution_of(TournamentSpec(probabilities=kinds), spec, training, 0)
    members = [(network(), network()) for _ in range(POP)]
    buffer, rng = ring(), np.random.default_rng(0)
    took: dict[str, list[float]] = {name: [] for name in ("copies", "selection", "generation", "rings")}
    for generation in range(1, ROUNDS + 1):
        start = time.process_time()
        copies(members)
        took["copies"].append(time.process_time() - start)
        for name, population in populations.items():
            fitness = rng.random(POP)
            start = time.process_time()
            parents, _ = evolutions[name].step(population, fitness, generation, lambda slot: obs)
            took[name].append(time.process_time() - start)
        replaced = np.flatnonzero(parents != np.arange(POP))
        start = time.process_time()
        buffer.copy_members(replaced, parents[replaced])
        took["rings"].append(time.process_time() - start)
    medians = {name: statistics.median(values) * 1e3 for name, values in took.items()}
    line = {f"{name}_ms": round(value, 3) for name, value in medians.items()}
    line |= {
        f"{name}_part": round(medians[name] / medians["copies"], 4) for name in ("selection", "generation")
    }
    print("JSON " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
