"""Job directories: one process each, the right config, a status that is true however the run ends."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import faults
import pytest

from agilerl_exp.errors import ConfigError, DiskError, JobError
from agilerl_exp.run import lock as lock_module
from agilerl_exp.run.job import Job
from agilerl_exp.run.lock import Lock

HOLDER = """
import sys, time, os
from pathlib import Path
from agilerl_exp.run.lock import Lock
folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "no flock":
    import errno, fcntl
    def flock(*_): raise OSError(errno.ENOTSUP, "no flock here")
    fcntl.flock = flock
lock = Lock(folder)
child = 0
if how == "with worker":
    ready, told = os.pipe()
    if not (child := os.fork()):
        os.write(told, b".")  # a worker runs by now: what a fork drops is dropped
        time.sleep(60)
    os.read(ready, 1)
print(os.getpid(), child, flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold():
    """Start a process that holds a directory."""
    started = []

    def start(folder: Path, how: str = "plain") -> tuple[subprocess.Popen, int]:
        command = [sys.executable, "-c", HOLDER, str(folder), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        _, child = map(int, process.stdout.readline().split())
        return process, child

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def make(folder: Path, config: dict | None = None, **kwargs) -> Job:
    config = {"algo": {"lr": 0.1}} if config is None else config

    def diff(old: dict, fingerprint: str) -> list[str]:
        if fingerprint not in (None, json.dumps(old)):
            raise ConfigError("not what was run")
        return [
            f"{k}: {old.get(k)} -> {config[k]}"
            for k in sorted(config)
            if old.get(k) != config[k] and k != "steps"
        ]

    return Job(folder, config, json.dumps(config), diff=diff, **kwargs)


def status(folder: Path) -> dict:
    return json.loads((folder / "status.json").read_text())


# The lock


@pytest.mark.parametrize("how", ["plain", "no flock"])
def test_a_second_process_is_told_who_holds_the_directory(tmp_path, hold, how, monkeypatch):
    holder, _ = hold(tmp_path, how)
    if how == "no flock":
        monkeypatch.setattr(lock_module.fcntl, "flock", no_flock)
    start = time.monotonic()
    with pytest.raises(JobError, match=f"in use by process {holder.pid} on {socket.gethostname()}"):
        Lock(tmp_path)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("how", ["plain", "no flock", "with worker"])
def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, hold, how, monkeypatch):
    holder, child = hold(tmp_path, how)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    if how == "no flock":
        monkeypatch.setattr(lock_module.fcntl, "flock", no_flock)
    start = time.monotonic()
    Lock(tmp_path).release()
    assert time.monotonic() - start < 0.2
    if child:
        os.kill(child, signal.SIGKILL)


def no_flock(*_):
    raise OSError(errno.ENOTSUP, "no flock here")


def test_a_released_lock_is_free_in_the_same_process(tmp_path):
    first = Lock(tmp_path)
    with pytest.raises(JobError, match=f"process {os.getpid()}"):
        Lock(tmp_path)
    first.release()
    first.release()
    Lock(tmp_path).release()


def test_without_flock_only_a_dead_holder_of_this_machine_loses_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module.fcntl, "flock", no_flock)
    first = Lock(tmp_path)
    card = json.loads((tmp_path / ".lock.pid").read_text())
    first.release()
    assert not (tmp_path / ".lock.pid").exists()
    for change, free in (
        ({}, False),
        ({"host": "elsewhere", "pid": 2**22 + 1}, False),
        ({"start": "1"}, True),  # the pid is in use again, by another process
        ({"pid": 2**22 + 1}, True),
    ):
        (tmp_path / ".lock.pid").write_text(json.dumps({**card, **change}))
        if free:
            Lock(tmp_path).release()
        else:
            with pytest.raises(JobError, match=str({**card, **change}["host"])):
                Lock(tmp_path)
    (tmp_path / ".lock.pid").write_text("")
    with pytest.raises(JobError, match="process unknown on unknown"):
        Lock(tmp_path)


# What a directory says


