"""Replay rings alone: fill, then time add of 16, sample of 256 and priority updates, in CPU seconds.

The work is W6 of the peer scripts: same arguments, same data, one `JSON {...}` line. Samples are wrapped as
torch tensors, since that is what the peers return.

    python benchmarks/buffers.py --work W6 --variant per --size 100000
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--work", default="W6", choices=["W6"])
parser.add_argument("--variant", default="", choices=["", "per", "nstep", "per+nstep"])
parser.add_argument("--size", type=int, default=100_000, help="rows a ring")
parser.add_argument(
    "--frames", type=int, default=0, help="1: uint8 observations of 4x84x84 instead of 4 floats"
)
parser.add_argument("--envs", type=int, default=16, help="transitions an add brings for a member")
parser.add_argument("--pop", type=int, default=1, help="members; a call serves all of them")
parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds of each timed loop")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = str(args.threads)  # read when numpy and torch are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402

import agilerl_exp  # noqa: E402
from agilerl_exp.buffers import Batch, ReplayBuffer, Transition  # noqa: E402

FILL_SECONDS = 12.0
BATCH = 256


def transition(rng: np.random.Generator) -> Transition:
    shape = (args.pop, args.envs)
    if args.frames:
        obs, next_obs = (rng.integers(0, 256, (*shape, 4, 84, 84), dtype=np.uint8) for _ in range(2))
    else:
        obs, next_obs = (rng.standard_normal((*shape, 4), dtype=np.float32) for _ in range(2))
    return Transition(
        obs=obs,
        action=rng.integers(0, 2, shape),
        reward=rng.standard_normal(shape, dtype=np.float32),
        terminated=rng.random(shape) < 0.02,
        truncated=np.zeros(shape, bool),
        next_obs=next_obs,
    )


def rate(call: Callable[[], object]) -> float:
    """Calls per CPU second."""
    call()
    start, calls = time.process_time(), 0
    while (spent := time.process_time() - start) <= args.seconds:
        for _ in range(16):
            call()
        calls += 16
    return round(calls / spent, 1)


def tensors(batch: Batch) -> list[torch.Tensor]:
    arrays = (
        batch.obs,
        batch.action,
        batch.reward,
        batch.terminated,
        batch.next_obs,
        batch.discount,
        batch.weight,
    )
    return [torch.from_numpy(array) for array in arrays]


def main() -> None:
    rng = np.random.default_rng(args.seed)
    kind = {"alpha": 0.6} if "per" in args.variant else {}
    buffer = ReplayBuffer(args.size, n_step=3 if "nstep" in args.variant else 1, **kind)
    steps = [transition(rng) for _ in range(8)]
    start, fills = time.process_time(), 0
    while fills < args.size // args.envs + 8 and time.process_time() - start < FILL_SECONDS:
        buffer.add(steps[fills % 8])
        fills += 1
    fill_rate = fills / (time.process_time() - start)

    turn = iter(range(1 << 62))
    rates = {"add_per_s": rate(lambda: buffer.add(steps[next(turn) % 8]))}

    def sample() -> Batch:
        batch = buffer.sample(BATCH, rng)
        tensors(batch)
        return batch

    def update(batch: Batch) -> None:
        buffer.update_priorities(batch.index, rng.random(batch.index.shape))

    rates["sample_per_s"] = rate(sample)
    if "per" in args.variant:
        batch = sample()
        rates["update_per_s"] = rate(lambda: update(batch))
        rates["sample_update_per_s"] = rate(lambda: update(sample()))
    report = {"peer": "ours", "version": agilerl_exp.__version__, "work": args.work, "variant": args.variant}
    report |= {
        "envs": args.envs,
        "threads": args.threads,
        "seed": args.seed,
        "pop": args.pop,
        "size": args.size,
    }
    report |= {"frames": args.frames, "filled": len(buffer), "fill_calls_per_s": round(fill_rate, 1), **rates}
    report["rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print("JSON " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
