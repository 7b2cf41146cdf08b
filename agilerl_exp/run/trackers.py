"""Trackers: where metric rows go. Each row is on its way to the disk when `log` returns.

Must not know: what a metric means, when a row is due.

`metrics.jsonl` and `lineage.jsonl` hold only functions of (config, seed), so that a resumed run ends with the same
bytes: the checkpoint stores their lengths and resume cuts the files to them. Wall-clock figures go to
`timing.jsonl`, outside that law.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agilerl_exp.errors import CheckpointError
from agilerl_exp.models.tracker import TrackerSpec
from agilerl_exp.run import durable, state

Row = Mapping[str, Any]


class Tracker:
    """What the loops know of a tracker; this one writes nothing.

    It passes on where the rows of an earlier tracker stood: one after it may go on there.
    """

    _position: Mapping[str, Any] = {}

    def log(self, row: Row) -> None:
        """Write one row of plain JSON values: functions of (config, seed) only."""

    def log_timing(self, row: Row) -> None:
        """Write one row of wall-clock figures."""

    def log_birth(self, row: Row) -> None:
        """Write one row of the lineage, under the same law as `log`."""

    def position(self) -> dict[str, Any]:
        """Where the tracker stands, on the disk by now: what the manifest stores."""
        return dict(self._position)

    def truncate(self, position: Mapping[str, Any]) -> None:
        """Go back to a stored position ({}: to the start)."""
        self._position = position

    def close(self) -> None:
        """Release everything."""


class JsonlTracker(Tracker):
    """One JSON object a line, keys sorted; numbers that JSON lacks are the texts "nan", "inf", "-inf".

    Args:
        job_dir: where `metrics.jsonl`, `lineage.jsonl` and `timing.jsonl` are; existing files are continued.

    Raises:
        DiskError: (here and in every method that writes) with the file as it was before the row.
    """

    def __init__(self, job_dir: Path) -> None:
        self._metrics = _Lines(job_dir / "metrics.jsonl")
        self._timing = _Lines(job_dir / "timing.jsonl")
        self._lineage = _Lines(job_dir / "lineage.jsonl")

    def log(self, row: Row) -> None:
        """See `Tracker`."""
        self._metrics.append(row)

    def log_timing(self, row: Row) -> None:
        """See `Tracker`."""
        self._timing.append(row)

    def log_birth(self, row: Row) -> None:
        """See `Tracker`."""
        self._lineage.append(row)

    def position(self) -> dict[str, Any]:
        """See `Tracker`."""
        return {"metrics.jsonl": self._metrics.sync(), "lineage.jsonl": self._lineage.sync()}

    def truncate(self, position: Mapping[str, Any]) -> None:
        """See `Tracker`.

        Raises:
            CheckpointError: the rows up to there are not those that were written.
        """
        self._metrics.truncate(position.get("metrics.jsonl"))
        self._lineage.truncate(position.get("lineage.jsonl"))

    def close(self) -> None:
        """See `Tracker`."""
        self._metrics.close()
        self._timing.close()
        self._lineage.close()


class _Lines:
    """A file of JSON lines that holds whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with durable.disk_errors(path, 0):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            # A kill in the middle of a row leaves a torn one.
            self._size = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._fd, self._size)
        self._sha256 = hashlib.sha256()  # of the rows since the start or the last `truncate`'s position

    def append(self, row: Row) -> None:
        line = state.dump({key: _json_number(value) for key, value in row.items()})
        with durable.disk_errors(self._path, len(line)):
            try:
                durable.write_all(self._fd, line)
            except OSError:
                os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)
        self._sha256.update(line)

    def sync(self) -> dict[str, Any]:
        with durable.disk_errors(self._path, 0):
            os.fsync(self._fd)
        return {"size": self._size, "sha256": self._sha256.hexdigest()}

    def truncate(self, position: Mapping[str, Any] | None) -> None:
        size = position["size"] if position else 0
        self._sha256 = hashlib.sha256(self._path.read_bytes()[:size])
        if position and (size > self._size or self._sha256.hexdigest() != position["sha256"]):
            raise CheckpointError(
                f"{self._path}: not as it was when the checkpoint was made (its first {size} bytes are missing or "
                "changed); restore it, or use another job directory"
            )
        with durable.disk_errors(self._path, 0):
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
        self._size = size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _json_number(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json_number(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _json_number(item) for key, item in value.items()}
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def make_tracker(spec: TrackerSpec, job_dir: Path) -> Tracker:
    """The tracker that a spec names."""
    return Tracker() if spec.name == "none" else JsonlTracker(job_dir)
