"""Checkpoints: what comes back, what is detected, what is refused, what is kept."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from agilerl_exp.errors import CheckpointError
from agilerl_exp.run import state
from agilerl_exp.run.checkpoint import (
    _seal,
    newest_valid,
    prune,
    read_checkpoint,
    read_manifest,
    steps,
    write_best,
    write_checkpoint,
    write_directory,
)
from agilerl_exp.run.environment import environment_changes


def policy(value: float = 1.0) -> dict:
    return {"population": {"weights": np.full((2, 3), value, np.float32), "lr": [1e-3, math.inf]}}


RESUME = {"streams": {"counters": {"explore": [1, 2]}}, "ring": {"obs": np.arange(60, dtype=np.uint8)}}


def save(root: Path, *numbers: int) -> None:
    for n in numbers:
        write_checkpoint(root, n, policy(n), RESUME, {"generation": n})


def no_warning(line: str) -> None:
    raise AssertionError(line)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


# What comes back


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path):
    tree = {
        "arrays": [np.arange(6, dtype=t).reshape(2, 3) for t in (np.int8, np.uint64, np.float64, np.float16)],
        "bool": np.array([True, False]),
        "scalar": np.array(7, np.int32),
        "empty": np.zeros((0, 4), np.float32),
        "strided": np.arange(12.0).reshape(3, 4).T,
        "torch": torch.linspace(0, 1, 5, requires_grad=True)[1:4],
        "big": 2**200,
        "floats": [0.1, -0.0, math.nan, math.inf, -math.inf],
        "tuple": (1, ("a", None)),
        "numpy": [np.float32(0.1), np.int64(3), np.bool_(True)],
    }
    write_directory(tmp_path / "a", {"t": tree, "leaf": 3}, {"kind": "agent", "score": -math.inf})
    back, manifest = read_checkpoint(tmp_path / "a")
    got = back["t"]
    assert back["leaf"] == 3 and manifest["meta"] == {"kind": "agent", "score": -math.inf}
    for want, have in zip(tree["arrays"], got["arrays"], strict=True):
        assert have.dtype == want.dtype and have.tolist() == want.tolist()
    assert got["bool"].tolist() == [True, False] and got["scalar"].shape == () and got["scalar"] == 7
    assert got["empty"].shape == (0, 4) and got["strided"].tolist() == tree["strided"].tolist()
    assert got["torch"].tolist() == [0.25, 0.5, 0.75] and got["torch"].dtype == np.float32
    assert got["big"] == 2**200 and got["tuple"] == (1, ("a", None))
    assert [math.copysign(1, x) for x in got["floats"][:2]] == [1, -1]
    assert math.isnan(got["floats"][2]) and got["floats"][3:] == [math.inf, -math.inf]
    assert got["numpy"] == [float(np.float32(0.1)), 3, True]
    got["arrays"][0][:] = 9  # writable


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    leaves,
    lambda t: (
        st.lists(t, max_size=3)
        | st.tuples(t, t)
        | st.dictionaries(st.text().filter(lambda k: k[:1] != "$"), t)
    ),
    max_leaves=10,
)


@given(trees)
def test_any_json_tree_survives(tree):
    text, arrays = state.encode(tree)
    assert state.decode(state.parse(text), arrays) == tree


def test_the_array_file_is_plain_safetensors_with_equal_bytes_for_equal_states(tmp_path):
    a = write_checkpoint(tmp_path / "a", 1, policy(), RESUME, {})
    b = write_checkpoint(
        tmp_path / "b", 1, {"population": dict(reversed(policy()["population"].items()))}, RESUME, {}
    )
    assert load_file(a / "population.safetensors")["weights"].tolist() == [[1.0] * 3] * 2
    for name in names(a):
        assert (a / name).read_bytes() == (b / name).read_bytes()


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        ({1, 2}, "'x/y': set cannot be saved"),
        (np.array(["a"]), "<U1 cannot be saved"),
        (np.array([None]), "object cannot be saved"),
        ({"$a": 1}, "does not start with"),
        ({3: 1}, "key 3"),
    ],
)
def test_a_leaf_that_cannot_be_saved_is_named_and_nothing_is_written(tmp_path, leaf, text):
    with pytest.raises(TypeError, match=text):
        write_directory(tmp_path / "a", {"k": {"x": {"y": leaf}}}, {})
    assert names(tmp_path) == []


def test_two_arrays_never_share_a_place():
    with pytest.raises(TypeError, match="leave '/' out"):
        state.encode({"a": {"b": np.zeros(1)}, "a/b": np.ones(1)})


def test_parts_read_only_what_they_name(tmp_path):
    path = write_checkpoint(tmp_path, 5, policy(), RESUME, {})
    (path / "ring.safetensors").unlink()  # not asked for, not missed
    assert set(read_checkpoint(path, {"policy"})[0]) == {"population"}
    assert set(read_checkpoint(path, {"streams"})[0]) == {"streams"}
    with pytest.raises(CheckpointError, match=r"ring\.safetensors"):
        read_checkpoint(path, {"resume"})


def test_names_that_are_no_file_names_and_shared_names_are_refused(tmp_path):
    for name in ("../x", "manifest", "a.b", ""):
        with pytest.raises(ValueError, match="cannot be the name"):
            write_directory(tmp_path / "a", {name: 1}, {})
    with pytest.raises(ValueError, match="in both parts"):
        write_checkpoint(tmp_path, 1, {"a": 1}, {"a": 2}, {})


# What is detected


def copies(source: Path, tmp_path: Path):
    """Every damaged form of a checkpoint: (name of the damage, file, directory)."""
    files = names(source)
    rng = np.random.default_rng(0)

    def copy() -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return Path(shutil.copytree(source, tmp_path / "copy"))

    for file in files:
        size = (source / file).stat().st_size
        for length in {0, 1, size // 2, size - 1}:
            path = copy()
            os.truncate(path / file, length)
            yield f"truncated to {length}", file, path
        for offset in rng.integers(0, size, 100):
            path = copy()
            data = bytearray((path / file).read_bytes())
            data[offset] ^= 1 << rng.integers(8)
            (path / file).write_bytes(data)
            yield f"bit flipped at {offset}", file, path
        path = copy()
        (path / file).unlink()
        yield "deleted", file, path
        path = copy()
        with (path / file).open("ab") as stream:
            stream.write(b"x")
        yield "longer", file, path
        for other in files[: files.index(file)]:
            path = copy()
            (path / file).rename(path / "swap")
            (path / other).rename(path / file)
            (path / "swap").rename(path / other)
            yield f"swapped with {other}", file, path


def test_all_damage_is_detected_and_named(tmp_path):
    source = write_checkpoint(tmp_path / "root", 3, policy(), RESUME, {"generation": 3})
    count = 0
    for damage, file, path in copies(source, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(path)
        text = str(caught.value)
        assert "\n" not in text and "unreadable" in text, damage
        assert "swapped" in damage or file in text, (damage, text)
        count += 1
    assert count > 500


def test_fallback_says_so_and_total_loss_is_an_error(tmp_path):
    assert newest_valid(tmp_path / "absent", no_warning) is None
    save(tmp_path, 9, 10, 100)
    assert newest_valid(tmp_path, no_warning) == tmp_path / "step-100"
    os.truncate(tmp_path / "step-100" / "ring.json", 3)
    lines: list[str] = []
    assert newest_valid(tmp_path, lines.append) == tmp_path / "step-10"
    assert len(lines) == 1 and "step-100/ring.json" in lines[0] and "falling back to step-10" in lines[0]
    for n in (9, 10):
        (tmp_path / f"step-{n}" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no usable checkpoint; remove it to start afresh"):
        newest_valid(tmp_path, lines.append)


def test_order_is_by_number_and_other_names_are_ignored(tmp_path):
    save(tmp_path, 9, 100)
    os.utime(tmp_path / "step-9", (2e9, 2e9))
    (tmp_path / "old-step-999").mkdir()
    (tmp_path / ".step-999.tmp").mkdir()
    (tmp_path / "step-998").symlink_to(tmp_path / "step-9")
    (tmp_path / "step-997").write_text("a file")
    assert [n for n, _ in steps(tmp_path)] == [9, 100]
    assert newest_valid(tmp_path, no_warning) == tmp_path / "step-100"


# What is refused


def reseal(path: Path, **changes) -> None:
    """Change a manifest as someone who knows the format can."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_bytes(_seal({**manifest, **changes}))


