"""The display: exact plain lines, and what a real terminal shows."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from agilerl_exp.run import display as module
from agilerl_exp.run.display import make_display

ROW = {"score": 123.456, "eps": 0.05, "loss": 0.0123456}


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines(clock):
    stream = io.StringIO()
    display = make_display(50_000, members=4, stream=stream)
    display.update({"env_step": 20_000, **ROW, "loss": None})
    clock[0] += 2
    display.update({"env_step": 22_500, **ROW})
    display.message("saved")
    display.close({"best member": 2, "score": 487.25, "files": "outputs/a"})
    assert stream.getvalue().splitlines() == [
        "20000/50000 (40%)  - steps/s  score 123.5  eps 0.05  loss -  ETA -:--",
        "22500/50000 (45%)  5k steps/s  score 123.5  eps 0.05  loss 0.01235  ETA 0:22",
        "saved",
        "best member: 2",
        "score: 487.2",
        "files: outputs/a",
    ]


def test_pace_over_reports_of_several_members_and_hours(clock):
    stream = io.StringIO()
    display = make_display(10_000_000, members=2, stream=stream)
    for step in (0, 1000, 1000, 2000):
        display.update({"env_step": step})
        clock[0] += 1
    assert stream.getvalue().splitlines()[1:] == [
        "1000/10000000 (0%)  2k steps/s  ETA 2:46:39",
        "1000/10000000 (0%)  2k steps/s  ETA 2:46:39",
        "2000/10000000 (0%)  1.8k steps/s  ETA 3:05:09",
    ]


def test_a_closed_stream_never_stops_a_run():
    stream = io.StringIO()
    display = make_display(10, stream=stream)
    stream.close()
    display.update({"env_step": 1})
    display.close({"a": 1})


SCRIPT = """
import sys, time
from agilerl_exp.run.display import make_display
display = make_display(50_000, members=4)
for step in range(10_000, 50_001, 10_000):
    display.update({"env_step": step, "score": 487.25, "eps": 0.0500001, "loss": 0.0123456})
    time.sleep(0.11)
    if step == 20_000:
        display.message("a [bold] message")
display.close({"best member": 2, "files": "outputs/a"})
"""


def on_terminal(columns: int) -> str:
    """What the script writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(chunks).decode()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_shows_one_moving_line_that_never_wraps(columns):
    raw = on_terminal(columns)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw).replace("\r", "\n").split("\n")
    assert max(len(line) for line in lines) <= columns
    moving = [line for line in lines if "%" in line]
    assert len(moving) >= 5 and "100%" in moving[-1] and "score 487.2" in moving[-1]
    assert all(text in moving[-1] for text in ("steps/s", "ETA 0:00", "eps 0.05", "loss 0.01235")) == (
        columns >= 80
    )
    assert ("50k/50k" in moving[-1]) == (columns == 200)
    assert "a [bold] message" in lines
    assert [line.split() for line in lines if "files" in line] == [["files", "outputs/a"]]
    shown, hidden = raw.rfind("\x1b[?25h"), raw.rfind("\x1b[?25l")
    assert shown > hidden  # the cursor is there again
