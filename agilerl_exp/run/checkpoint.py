"""Checkpoints: one directory each, complete or absent, every byte verified, nothing unpickled.

Must not know: what the state holds (nested dicts of arrays and JSON values), when to save, where jobs live.

A state's top-level key K becomes ``K.json`` and, when it holds arrays, ``K.safetensors``. ``manifest.json``
is written last and carries the size and sha256 of every file, and its own. A directory is written as
``step-N.tmp-PID`` and renamed; older ones are pruned only after that is on the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from agilerl_exp.errors import CheckpointError
from agilerl_exp.run import durable, state
from agilerl_exp.run.environment import environment

SCHEMA = 1
MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d+)")
_FILE = re.compile(r"(?!manifest\.)[A-Za-z0-9_][A-Za-z0-9_-]*\.(json|safetensors)")
_DEBRIS = re.compile(r"\.(step-\d+|best|best\.json)\.(tmp|old)")
_KEPT = 2  # newest directories that hold everything

State = Mapping[str, Any]


def write_checkpoint(root: Path, step: int, policy: State, resume: State, meta: Mapping[str, Any]) -> Path:
    """Write ``root/step-N`` in one step and remove directories of later steps (an abandoned future).

    Args:
        root: the checkpoint directory, held by this process.
        step: env steps of a member.
        policy: what playing needs (weights, hyperparameters, statistics); kept longest.
        resume: what going on needs besides (optimizers, rings, streams, env state).
        meta: JSON values for the manifest.

    Raises:
        DiskError: something could not be written; older checkpoints are intact, nothing half-written remains.
        TypeError: a leaf that cannot be saved.
    """
    if shared := set(policy) & set(resume):
        raise ValueError(f"in both parts of the checkpoint: {sorted(shared)}")
    return _write(root / f"step-{step}", {"policy": policy, "resume": resume}, meta, step)


def write_directory(path: Path, content: State, meta: Mapping[str, Any]) -> Path:
    """Write a directory that holds a policy alone (an agent), in one step, in place of an older one.

    Raises:
        DiskError: as `write_checkpoint`.
    """
    return _write(path, {"policy": content}, meta, None)


def write_best(root: Path, pointer: Mapping[str, Any], content: State) -> Path:
    """Write the best agent so far as ``root/best``; ``root/best.json`` is the pointer (whose, when, how good)."""
    path = write_directory(root / "best", content, {"kind": "agent", **pointer})
    durable.replace_file(root / "best.json", state.dump(state.plain(pointer)))
    return path


def _write(path: Path, parts: Mapping[str, State], meta: Mapping[str, Any], step: int | None) -> Path:
    contents = _encode(parts)
    new = durable.scratch(path)
    needed = sum(len(chunk) for _, chunks in contents.values() for chunk in chunks)
    with durable.disk_errors(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.tidy(path)
        try:
            new.mkdir()
            files = {}
            for name, (part, chunks) in contents.items():
                size, sha256 = durable.write_new(new / name, chunks)
                files[name] = {"part": part, "size": size, "sha256": sha256}
            complete = "resume" in parts
            manifest = {"schema": SCHEMA, "step": step, "complete": complete, "files": files, **environment()}
            durable.write_new(new / MANIFEST, [_seal({**manifest, "meta": state.plain(meta)})])
            durable.sync_folder(new)
            for later, other in steps(path.parent):
                if step is not None and later > step:
                    durable.remove(other)
            durable.replace_folder(path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    return path


def _encode(parts: Mapping[str, State]) -> dict[str, tuple[str, list[durable.Chunk]]]:
    """File name -> the part it belongs to and its bytes."""
    contents: dict[str, tuple[str, list[durable.Chunk]]] = {}
    for part, content in parts.items():
        for key, tree in content.items():
            if not _FILE.fullmatch(f"{key}.json"):
                raise ValueError(f"'{key}' cannot be the name of a file")
            text, arrays = state.encode(tree)
            contents[f"{key}.json"] = part, [text]
            if arrays:
                contents[f"{key}.safetensors"] = part, [*state.safetensors_chunks(arrays)]
    return contents


def _seal(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's bytes, with the sha256 of everything else in it."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return state.dump({**body, "sha256": hashlib.sha256(state.dump(body)).hexdigest()})


def read_checkpoint(
    path: Path, parts: Collection[str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read and verify a checkpoint or agent directory.

    Args:
        path: the directory.
        parts: "policy", "resume" or top-level keys of the state; None reads everything.

    Returns:
        The state (arrays as numpy arrays, dtype and shape as saved) and the manifest.

    Raises:
        CheckpointError: missing, damaged or newer; one line that names the file.
    """
    old = durable.set_aside(path)
    if old.exists() and not path.exists():  # a kill, or a writer at this very moment, is between two renames
        path = old
    manifest = read_manifest(path)
    content: dict[str, Any] = {}
    for name, entry in manifest["files"].items():
        key = name.rpartition(".")[0]
        if name.endswith(".json") and (parts is None or entry["part"] in parts or key in parts):
            content[key] = _read_tree(path, key, manifest["files"])
    return content, manifest


