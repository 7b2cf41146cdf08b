"""Faults that users of other libraries reported, as runs that would show them (see tests/cases.md).

Here: what is left behind when a run is stopped, killed or damaged, and what goes on from it.
"""

from __future__ import annotations

import errno
import json
import pickle
import resource
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from faults import failing, killed
from safetensors.numpy import load_file
from small import RINGS, job, loop_of, metrics, steps

from agilerl_exp.errors import CheckpointError, DiskError, EnvError
from agilerl_exp.run import checkpoint
from agilerl_exp.run.checkpoint import newest_valid, read_checkpoint

PER_N_STEP = {f"training.replay_buffer.{name}": on for name, on in RINGS["per_n_step"].items()}
TINY = {"training.max_steps": 48, "training.evo_steps": 24, "training.checkpoint_steps": 12, **PER_N_STEP}


def everything(folder: Path) -> dict[str, bytes]:
    """The bytes that a resumed run shares with an uninterrupted one."""
    files = [folder / "metrics.jsonl", folder / "result.json", *(folder / "checkpoints").rglob("*")]
    kept = [file for file in files if file.is_file() and file.name != "manifest.json"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in kept}


def rung(tmp_path, n, number=signal.SIGTERM, **more):
    """Settings of a run that gets a signal in its n-th step, once."""
    env = {"n": n, "told": str(tmp_path / "told"), "number": int(number)}
    return {"env.id": "probe/Rings-v0", "env.config": env, "env.num_envs": 1, **more}


# Resume: B34, B38, B72


def test_b34_epsilon_goes_on_where_it_was(tmp_path):
    settings = {"training.eps_decay": 0.995, "training.reporting_interval": 1, "training.max_steps": 500}
    settings = rung(tmp_path, 400, **settings, **{"training.evo_steps": 500, "algo.learn_step": 8})
    with pytest.raises(SystemExit) as left:
        job(tmp_path / "stopped", settings)
    assert left.value.code == 143 and steps(tmp_path / "stopped/checkpoints") == [400]
    job(tmp_path / "stopped", settings)
    job(tmp_path / "whole", settings)
    rows = {row["env_step"]: row["epsilon"] for row in metrics(tmp_path / "stopped", "train")}
    assert rows[400] == pytest.approx(0.134658, abs=1e-6) and rows[400] == pytest.approx(0.995**400, abs=1e-9)
    assert rows[401] == pytest.approx(0.995**401, abs=1e-9)
    assert (
        everything(tmp_path / "stopped")["metrics.jsonl"] == everything(tmp_path / "whole")["metrics.jsonl"]
    )


def test_b38_a_population_comes_back_member_by_member(tmp_path):
    settings = {"training.pop_size": 4, "training.evo_steps": 40, "training.max_steps": 160}
    settings = rung(tmp_path, 100, **settings, **PER_N_STEP)
    with pytest.raises(SystemExit):
        job(tmp_path / "stopped", settings)
    at = newest_valid(tmp_path / "stopped/checkpoints", pytest.fail)
    state, _ = read_checkpoint(at)
    loop = loop_of(settings)
    loop.load_state_dict(state)
    weights = set()
    for number, agent in enumerate(loop.population.agents):
        saved, now = state["population"]["members"][str(number)], agent.state_dict()
        assert all(np.array_equal(saved["bank"][name], now["bank"][name]) for name in saved["bank"])
        for part in ("hyper", "counters", "fitness", "architecture"):
            assert saved[part] == now[part]
        assert len(now["fitness"]) == 2 and now["counters"]["env_step"] == 100
        weights.add(now["bank"]["weights"].tobytes())
    assert len(weights) == 4
    loop.envs.close()
    job(tmp_path / "stopped", settings)
    job(tmp_path / "whole", settings)
    at_the_stop = "checkpoints/step-100/"
    resumed = {n: data for n, data in everything(tmp_path / "stopped").items() if at_the_stop not in n}
    assert resumed == everything(tmp_path / "whole")