def test_a_run_that_ends_well_is_complete_and_left_alone(tmp_path):
    folder = tmp_path / "a" / "job"
    with make(folder, overrides=["algo=dqn"]) as job:
        assert not job.complete
        running = status(folder)
        assert running["state"] == "RUNNING" and running["overrides"] == ["algo=dqn"]
        assert (running["pid"], running["host"]) == (os.getpid(), socket.gethostname())
        job.update(step=5)
        job.finish({"score": float("-inf")})
    assert status(folder)["state"] == "COMPLETED" and status(folder)["step"] == 5
    assert json.loads((folder / "result.json").read_text()) == {"score": {"$float": "-inf"}}
    assert json.loads((folder / "spec.json").read_text()) == {"algo": {"lr": 0.1}}
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}
    with make(folder) as job:
        assert job.complete
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (ValueError("bad\nluck"), "FAILED", "ValueError: bad"),
        (DiskError("disk full"), "FAILED", "disk full"),
        (SystemExit(143), "INTERRUPTED", None),
        (KeyboardInterrupt(), "INTERRUPTED", None),
        (None, "INTERRUPTED", None),
    ],
)
def test_every_end_is_told_and_can_be_resumed(tmp_path, error, state, text):
    try:
        with make(tmp_path) as job:
            job.update(step=3)
            if error is not None:
                raise error
    except BaseException as caught:
        assert caught is error
    assert (status(tmp_path)["state"], status(tmp_path)["error"]) == (state, text)
    created = status(tmp_path)["created"]
    with make(tmp_path) as job:
        assert not job.complete
        again = status(tmp_path)
        assert (again["state"], again["step"], again["created"]) == ("RUNNING", 3, created)
        assert again["error"] is None


def test_a_job_that_failed_before_its_first_checkpoint_may_start_over(tmp_path):
    for step, refused in ((0, False), (7, True)):
        with pytest.raises(ValueError), make(tmp_path / str(step), {"lr": 0.1}) as job:
            if step:
                job.update(step=step)
            raise ValueError("no such environment")
        if refused:
            with pytest.raises(JobError, match="made with another config"):
                make(tmp_path / str(step), {"lr": 0.2}).__enter__()
        else:
            with make(tmp_path / str(step), {"lr": 0.2}) as job:
                job.finish({})
            assert json.loads((tmp_path / "0" / "spec.json").read_text()) == {"lr": 0.2}


def test_another_config_is_refused_with_the_lines(tmp_path):
    with make(tmp_path, {"lr": 0.1, "seed": 1, "steps": 10}) as job:
        job.finish({})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name != ".lock"}
    with pytest.raises(JobError) as caught, make(tmp_path, {"lr": 0.2, "seed": 2, "steps": 10}):
        pass
    head, *lines = str(caught.value).splitlines()
    assert str(tmp_path) in head and "resume_allow" in head
    assert lines == ["lr: 0.1 -> 0.2", "seed: 1 -> 2"]
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name != ".lock"}
    Lock(tmp_path).release()  # free again
    with make(tmp_path, {"lr": 0.1, "seed": 1, "steps": 20}) as job:  # allowed to differ: it goes on
        assert not job.complete
        assert json.loads((tmp_path / "spec.json").read_text())["steps"] == 20


def test_a_moved_directory_goes_on(tmp_path):
    with make(tmp_path / "a") as job:
        job.finish({})
    (tmp_path / "a").rename(tmp_path / "b")
    with make(tmp_path / "b") as job:
        assert job.complete


def test_an_outside_checkpoint_directory_is_held_too(tmp_path):
    with (
        make(tmp_path / "a", checkpoint_dir=tmp_path / "c"),
        pytest.raises(JobError, match=f"{tmp_path / 'c'}: in use"),
        make(tmp_path / "b", checkpoint_dir=tmp_path / "c"),
    ):
        pass
    with make(tmp_path / "b", checkpoint_dir=tmp_path / "b"):  # the same one is held once
        pass