def _read_tree(path: Path, key: str, files: Mapping[str, Any]) -> Any:
    def read(name: str, reader: Callable[[Path], Any]) -> Any:
        _verify(path / name, files[name])
        try:
            return reader(path / name)
        except ValueError as error:
            raise _unreadable(path / name, str(error)) from None

    raw = f"{key}.safetensors"
    arrays = read(raw, state.read_arrays) if raw in files else {}
    return read(f"{key}.json", lambda file: state.decode(state.parse(_read(file)), arrays))


def read_manifest(path: Path) -> dict[str, Any]:
    """The verified manifest of a checkpoint directory.

    Raises:
        CheckpointError: missing, damaged or made by a newer version.
    """
    file = path / MANIFEST
    data = _read(file)
    try:
        manifest = state.parse(data)
        schema = manifest["schema"]
        if data != _seal(manifest):
            raise _unreadable(file, f"its own sha256 differs (schema {schema})")
        if schema > SCHEMA:
            raise _NewerError(
                f"{file}: made by checkpoint schema {schema}, this version reads up to {SCHEMA}; "
                "upgrade agilerl-exp"
            )
        manifest["meta"] = state.decode(manifest["meta"], {})
        for name, entry in manifest["files"].items():
            if not _FILE.fullmatch(name):
                raise _unreadable(file, f"unsafe file name {name!r}")
            if set(entry) != {"part", "size", "sha256"}:
                raise _unreadable(file, f"unknown entry for {name}")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _unreadable(file, f"not a manifest ({error})") from None
    return manifest


class _NewerError(CheckpointError):
    """Falling back past this directory would lose work."""


def _unreadable(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"unreadable checkpoint file {file}: {why}")


def _open(file: Path) -> BufferedReader:
    """A plain file: no link is followed, no pipe or device opened."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _unreadable(file, "not a plain file")
    return open(fd, "rb")


def _read(file: Path) -> bytes:
    with _open(file) as stream:
        return stream.read(state.MAX_JSON_BYTES + 1)


def _verify(file: Path, entry: Mapping[str, Any]) -> None:
    """Check a file's size and sha256 against its manifest entry."""
    with _open(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size != entry["size"]:
            raise _unreadable(file, f"{size} bytes, the manifest says {entry['size']}")
        if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
            raise _unreadable(file, "its sha256 differs from the manifest")


def steps(root: Path) -> list[tuple[int, Path]]:
    """The step directories of a checkpoint directory, by step number."""
    if not root.is_dir():
        return []
    found = ((_STEP.fullmatch(path.name), path) for path in root.iterdir())
    return sorted(
        (int(match[1]), path) for match, path in found if match and path.is_dir() and not path.is_symlink()
    )


def newest_valid(root: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest complete step directory whose every byte is as written; None when there is none at all.

    Args:
        root: the checkpoint directory, held by this process.
        warn: called with one line for each newer directory that had to be passed over.

    Raises:
        CheckpointError: no directory can be used, or one was made by a newer version: starting afresh, or
            from an older step, would throw work away that nobody asked to throw away.
    """
    with durable.disk_errors(root, 0):
        _tidy(root)
    lines = []
    for _, path in reversed(steps(root)):
        try:
            _check_complete(path)
        except _NewerError:
            raise
        except CheckpointError as error:
            lines.append(str(error))
            continue
        for line in lines:
            warn(f"{line}; falling back to {path.name}")
        return path
    if lines:
        raise CheckpointError("\n".join([*lines, f"{root}: no usable checkpoint; remove it to start afresh"]))
    return None


def _tidy(root: Path) -> None:
    """Put right what a killed process left in a checkpoint directory, which is ours by its lock."""
    for debris in root.glob(".*"):
        if match := _DEBRIS.fullmatch(debris.name):
            durable.tidy(root / match[1])


def _check_complete(path: Path) -> None:
    manifest = read_manifest(path)
    if not manifest["complete"]:
        raise CheckpointError(f"{path}: holds the policy only")
    for name, entry in manifest["files"].items():
        _verify(path / name, entry)


def prune(root: Path, keep_policies: bool) -> None:
    """Keep everything of the newest two steps; of older ones the policy files, or nothing.

    A kill at any moment leaves directories that are whole by their manifest.

    Raises:
        DiskError: something could not be removed or rewritten.
    """
    with durable.disk_errors(root, 0):
        for _, path in steps(root)[:-_KEPT]:
            if keep_policies:
                with suppress(CheckpointError):
                    _drop_resume(path)
            else:
                durable.remove(path)


def _drop_resume(path: Path) -> None:
    manifest = read_manifest(path)
    if manifest["complete"]:
        files = {name: entry for name, entry in manifest["files"].items() if entry["part"] == "policy"}
        manifest = {**manifest, "complete": False, "files": files, "meta": state.plain(manifest["meta"])}
        durable.replace_file(path / MANIFEST, _seal(manifest))
    for file in path.iterdir():
        if file.name != MANIFEST and file.name not in manifest["files"]:
            file.unlink()


def agent_state(content: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """State of the one agent of an agent directory, or of member `index` of a `step-N` directory.

    Raises:
        CheckpointError: there is none.
    """
    if "agent" in content:
        return content["agent"]
    if "population" not in content:
        raise CheckpointError("holds no agent; give an agent directory or a step-N directory")
    members = content["population"]["members"]
    if str(index) not in members:
        raise CheckpointError(f"holds members 0..{len(members) - 1}, not {index}; give one of them as index")
    return members[str(index)]