def resealed_file(path: Path, name: str, data: bytes) -> None:
    import hashlib

    (path / name).write_bytes(data)
    files = json.loads((path / "manifest.json").read_text())["files"]
    files[name].update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    reseal(path, files=files)


def test_a_newer_schema_is_one_line_with_both_numbers(tmp_path):
    save(tmp_path, 1, 2)
    reseal(tmp_path / "step-2", schema=999)
    for read in (lambda: read_checkpoint(tmp_path / "step-2"), lambda: newest_valid(tmp_path, no_warning)):
        with pytest.raises(CheckpointError, match=r"schema 999, this version reads up to 1") as caught:
            read()
        assert "\n" not in str(caught.value)
    text = (tmp_path / "step-1" / "manifest.json").read_text()
    (tmp_path / "step-1" / "manifest.json").write_text(text.replace('"schema":1', '"schema":999'))
    with pytest.raises(CheckpointError, match="999"):  # edited by hand
        read_checkpoint(tmp_path / "step-1")


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("sealed", [False, True])
def test_a_pickle_in_any_file_runs_nothing(tmp_path, sealed):
    canary = tmp_path / "canary"
    code = pickle.dumps(Canary(canary))
    for name in ("population.json", "population.safetensors", "ring.safetensors", "manifest.json"):
        path = write_checkpoint(tmp_path / "root", 1, policy(), RESUME, {})
        if sealed and name != "manifest.json":
            resealed_file(path, name, code)
        else:
            (path / name).write_bytes(code)
        with pytest.raises(CheckpointError, match=f"unreadable.*{name}"):
            read_checkpoint(path)
    assert not canary.exists()


