"""CPU time of one generation step of 8 members of a 64x64 DQN, beside deep copies of modules with new optimizers.

`copies`: what a population of ordinary agents does: for each member a deep copy of network and target, and a new
`torch.optim.Adam` with a deep copy of the moments (`forgetful`: without them). `selection`: choose parents in a
tournament and let their members go on (weights, targets, moments, statistics, hyperparameters). `generation`: the
same with mutations of all kinds and regrouping. `rings`: copies of replay rings of 20,000 rows for three members.
Interleaved five by five; medians, in milliseconds.

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
from agilerl_exp.training.off_policy import EPS_COLUMNS  # noqa: E402

POP, ROUNDS, REPEATS, ROWS = 8, 12, 5, 20_000
torch.set_num_threads(1)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def member() -> tuple[nn.Module, nn.Module, torch.optim.Adam]:
    q, target = network(), network()
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    q(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return q, target, optimizer


def copies(members: list[tuple[nn.Module, nn.Module, torch.optim.Adam]], moments: bool) -> None:
    for q, target, optimizer in members:
        q = copy.deepcopy(q)
        copy.deepcopy(target)
        new = torch.optim.Adam(q.parameters(), lr=1e-3)
        if moments:
            new.load_state_dict(copy.deepcopy(optimizer.state_dict()))


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
        for column, value in zip(EPS_COLUMNS, training.epsilon, strict=True):
            populations[name].set_column(column, np.full(POP, value))
        evolutions[name] = evolution_of(TournamentSpec(probabilities=kinds), spec, training, 0)
    members = [member() for _ in range(POP)]
    buffer, rng = ring(), np.random.default_rng(0)
    took: dict[str, list[float]] = {
        name: [] for name in ("copies", "forgetful", "selection", "generation", "rings")
    }
    generation = 0
    for _ in range(ROUNDS):
        for name in took:
            spent = 0.0
            for _ in range(REPEATS):
                generation += 1
                fitness = rng.random(POP)
                start = time.process_time()
                if name == "rings":
                    buffer.copy_members(np.arange(3), np.arange(3, 6))
                elif name in evolutions:
                    evolutions[name].step(populations[name], fitness, generation, lambda slot: obs)
                else:
                    copies(members, name == "copies")
                spent += time.process_time() - start
            took[name].append(spent / REPEATS)
    medians = {name: statistics.median(values) * 1e3 for name, values in took.items()}
    line = {f"{name}_ms": round(value, 3) for name, value in medians.items()}
    line |= {
        f"{name}_part": round(medians[name] / medians["copies"], 4) for name in ("selection", "generation")
    }
    print("JSON " + json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
