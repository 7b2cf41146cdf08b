"""Trackers: bytes of the rows, going back to a position, torn lines, disks that fail."""

from __future__ import annotations

import errno
import json
import math

import faults
import pytest

from agilerl_exp.errors import CheckpointError, DiskError
from agilerl_exp.models.tracker import TrackerSpec
from agilerl_exp.run.trackers import JsonlTracker, Tracker, make_tracker


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_is_one_line_of_strict_json_whatever_the_order_of_its_keys(tmp_path):
    tracker = JsonlTracker(tmp_path)
    tracker.log({"b": 0.1, "a": 2, "c": [math.inf, None], "d": {"x": math.nan}})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"a":2,"b":0.1,"c":["inf",null],"d":{"x":"nan"}}\n'
    tracker.log_timing({"wall": 1.5})
    assert rows(tmp_path / "timing.jsonl") == [{"wall": 1.5}]
    tracker.close()
    tracker.close()


def test_a_resumed_file_has_the_bytes_of_an_uninterrupted_one(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, first = JsonlTracker(tmp_path / "a"), JsonlTracker(tmp_path / "b")
    for i in range(6):
        whole.log({"i": i})
    for i in range(3):
        first.log({"i": i})
    position = json.loads(json.dumps(first.position()))
    first.log({"i": 3})  # after the checkpoint, lost
    with (tmp_path / "b" / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"i"')  # torn by the kill
    second = JsonlTracker(tmp_path / "b")
    second.truncate(position)
    for i in range(3, 6):
        second.log({"i": i})
    assert (tmp_path / "b" / "metrics.jsonl").read_bytes() == (tmp_path / "a" / "metrics.jsonl").read_bytes()
    second.truncate({})
    assert (tmp_path / "b" / "metrics.jsonl").read_bytes() == b""


def test_rows_outlive_a_run_without_a_tracker(tmp_path):
    first = JsonlTracker(tmp_path)
    first.log({"i": 0})
    position = first.position()
    first.log({"i": 1})  # after the checkpoint, lost
    first.close()
    between = Tracker()
    between.truncate(position)
    between.log({"i": 2})
    last = JsonlTracker(tmp_path)
    last.truncate(json.loads(json.dumps(between.position())))
    last.log({"i": 3})
    assert rows(tmp_path / "metrics.jsonl") == [{"i": 0}, {"i": 3}]


@pytest.mark.parametrize("tail", [b"", b"x", b"x" * 200_000, b'{"b":2}'])
@pytest.mark.parametrize("head", [b"", b'{"a":1}\n'])
def test_a_torn_last_line_goes(tmp_path, head, tail):
    (tmp_path / "timing.jsonl").write_bytes(head + tail)
    tracker = JsonlTracker(tmp_path)
    tracker.log_timing({"c": 3})
    assert (tmp_path / "timing.jsonl").read_bytes() == head + b'{"c":3}\n'


@pytest.mark.parametrize("damage", ["flipped", "shorter", "gone", "other row"])
def test_rows_that_are_not_those_of_the_checkpoint_are_refused(tmp_path, damage):
    tracker = JsonlTracker(tmp_path)
    for i in range(3):
        tracker.log({"i": i})
    position = json.loads(json.dumps(tracker.position()))
    file = tmp_path / "metrics.jsonl"
    good = file.read_bytes()
    bad = {
        "flipped": good[:4] + bytes([good[4] ^ 1]) + good[5:],
        "shorter": good[:-9],
        "gone": b"",
        "other row": good.replace(b"1", b"7"),
    }
    file.write_bytes(bad[damage])
    with pytest.raises(CheckpointError, match=rf"metrics\.jsonl: not as it was .* first {len(good)} bytes"):
        JsonlTracker(tmp_path).truncate(position)
    file.write_bytes(good)
    JsonlTracker(tmp_path).truncate(position)
    assert file.read_bytes() == good


def test_a_failed_row_leaves_the_file_as_it_was(tmp_path):
    tracker = JsonlTracker(tmp_path)
    tracker.log({"a": 1})
    with faults.failing(1, errno.ENOSPC), pytest.raises(DiskError, match=r"metrics\.jsonl: No space left"):
        tracker.log({"a": 2})
    assert rows(tmp_path / "metrics.jsonl") == [{"a": 1}]
    tracker.log({"a": 3})
    assert rows(tmp_path / "metrics.jsonl") == [{"a": 1}, {"a": 3}]
    with faults.failing(1, errno.EIO), pytest.raises(DiskError):
        tracker.position()


def test_a_kill_in_the_middle_of_a_row_leaves_whole_rows(tmp_path):
    JsonlTracker(tmp_path).log({"a": 1})
    opening = 3  # one ftruncate a file
    assert faults.killed(opening + 1, lambda: JsonlTracker(tmp_path).log({"a": 2}))
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"a":1}\n{"a"'
    JsonlTracker(tmp_path).log({"a": 3})
    assert rows(tmp_path / "metrics.jsonl") == [{"a": 1}, {"a": 3}]


def test_the_spec_names_the_tracker(tmp_path):
    none = make_tracker(TrackerSpec(name="none"), tmp_path)
    assert type(none) is Tracker
    none.log({"a": 1})
    assert none.position() == {}
    none.close()
    assert not list(tmp_path.iterdir())
    assert isinstance(make_tracker(TrackerSpec(), tmp_path), JsonlTracker)
