"""A finished run goes on when its length may differ, wherever its generations ended."""

import json

import pytest

from agilerl_exp.errors import JobError
from agilerl_exp.models.experiment import ExperimentSpec
from agilerl_exp.training.run import run


def spec_of(max_steps, evo_steps, **more):
    return ExperimentSpec.from_config(
        {
            "algo": {"name": "DQN", "batch_size": 8, "learn_step": 4, "lr": 1e-3},
            "env": {"id": "CartPole-v1", "num_envs": 4},
            "training": {
                "max_steps": max_steps,
                "evo_steps": evo_steps,
                "eval_loop": 1,
                "eval_steps": 20,
                "reporting_interval": 50,
            },
            **more,
        }
    )


def rows(job_dir, kind):
    lines = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in lines if row["kind"] == kind]


@pytest.mark.parametrize(("first", "evo", "then"), [(200, None, 300), (200, 150, 260), (200, 100, 400)])
def test_an_extended_run_trains_to_its_new_length(first, evo, then, tmp_path):
    run(spec_of(first, evo), tmp_path)
    with pytest.raises(JobError, match=r"training.max_steps: 200 -> "):
        run(spec_of(then, evo), tmp_path)
    run(spec_of(then, evo, resume_allow=["training.max_steps"]), tmp_path)
    steps = [row["env_step"] for row in rows(tmp_path, "eval")]
    assert first <= steps[-2] < first + 4 or evo == 100
    assert then <= steps[-1] < then + 4
    assert steps == sorted(steps)
    assert json.loads((tmp_path / "result.json").read_text())["env_steps"] == [steps[-1]]


def test_a_finished_run_does_nothing_more(tmp_path, capsys):
    score = run(spec_of(100, None), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    assert run(spec_of(100, None), tmp_path) == score
    assert "already complete" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"} == before
