"""The steps of a command on a terminal: which one it is at, for how long, and how long the rest may take. Anywhere else nothing is shown."""

from __future__ import annotations

import sys
from typing import Any, TextIO


class Steps:
    """``with Steps(n) as steps: steps.next("loading"); ...``. The remaining time is that of the steps left, at the pace of those done."""

    def __init__(self, count: int, *, stream: TextIO | None = None) -> None:
        self.count = count
        self.stream = sys.stderr if stream is None else stream
        self.names: list[str] = []
        self._bar: Any = None

    def __enter__(self) -> Steps:
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TextColumn("steps,"), TimeElapsedColumn(), TextColumn("so far,"),
                TimeRemainingColumn(), TextColumn("left"), console=Console(file=self.stream), transient=True, speed_estimate_period=3600,
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
        if self._bar is not None:
            self._bar.update(self._task, description=name, completed=len(self.names) - 1)