def test_b72_a_signal_saves_at_the_step_it_came_in_and_the_run_goes_on(tmp_path):
    settings = {"training.checkpoint_steps": 1_000_000, "training.max_steps": 100}
    settings |= {"training.evo_steps": 100}
    job(tmp_path / "job", rung(tmp_path, 70, signal.SIGUSR1, **settings))
    assert steps(tmp_path / "job/checkpoints") == [70, 100]


# Checkpoints: B40, B42, B43, B44, B45, B117


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished tiny run, and how many file operations it takes."""
    folder = tmp_path_factory.mktemp("whole")
    with failing(0, errno.ENOSPC) as counter:
        job(folder, TINY)
    return folder, counter.calls


def test_b40_a_run_killed_in_the_middle_of_a_file_goes_on_to_the_same_bytes(tmp_path, whole):
    folder, operations = whole
    names = set()
    for k in np.linspace(2, operations - 1, 12).astype(int).tolist():
        place = tmp_path / str(k)
        assert killed(k, lambda place=place: job(place, TINY)), k
        found = newest_valid(place / "checkpoints", pytest.fail) if (place / "checkpoints").exists() else None
        names.add(found and found.name)
        job(place, TINY)
        assert everything(place) == everything(folder), k
    assert len(names) > 2  # some died before the first checkpoint, others between later ones


def test_b42_a_full_disk_ends_the_run_with_74_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # in a repository the job keeps the uncommitted changes, of any size
    settings = TINY | {"training.max_steps": 600, "training.evo_steps": 600, "training.checkpoint_steps": 100}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, hard))
    try:
        with pytest.raises(DiskError) as caught:
            job(tmp_path / "full", settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 74
    text = str(caught.value)
    assert "checkpoints/.step-" in text and "bytes" in text and "\n" not in text
    saved = newest_valid(tmp_path / "full/checkpoints", pytest.fail)
    assert 100 <= int(saved.name[5:]) < 600
    job(tmp_path / "full", settings)
    job(tmp_path / "roomy", settings)
    assert everything(tmp_path / "full") == everything(tmp_path / "roomy")


class _Touch:
    """A pickle that leaves a file behind when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def flip(file: Path, pwn: Path):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def delete(file: Path, pwn: Path):
    file.unlink()


