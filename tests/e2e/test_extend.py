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


@pytest.mark.parametrize(("old", "new"), [('"algo"', '"alfo"'), ('"gamma": 0.99', '"gamma": 0.95')])
def test_a_damaged_spec_file_is_no_mistake_of_the_user(old, new, tmp_path):
    run(spec_of(100, None), tmp_path)
    file = tmp_path / "spec.json"
    file.write_text(file.read_text().replace(old, new))
    longer = spec_of(200, None, resume_allow=["training.max_steps"])
    with pytest.raises(JobError) as caught:
        run(longer, tmp_path)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{file}: damaged, or of another version (")
    file.unlink()  # the cure that the line names
    run(longer, tmp_path)


def test_rows_outlive_a_part_of_the_run_without_a_tracker(tmp_path):
    more = {"resume_allow": ["training.max_steps"]}
    run(spec_of(200, 100), tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    run(spec_of(300, 100, tracker={"name": "none"}, **more), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    run(spec_of(400, 100, **more), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text().startswith(before)
    assert [row["env_step"] // 100 for row in rows(tmp_path, "eval")] == [1, 2, 4]


def test_a_finished_run_does_nothing_more(tmp_path, capsys):
    score = run(spec_of(100, None), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"}
    assert run(spec_of(100, None), tmp_path) == score
    assert "already complete" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"} == before