def test_paths_links_and_pipes_are_refused(tmp_path):
    path = write_checkpoint(tmp_path / "root", 1, policy(), RESUME, {})
    outside = tmp_path / "outside.json"
    outside.write_bytes((path / "streams.json").read_bytes())
    entry = read_manifest(path)["files"]["streams.json"]
    for name in ("../../outside.json", str(outside), "a/b.json", ".hidden.json", "x.pt", "manifest.json"):
        reseal(path, files={name: entry})
        with pytest.raises(CheckpointError, match="unsafe file name"):
            read_checkpoint(path)
    for make in (lambda p: p.symlink_to(outside), lambda p: os.mkfifo(p), lambda p: p.mkdir()):
        path = write_checkpoint(tmp_path / "root", 1, policy(), RESUME, {})
        (path / "streams.json").unlink()
        make(path / "streams.json")
        with pytest.raises(CheckpointError, match=r"streams\.json"):
            read_checkpoint(path)


def test_bombs_are_refused(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path, 1, policy(), RESUME, {})
    header = (10 << 30).to_bytes(8, "little") + b"{}"
    lying = b'{"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}'
    bombs = {
        "ring.safetensors": [header, len(lying).to_bytes(8, "little") + lying, b""],
        "ring.json": [
            b"[" * 200_000 + b"]" * 200_000,
            b"9" * 5000,
            b"NaN",
            b'{"$array":"x"}',
            b'{"$float":[1]}',
            b"\xff",
        ],
    }
    for name, contents in bombs.items():
        for data in contents:
            path = write_checkpoint(tmp_path, 1, policy(), RESUME, {})
            resealed_file(path, name, data)
            with pytest.raises(CheckpointError, match=r"ring\."):
                read_checkpoint(path)
    path = write_checkpoint(tmp_path, 1, policy(), RESUME, {})
    monkeypatch.setattr(state, "MAX_JSON_BYTES", 10)
    with pytest.raises(CheckpointError, match="at most 10"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "files", [[], {"a.json": 3}, {"a.json": {}}, {"a.json": {"part": "policy", "size": 1}}, None]
)
def test_a_sealed_manifest_of_another_shape_is_one_line(tmp_path, files):
    path = write_checkpoint(tmp_path, 1, policy(), RESUME, {})
    reseal(path, files=files)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_checkpoint(path)