def poison(file: Path, pwn: Path):
    file.write_bytes(pickle.dumps(_Touch(str(pwn))))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped at its third checkpoint, its settings, and the same run without a stop."""
    folder = tmp_path_factory.mktemp("stopped")
    settings = rung(folder, 36, **TINY)
    with pytest.raises(SystemExit):
        job(folder / "job", settings)
    job(folder / "whole", settings)
    return folder / "job", settings, folder / "whole"


@pytest.mark.parametrize("damage", [flip, delete, poison])
def test_b43_b117_every_damaged_file_is_named_and_the_checkpoint_before_is_used(
    tmp_path, stopped, damage, capsys
):
    source, settings, uninterrupted = stopped
    files = sorted(file.name for file in (source / "checkpoints/step-36").iterdir())
    assert {"manifest.json", "population.safetensors", "buffer.safetensors", "envs.json"} <= set(files)
    for name in files:
        place = Path(shutil.copytree(source, tmp_path / name))
        damage(place / "checkpoints/step-36" / name, tmp_path / "pwn")
        capsys.readouterr()
        job(place, settings)
        said = capsys.readouterr().err
        assert f"unreadable checkpoint file {place}/checkpoints/step-36/{name}" in said
        assert "falling back to step-24" in said and "resumed from step-24" in said
        assert everything(place) == everything(uninterrupted), name
    assert not (tmp_path / "pwn").exists()


@pytest.mark.parametrize("damage", [flip, delete, poison])
def test_b43_b117_a_run_never_starts_anew_over_checkpoints_that_cannot_be_read(tmp_path, stopped, damage):
    source, settings, _ = stopped
    place = Path(shutil.copytree(source, tmp_path / "job"))
    for step in (24, 36):
        damage(place / f"checkpoints/step-{step}/loop.json", tmp_path / "pwn")
    before = everything(place)
    with pytest.raises(CheckpointError) as caught:
        job(place, settings)
    assert caught.value.exit_code == 2
    for step in (24, 36):
        assert f"unreadable checkpoint file {place}/checkpoints/step-{step}/loop.json" in str(caught.value)
    assert everything(place) == before and not (tmp_path / "pwn").exists()
    assert json.loads((place / "status.json").read_text())["state"] == "FAILED"


def edit(place, change):
    """Change a manifest and seal it again."""
    file = place / "checkpoints/step-36/manifest.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_bytes(checkpoint._seal(manifest))


def test_b44_versions_of_the_schema_and_of_packages(tmp_path, stopped, capsys):
    source, settings, uninterrupted = stopped
    other = Path(shutil.copytree(source, tmp_path / "torch"))
    edit(other, lambda manifest: manifest["versions"].update(torch="1.2.3"))
    job(other, settings)
    assert "torch 1.2.3 -> " in capsys.readouterr().err
    assert everything(other) == everything(uninterrupted)
    newer = Path(shutil.copytree(source, tmp_path / "schema"))
    edit(newer, lambda manifest: manifest.update(schema=999))
    with pytest.raises(CheckpointError, match=r"schema 999, this version reads up to 1; upgrade"):
        job(newer, settings)


def test_b45_a_checkpoint_holds_tensors_and_json_and_nothing_else(stopped):
    source, *_ = stopped
    files = [file for file in (source / "checkpoints").rglob("*") if file.is_file()]
    assert len(files) > 10
    for file in files:
        assert file.suffix in {".json", ".safetensors"}
        tree = json.loads(file.read_text()) if file.suffix == ".json" else load_file(file)
        assert isinstance(tree, dict)


# Workers: B80


@pytest.mark.parametrize(
    ("how", "words"),
    [("exit", ["env ", "17"]), ("raise", ["100% probe: boom", "Traceback", "probe_envs.py"])],
)
def test_b80_a_worker_that_dies_is_told_and_leaves_good_checkpoints(tmp_path, how, words):
    settings = {"env.id": "probe/Breaks-v0", "env.config": {"n": 37, "how": how}, "env.num_envs": 4}
    settings |= {"training.max_steps": 400, "training.evo_steps": 400, "training.checkpoint_steps": 20}
    began = time.monotonic()
    with pytest.raises(EnvError) as caught:
        job(tmp_path / "job", settings | {"env.vectorization": "async"})
    assert time.monotonic() - began < 15
    assert all(word in str(caught.value) for word in words)
    assert psutil.Process().children(recursive=True) == []
    assert newest_valid(tmp_path / "job/checkpoints", pytest.fail).name == "step-140"  # 36 steps of 4 copies
    status = json.loads((tmp_path / "job/status.json").read_text())
    assert status["state"] == "FAILED" and "member 0" in status["error"]


@pytest.mark.parametrize("how", ["reward", "obs"])
def test_numbers_that_are_not_finite_stop_the_run_before_anything_is_learned_from_them(tmp_path, how):
    settings = {"env.id": "probe/Breaks-v0", "env.config": {"n": 20, "how": how}, "env.num_envs": 1}
    settings |= {"training.checkpoint_steps": 19, "training.evo_steps": 64}
    with pytest.raises(EnvError, match=r"member 0, env 0: .* not finite"):
        job(tmp_path / "job", settings)
    state, _ = read_checkpoint(newest_valid(tmp_path / "job/checkpoints", pytest.fail))
    assert state["loop"]["env_step"] == [19]
    assert np.isfinite(state["population"]["members"]["0"]["bank"]["weights"]).all()
