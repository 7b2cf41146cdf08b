"""What a person sees of a run: one moving line on a terminal, plain lines elsewhere, a closing table.

Must not know: how the figures are made. A display that cannot write (a closed terminal) never stops a run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

Row = Mapping[str, Any]

_SHOWN = ("score", "eps", "loss")
_MIN_BAR = 10  # columns
_REDRAW = 0.1  # seconds
_QUIETLY = suppress(OSError, ValueError)


def make_display(total_steps: int, *, members: int = 1, stream: TextIO | None = None) -> Display:
    """A display for a run.

    Args:
        total_steps: env steps of a member at the end of the run.
        members: how many members; steps/s counts the env steps of all.
        stream: where to; None: stderr.
    """
    stream = sys.stderr if stream is None else stream
    return (_Terminal if stream.isatty() else Display)(total_steps, members, stream)


class Display:
    """One line a report, no control characters.

    Steps a second are counted from the first report on: a resumed run has steps that nobody waited for.
    """

    def __init__(self, total: int, members: int, stream: TextIO) -> None:
        self._total, self._members, self._stream = max(1, total), members, stream
        self._step = 0
        self._time: float | None = None
        self._rate: float | None = None  # env steps of one member a second, over the recent reports

    def update(self, row: Row) -> None:
        """Show a report: `env_step` of a member, and any of `score`, `eps`, `loss` (numbers or None)."""
        step, now = row["env_step"], time.monotonic()
        if self._time is None:
            self._time = now
        elif step > self._step and now > self._time:
            rate = (step - self._step) / (now - self._time)
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
            self._time = now
        self._step = step
        self._show([f"{name} {_number(row[name])}" for name in _SHOWN if name in row])

    def message(self, text: str) -> None:
        """Show a line of text."""
        with _QUIETLY:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def close(self, summary: Row | None = None) -> None:
        """End; with a summary (label -> number or text), show it as a table."""
        for label, value in (summary or {}).items():
            self.message(f"{label}: {_number(value)}")

    def _show(self, figures: list[str]) -> None:
        head = f"{self._step}/{self._total} ({self._percent}%)"
        self.message("  ".join([head, self._pace, *figures, self._eta]))

    @property
    def _percent(self) -> int:
        return min(100, 100 * self._step // self._total)

    @property
    def _pace(self) -> str:
        return f"{'-' if self._rate is None else _short(self._rate * self._members)} steps/s"

    @property
    def _eta(self) -> str:
        if self._rate is None:
            return "ETA -:--"
        minutes, seconds = divmod(round(max(0, self._total - self._step) / self._rate), 60)
        hours, minutes = divmod(minutes, 60)
        return f"ETA {hours}:{minutes:02d}:{seconds:02d}" if hours else f"ETA {minutes}:{seconds:02d}"


class _Terminal(Display):
    """A bar with the newest figures, redrawn in place without a thread (workers are forked beside it)."""

    def __init__(self, total: int, members: int, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(total, members, stream)
        self._console = Console(file=stream, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=self._total)
        self._drawn = float("-inf")

    def message(self, text: str) -> None:
        with _QUIETLY:
            self._console.print(text, markup=False)

    def close(self, summary: Row | None = None) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for label, value in (summary or {}).items():
            table.add_row(label, Text(_number(value)))
        with _QUIETLY:
            self._bar.stop()  # draws the newest figures
            if summary:
                self._console.print(table)

    def _show(self, figures: list[str]) -> None:
        # The most wanted first: what does not fit a narrow terminal is left out, nothing ever wraps.
        parts = [f"{self._percent:3d}%", *figures[:1], self._pace, self._eta, *figures[1:]]
        parts.append(f"{_short(self._step)}/{_short(self._total)}")
        while len(parts) > 1 and len("  ".join(parts)) > self._console.width - _MIN_BAR - 1:
            parts.pop()
        with _QUIETLY:
            self._bar.update(self._task, completed=self._step, description="  ".join(parts))
            if not self._bar.live.is_started:
                self._bar.start()
                # A run may end without any clean-up (a second Ctrl-C): the cursor must not stay hidden.
                self._console.show_cursor(True)
            if time.monotonic() - self._drawn >= _REDRAW:
                self._drawn = time.monotonic()
                self._bar.refresh()


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: float) -> str:
    """A count in four or five characters: 950, 12.3k, 1.20M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"
