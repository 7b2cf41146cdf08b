"""Faults that users of other libraries reported, seen through the real command (see tests/cases.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli import command, finish, start

RUN = ["experiment=smoke", "buffer=per", "training.max_steps=600", "training.evo_steps=300", "seed=1"]


def written(folder: Path) -> dict[str, bytes]:
    files = [folder / "metrics.jsonl", folder / "result.json", *(folder / "checkpoints").rglob("*")]
    kept = [file for file in files if file.is_file() and file.name != "manifest.json"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in kept}


def test_b30_one_seed_is_one_run_whatever_the_process_hashes(tmp_path):
    for number in ("0", "1"):
        result = command(tmp_path, *RUN, f"hydra.run.dir=job{number}", PYTHONHASHSEED=number)
        assert result.returncode == 0, result.stderr
    first, second = written(tmp_path / "job0"), written(tmp_path / "job1")
    assert first == second
    assert {name.rpartition("/")[2] for name in first} >= {"population.safetensors", "buffer.safetensors"}


@pytest.mark.slow
def test_b123_two_jobs_at_once_cost_no_more_cpu_time_than_alone(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    run = ["buffer=per", "training.max_steps=8000", "training.evo_steps=8000", "training.eval_loop=1"]

    def jobs(count):
        names = [f"{count}-{n}" for n in range(count)]
        for process in [start(tmp_path, *run, f"hydra.run.dir={name}") for name in names]:
            assert finish(process).returncode == 0
        rows = [json.loads((tmp_path / name / "timing.jsonl").read_text().splitlines()[-1]) for name in names]
        return max(row["cpu_s"] for row in rows)

    alone, together = jobs(1), jobs(2)
    assert together < 1.25 * alone, (alone, together)
