"""Checkpoints when the disk fails or the process dies: at every single file operation of a save."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from pathlib import Path

import faults
import numpy as np
import pytest

from agilerl_exp.errors import DiskError
from agilerl_exp.run import durable
from agilerl_exp.run.checkpoint import (
    newest_valid,
    prune,
    read_checkpoint,
    steps,
    write_best,
    write_checkpoint,
    write_directory,
)


def save(root: Path, step: int, value: float, keep_policies: bool | None = None) -> None:
    state = {"weights": np.full(50, value)}
    write_checkpoint(root, step, {"net": state}, {"ring": {"obs": np.full(200, value)}}, {})
    if keep_policies is not None:
        prune(root, keep_policies)


def value(path: Path) -> float:
    state, _ = read_checkpoint(path)
    assert (state["ring"]["obs"] == state["net"]["weights"][0]).all()
    return state["net"]["weights"][0]


def fail(line: str) -> None:
    raise AssertionError(line)


# name: (steps that are there, step saved, keep_policies)
SAVES = {
    "first": ([], 10, None),
    "next, all pruned": ([10, 20, 30], 40, False),
    "next, policies kept": ([10, 20, 30], 40, True),
    "the only one again": ([10], 10, None),
    "the newest again": ([10, 20, 30], 30, True),
    "back to an older one": ([10, 20, 30], 20, False),
}


@pytest.fixture(params=SAVES)
def case(request, tmp_path):
    before, step, keep = SAVES[request.param]
    for n in before:
        save(tmp_path / "start", n, n)
    (tmp_path / "start").mkdir(exist_ok=True)

    def fresh() -> Path:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return Path(shutil.copytree(tmp_path / "start", tmp_path / "run"))

    return before, step, keep, fresh


def check_after_fault(root: Path, before: list[int], step: int) -> None:
    """The newest valid state is the previous or the new one; the next save leaves whole directories only."""
    path = newest_valid(root, fail)
    if path is None:
        assert not before
    else:
        at = int(path.name.removeprefix("step-"))
        old = at in before and at >= min(step, max(before)) and value(path) == at
        assert old or (at == step and value(path) == -1)
    save(root, 50, 50, False)
    left = [f"step-{n}" for n, _ in steps(root)]
    assert sorted(p.name for p in root.iterdir()) == sorted(left) and len(left) <= 2
    for _, directory in steps(root):
        read_checkpoint(directory)
    assert newest_valid(root, fail) == root / "step-50" and value(root / "step-50") == 50


@pytest.fixture(autouse=True)
def fast_fsync(monkeypatch):
    """A real fsync takes milliseconds and changes nothing that these tests can see."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def test_a_kill_at_every_file_operation(case):
    before, step, keep, fresh = case
    k = 1
    while True:
        root = fresh()
        if not faults.killed(k, lambda root=root: save(root, step, -1, keep)):
            break
        check_after_fault(root, before, step)
        k += 1
    assert k > 10
    assert value(root / f"step-{step}") == -1


def test_a_disk_error_at_every_file_operation(case):
    before, step, keep, fresh = case
    k = 1
    while True:
        root = fresh()
        number = (errno.ENOSPC, errno.EIO, errno.EROFS)[k % 3]
        with faults.failing(k, number) as counter:
            try:
                save(root, step, -1, keep)
            except DiskError as error:
                text = str(error)
                assert os.strerror(number) in text and ("bytes needed" in text) == (number == errno.ENOSPC)
            except OSError as error:
                fail(f"{error!r} at operation {k}")
            else:
                if counter.calls < k:
                    break
                assert value(root / f"step-{step}") == -1  # as `mkdir` of a folder that is there already
        assert not any(".tmp" in p.name for p in root.rglob("*") if "step-" not in p.name)
        check_after_fault(root, before, step)
        k += 1
    assert k > 10


def test_a_failed_save_leaves_no_temporary_directory(tmp_path):
    save(tmp_path, 10, 10)
    with faults.failing(8, errno.ENOSPC), pytest.raises(DiskError):
        save(tmp_path, 20, 20)
    assert [p.name for p in tmp_path.iterdir()] == ["step-10"]


@pytest.mark.parametrize("write", [write_best, write_directory])
def test_the_best_agent_survives_a_kill_anywhere(tmp_path, write):
    def put(root: Path, value: float) -> None:
        content = {"agent": {"w": np.full(9, value)}}
        if write is write_best:
            write_best(root, {"fitness": value}, content)
        else:
            write_directory(root / "best", content, {})

    k = 1
    while True:
        root = tmp_path / str(k)
        put(root, 1.0)
        if not faults.killed(k, lambda root=root: put(root, 2.0)):
            break
        assert read_checkpoint(root / "best")[0]["agent"]["w"][0] in (1.0, 2.0)
        put(root, 3.0)
        assert {p.name for p in root.iterdir()} <= {"best", "best.json"}
        k += 1
    assert k > 8


def test_a_small_file_is_old_or_new_at_every_kill(tmp_path):
    path = tmp_path / "status.json"
    durable.replace_file(path, b"old")
    k = 1
    while faults.killed(k, lambda: durable.replace_file(path, b"new!")):
        assert path.read_bytes() in (b"old", b"new!")
        durable.replace_file(path, b"old")
        assert [p.name for p in tmp_path.iterdir()] == ["status.json"]
        k += 1
    assert k > 4 and path.read_bytes() == b"new!"


def test_a_file_size_limit_is_a_disk_error(tmp_path):
    """RLIMIT_FSIZE for real, in a child: EFBIG on the write that crosses it."""
    save(tmp_path, 10, 10)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                save(tmp_path, 20, 20)
            except DiskError as error:
                code = 0 if "step-20" in str(error) and "File too large" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["step-10"] and value(tmp_path / "step-10") == 10


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB; skipped where mounting is not permitted."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(small_disk):
    ring = {"ring": {"obs": np.zeros(30_000, np.uint8)}}
    write_checkpoint(small_disk, 10, {"net": 1}, ring, {})
    filler = small_disk / "filler"
    filler.write_bytes(bytes(16_000))
    with pytest.raises(
        DiskError,
        match=r"step-20\S*: No space left on device \(\d+ bytes needed, \d+ available\)",
    ):
        write_checkpoint(small_disk, 20, {"net": 2}, ring, {})
    assert newest_valid(small_disk, fail) == small_disk / "step-10"
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", "step-10"]
    filler.unlink()
    shutil.rmtree(small_disk / "step-10")
    write_checkpoint(small_disk, 20, {"net": 2}, ring, {})
    assert newest_valid(small_disk, fail) == small_disk / "step-20"


def test_a_read_only_disk(small_disk):
    save(small_disk, 10, 10)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert newest_valid(small_disk, fail) == small_disk / "step-10"
    with pytest.raises(DiskError, match=f"{small_disk}.*Read-only file system"):
        save(small_disk, 20, 20)
