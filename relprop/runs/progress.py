"""Progress of a long run: a bar with the remaining time on a terminal, a line now and then anywhere
else."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from relprop.views.escape import printable

EVERY = 10.0  # seconds between lines


class Progress:
    """How far ``total`` samples are. Used in a ``with``; without ``wanted`` it prints only what it
    is told to ``say``."""

    def __init__(
        self,
        total: int,
        what: str,
        *,
        wanted: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        self.total, self.what, self.wanted = total, what, wanted
        self.stream = sys.stderr if stream is None else stream
        self.done = self.shown = 0
        self.began = self.printed_at = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self.wanted and self.total and self.stream.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("left"),
                progress.TimeRemainingColumn(),
                console=Console(file=self.stream),
                speed_estimate_period=3600,
            )
            self._bar.start()
            self._task = self._bar.add_task(self.what, total=self.total)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.wanted and self.done > self.shown > 0:
            self._line()

    def advance(self, count: int) -> None:
        """``count`` more samples are done."""
        self.done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        elif self.wanted and time.monotonic() - self.printed_at >= EVERY:
            self._line()

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        text = printable(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def _line(self) -> None:
        self.printed_at, self.shown = time.monotonic(), self.done
        rate = self.done / max(self.printed_at - self.began, 1e-9)
        left = duration((self.total - self.done) / rate) if rate else "unknown time"
        self.say(f"{self.what}: {self.done} of {self.total}, {rate:.3g} samples/s, {left} left")


def duration(seconds: float) -> str:
    """``1:02:03``, or ``2:03``.

    >>> duration(3723.4), duration(123)
    ('1:02:03', '2:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
