"""The steps of a command on a terminal: which one it is at, for how long, and how long the rest may
take. Anywhere else nothing is shown."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO


class Steps:
    """``with Steps(n) as steps: steps.next("loading"); ...``. The remaining time is that of the
    steps left, at the pace of those done."""

    def __init__(self, count: int, *, stream: TextIO | None = None) -> None:
        self.count = count
        self.stream = sys.stderr if stream is None else stream
        self.names: list[str] = []
        self.began = self.changed = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Steps:
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import (
                MofNCompleteColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                MofNCompleteColumn(),
                TextColumn("steps"),
                TimeElapsedColumn(),
                _left_column(self),
                console=Console(file=self.stream),
                transient=True,
            )
            self._task = self._bar.add_task("", total=self.count)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def next(self, name: str) -> None:
        """The step before, if there was one, is done; ``name`` begins."""
        self.names.append(name)
        self.changed = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, description=name, completed=len(self.names) - 1)

    def left(self, now: float) -> float | None:
        """Seconds that the rest may take at time ``now`` (``time.monotonic``); ``None`` before a
        step is done, and when one takes longer than those before."""
        done = len(self.names) - 1
        if done < 1:
            return None
        pace = (self.changed - self.began) / done
        seconds = pace * (self.count - done) - (now - self.changed)
        return seconds if seconds > 0 else None


def _left_column(steps: Steps) -> Any:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Left(ProgressColumn):
        def render(self, task: Task) -> Text:
            seconds = steps.left(time.monotonic())
            return Text(
                ""
                if seconds is None
                else f"about {int(seconds) // 60}:{int(seconds) % 60:02d} left"
            )

    return Left()