def test_two_jobs_never_share_a_directory(tmp_path, hold):
    holder, _ = hold(tmp_path)
    with pytest.raises(JobError, match=str(holder.pid)), make(tmp_path):
        pass
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["status.json", "spec.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_a_damaged_file_is_one_line_with_the_cure(tmp_path, name, text):
    with make(tmp_path) as job:
        job.update(step=3)
    (tmp_path / name).write_text(text, encoding="latin-1")
    for config in ({"lr": 0.1}, None):
        with pytest.raises(JobError) as caught:
            make(tmp_path, config).__enter__()
        assert re.fullmatch(
            rf"{tmp_path / name}: damaged, or of another version \(.*\); delete it and .*", str(caught.value)
        )
    (tmp_path / name).unlink()
    make(tmp_path).__enter__().__exit__(None, None, None)


def test_a_damaged_setting_is_no_other_config(tmp_path):
    with make(tmp_path, {"lr": 0.1, "seed": 1}) as job:
        job.update(step=3)
    (tmp_path / "spec.json").write_text('{"lr": 0.1, "sefd": 1}')
    with pytest.raises(
        JobError, match=r"spec\.json: damaged, or of another version \(not what was run\); delete"
    ):
        make(tmp_path, {"lr": 0.2, "seed": 1}).__enter__()


def test_a_finished_job_without_its_result_goes_on(tmp_path):
    with make(tmp_path) as job:
        job.finish({"score": 1})
    (tmp_path / "result.json").unlink()
    with make(tmp_path) as job:
        assert not job.complete


def test_only_a_run_that_holds_the_directory_writes_its_log(tmp_path, hold):
    with pytest.raises(ValueError), make(tmp_path):
        raise ValueError("mine")
    with pytest.raises(DiskError), make(tmp_path):
        raise DiskError("disk full")
    log = (tmp_path / "job.log").read_text()
    assert "ValueError: mine" in log and "Traceback" in log
    assert re.search(r"^\S+ disk full$", log, re.M)
    hold(tmp_path)
    with pytest.raises(JobError, match="in use"):
        make(tmp_path).__enter__()
    assert (tmp_path / "job.log").read_text() == log


def test_a_full_disk_at_the_end_does_not_hide_the_first_error(tmp_path):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match="mine"), make(tmp_path):
        patch.setattr(os, "replace", no_flock)
        raise ValueError("mine")
    assert status(tmp_path)["state"] == "RUNNING"
    Lock(tmp_path).release()


def test_every_disk_error_on_entering_is_one_line_and_frees_the_lock(tmp_path):
    k = 1
    while True:
        with faults.failing(k, errno.ENOSPC) as counter:
            try:
                with make(tmp_path / str(k), checkpoint_dir=tmp_path / f"c{k}") as job:
                    job.finish({})
            except DiskError as error:
                assert "\n" not in str(error)
        if counter.calls < k:
            break
        with make(tmp_path / str(k), checkpoint_dir=tmp_path / f"c{k}") as job:
            pass
        k += 1
    assert k > 15


def test_updates_reach_the_disk_at_most_once_a_second(tmp_path, monkeypatch):
    with make(tmp_path) as job:
        writes = []
        monkeypatch.setattr(os, "replace", lambda *a: writes.append(a))
        for step in range(100):
            job.update(step=step)
        assert not writes
        job._written -= 1
        job.update(step=100)
        assert len(writes) == 1
        monkeypatch.undo()
    assert status(tmp_path)["step"] == 100


def test_commit_and_changes_are_recorded(tmp_path, monkeypatch):
    repo = tmp_path / "repo"
    repo.mkdir()
    monkeypatch.chdir(repo)
    for key in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(key, raising=False)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (repo / "f").write_text("one\n")
    for words in (["init", "-q"], ["add", "f"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    sha = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (repo / "f").write_text("two\n")
    with make(tmp_path / "job"):
        pass
    info = json.loads((tmp_path / "job" / "run_info.json").read_text())
    assert info["git_sha"] == sha and info["git_changed"]
    assert len(info["source_sha256"]) == 64 and info["versions"]["torch"]
    assert "+two" in (tmp_path / "job" / "git.diff").read_text()
    monkeypatch.chdir("/")
    with make(tmp_path / "job2"):
        pass
    info = json.loads((tmp_path / "job2" / "run_info.json").read_text())
    assert info["git_sha"] is None and not info["git_changed"]
