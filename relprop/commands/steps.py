"""The steps of a command on a terminal: which one it is at, for how long, and how long the rest may
take. Anywhere else nothing is shown."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from relprop.progress import SHOWN

if TYPE_CHECKING:
    from rich.progress import Progress


class Steps:
    """``with Steps(n) as steps: steps.next("loading"); ...``. The remaining time is that of the
    steps left, at the pace of those done."""

    def __init__(self, count: int, *, stream: TextIO | None = None) -> None:
        self.count = count
        self.stream = sys.stderr if stream is None else stream
        self.names: list[str] = []
        self.began = self.changed = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Steps:
        if self.stream.isatty():
            self._bar = _bar(self)
            self._task = self._bar.add_task("", total=self.count, count="")
            self._bar.start()
            self._before = SHOWN.set(self._bar)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            SHOWN.reset(self._before)
            self._bar.stop()

    def next(self, name: str) -> None:
        """The step before, if there was one, is done; ``name`` begins."""
        self.names.append(name)
        self.changed = time.monotonic()
        if self._bar is not None:
            done = f"{len(self.names) - 1}/{self.count} steps"
            self._bar.update(self._task, description=name, count=done)

    def left(self, now: float) -> float | None:
        """Seconds that the rest may take at time ``now`` (``time.monotonic``); ``None`` before a
        step is done, and when one takes longer than those before."""
        done = len(self.names) - 1
        if done < 1:
            return None
        pace = (self.changed - self.began) / done
        seconds = pace * (self.count - done) - (now - self.changed)
        return seconds if seconds > 0 else None


def _bar(steps: Steps) -> Progress:
    """The line that is drawn on a terminal."""
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Left(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            if "left" in task.fields:  # of something that is counted within a step
                return Text(task.fields["left"])
            seconds = steps.left(time.monotonic())
            if seconds is None:
                return Text("")
            return Text(f"about {int(seconds) // 60}:{int(seconds) % 60:02d} left")

    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.TextColumn("{task.fields[count]}"),
        progress.TimeElapsedColumn(),
        Left(),
        console=Console(file=steps.stream),
        transient=True,
    )
