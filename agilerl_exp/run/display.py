"""What a person sees of a run: one moving line on a terminal, plain lines elsewhere, a closing table.

Must not know: how the figures are made. A display that cannot write (a closed terminal) never stops a run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol, TextIO

Row = Mapping[str, Any]

_SHOWN = ("score", "eps", "loss")
_MIN_BAR = 10  # columns
_REDRAW = 0.1  # seconds


class Display(Protocol):
    """What the loops know of a display."""

    def update(self, row: Row) -> None:
        """Show a report: `env_step` of a member, and any of `score`, `eps`, `loss` (numbers or None)."""

    def message(self, text: str) -> None:
        """Show a line of text."""

    def close(self, summary: Row | None = None) -> None:
        """End; with a summary (label -> number or text), show it as a table."""


def make_display(total_steps: int, *, members: int = 1, stream: TextIO | None = None) -> Display:
    """A display for a run.

    Args:
        total_steps: env steps of a member at the end of the run.
        members: how many members; steps/s counts the env steps of all.
        stream: where to; None: stderr.
    """
    stream = sys.stderr if stream is None else stream
    pace = _Pace(total_steps, members)
    return _Terminal(pace, stream) if stream.isatty() else _Plain(pace, stream)


class _Pace:
    """Env steps a second and the time left, over the recent reports.

    The first report is where the count starts: a resumed run has steps that nobody waited for.
    """

    def __init__(self, total: int, members: int) -> None:
        self.total, self.step = total, 0
        self._members = members
        self._time: float | None = None
        self._rate: float | None = None

    def advance(self, step: int) -> None:
        now = time.monotonic()
        if self._time is None:
            self._time = now
        elif step > self.step and now > self._time:
            rate = (step - self.step) / (now - self._time)
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
            self._time = now
        self.step = step

    @property
    def percent(self) -> int:
        return min(100, 100 * self.step // max(1, self.total))

    @property
    def rate(self) -> float | None:
        return None if self._rate is None else self._rate * self._members

    @property
    def eta(self) -> str:
        if self._rate is None:
            return "-:--"
        seconds = round(max(0, self.total - self.step) / self._rate)
        hours, minutes = seconds // 3600, seconds // 60 % 60
        return f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"


class _Plain:
    """One line a report, no control characters."""

    def __init__(self, pace: _Pace, stream: TextIO) -> None:
        self._pace, self._stream = pace, stream

    def update(self, row: Row) -> None:
        self._pace.advance(row["env_step"])
        pace = self._pace
        parts = [f"{pace.step}/{pace.total} ({pace.percent}%)", f"{_short(pace.rate)} steps/s"]
        parts += [f"{name} {_number(row[name])}" for name in _SHOWN if name in row]
        self.message("  ".join([*parts, f"ETA {pace.eta}"]))

    def message(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def close(self, summary: Row | None = None) -> None:
        for label, value in (summary or {}).items():
            self.message(f"{label}: {_number(value)}")


class _Terminal:
    """A bar with the newest figures, redrawn in place without a thread (workers are forked beside it)."""

    def __init__(self, pace: _Pace, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._pace, self._row = pace, {}  # type: _Pace, Row
        self._console = Console(file=stream, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            get_renderable=self._line,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._drawn = float("-inf")

    def update(self, row: Row) -> None:
        self._row = row
        self._pace.advance(row["env_step"])
        if not self._live.is_started:
            with suppress(OSError, ValueError):
                self._live.start()
                # A run may end without any clean-up (a second Ctrl-C): the cursor must not stay hidden.
                self._console.show_cursor(True)
        if time.monotonic() - self._drawn >= _REDRAW:
            self._draw()

    def message(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._console.print(text, markup=False)

    def close(self, summary: Row | None = None) -> None:
        if self._live.is_started:
            self._draw()
            with suppress(OSError, ValueError):
                self._live.stop()
        if summary:
            with suppress(OSError, ValueError):
                self._console.print(self._table(summary))

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        with suppress(OSError, ValueError):
            self._live.refresh()

    def _line(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        pace = self._pace
        # The most wanted first: what does not fit a narrow terminal is left out, nothing ever wraps.
        figures = [f"{name} {_number(self._row[name])}" for name in _SHOWN if name in self._row]
        parts = [f"{pace.percent:3d}%", *figures[:1], f"{_short(pace.rate)} steps/s", f"ETA {pace.eta}"]
        parts += [*figures[1:], f"{_short(pace.step)}/{_short(pace.total)}"]
        room = self._console.width - _MIN_BAR - 1
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        line = Table.grid(expand=True, padding=(0, 1, 0, 0))
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=max(1, pace.total), completed=pace.step), "  ".join(parts))
        return line

    def _table(self, summary: Row) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for label, value in summary.items():
            table.add_row(label, Text(_number(value)))
        return table


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: float | None) -> str:
    """A count in four or five characters: 950, 12.3k, 1.20M."""
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"