def test_a_missing_directory_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=r"step-7/manifest\.json: No such file"):
        read_checkpoint(tmp_path / "step-7")


# What is kept


def test_prune_without_policies_keeps_the_newest_two(tmp_path):
    save(tmp_path, 8, 9, 10, 11)
    prune(tmp_path, keep_policies=False)
    assert names(tmp_path) == ["step-10", "step-11"]


def test_prune_with_policies_keeps_them_readable(tmp_path):
    save(tmp_path, 8, 9, 10, 11)
    prune(tmp_path, keep_policies=True)
    assert names(tmp_path / "step-8") == ["manifest.json", "population.json", "population.safetensors"]
    assert names(tmp_path / "step-10") == names(tmp_path / "step-11") != names(tmp_path / "step-9")
    kept, manifest = read_checkpoint(tmp_path / "step-9")
    assert kept["population"]["weights"].tolist() == [[9.0] * 3] * 2
    assert manifest["meta"] == {"generation": 9} and not manifest["complete"]
    for n in (10, 11):
        (tmp_path / f"step-{n}" / "ring.json").unlink()
    with pytest.raises(CheckpointError, match="step-9: holds the policy only"):
        newest_valid(tmp_path, no_warning)


def test_an_older_step_ends_the_future_that_was_abandoned(tmp_path):
    save(tmp_path, 10, 20, 30)
    save(tmp_path, 15)
    assert names(tmp_path) == ["step-10", "step-15"]


def test_the_best_agent_is_replaced_as_a_whole(tmp_path):
    write_best(tmp_path, {"step": 10, "member": 0, "fitness": 1.5}, policy(1))
    write_best(tmp_path, {"step": 20, "member": 3, "fitness": 2.5}, policy(2))
    kept, manifest = read_checkpoint(tmp_path / "best")
    assert kept["population"]["weights"][0, 0] == 2
    assert manifest["meta"] == {"kind": "agent", "step": 20, "member": 3, "fitness": 2.5}
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 20, "member": 3, "fitness": 2.5}
    assert names(tmp_path) == ["best", "best.json"]


def test_debris_of_a_kill_goes_and_nothing_else(tmp_path):
    kept = [".notes.tmp", ".step-x.old", "step-4.tmp", "best.old", "agent.old"]
    for name in (".step-5.tmp", ".step-6.old", ".best.tmp", "step-6", *kept):
        (tmp_path / name).mkdir()
    for name in (".best.json.tmp", ".agent.tmp"):
        (tmp_path / name).write_text("")
    save(tmp_path, 6)
    assert newest_valid(tmp_path, no_warning) == tmp_path / "step-6"
    assert names(tmp_path) == sorted(["step-6", ".agent.tmp", *kept])
    write_directory(tmp_path / "agent", policy(), {})
    assert names(tmp_path) == sorted(["step-6", "agent", *kept])


def test_an_agent_that_is_being_replaced_is_read_where_it_stands(tmp_path):
    write_directory(tmp_path / "agent", policy(3), {})
    (tmp_path / "agent").rename(tmp_path / ".agent.old")
    assert read_checkpoint(tmp_path / "agent")[0]["population"]["weights"][0, 0] == 3
    assert names(tmp_path) == [".agent.old"]


def test_a_moved_directory_still_reads(tmp_path):
    path = write_checkpoint(tmp_path / "a", 1, policy(), RESUME, {})
    assert str(tmp_path) not in "".join(p.read_text("latin1") for p in path.iterdir())
    (tmp_path / "a").rename(tmp_path / "b")
    assert newest_valid(tmp_path / "b", no_warning) == tmp_path / "b" / "step-1"


def test_environment_changes_are_lines(tmp_path):
    path = write_checkpoint(tmp_path, 1, policy(), RESUME, {})
    manifest = read_manifest(path)
    assert environment_changes(manifest) == []
    versions = {**manifest["versions"], "torch": "1.0"}
    lines = environment_changes({**manifest, "versions": versions, "cpu": "abacus"})
    assert (
        lines[1].startswith("torch 1.0 -> ") and lines[0].startswith("cpu 'abacus' -> ") and len(lines) == 2
    )
