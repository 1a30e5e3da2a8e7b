"""What a long call is at, on standard error or below a notebook's cell: ``capturing the model``,
``method 5 of 21: gae``. How long the rest may take is said only once something is done.

What says so (``doing``, ``counting``, ``with_progress``) does not know whether anybody looks;
``showing`` decides it.
"""

from __future__ import annotations

import importlib
import io
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")
#: After how many seconds it is shown what a call is at where nobody said whether.
PATIENCE = 2.0
#: The display of this call; ``None``: nobody looks.
SHOWN: ContextVar[Progress | None] = ContextVar("SHOWN", default=None)


@contextmanager
def showing(wanted: bool | None) -> Iterator[None]:
    """Show what is done inside, if it is ``wanted`` and not shown already; ``None``: in a terminal
    or a notebook, from ``PATIENCE`` seconds on."""
    cell = _cell()
    looks = wanted is None and (cell is not None or _is_terminal())
    if not (wanted or looks) or SHOWN.get() is not None:
        yield
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("explaining: {task.description}", markup=False),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}"),
    )
    after = PATIENCE if looks else 0.0
    if cell is None:
        screen = Console(file=cast("IO[str]", _Screen(sys.stderr)))
        bar = progress.Progress(*columns, console=screen, transient=looks)
    else:
        bar = _below(cell, columns, after)
    timer = threading.Timer(after, bar.start)
    timer.daemon = True
    before = SHOWN.set(bar)
    try:
        if after:
            timer.start()
        else:
            bar.start()
        yield
    finally:
        SHOWN.reset(before)
        timer.cancel()
        if after:
            timer.join()  # it may be starting the bar
        bar.stop()


class _Screen:
    """Standard error, on which a display that cannot be written is none: it may be closed."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            self.stream.flush()


def _is_terminal() -> bool:
    """Whether somebody looks at standard error, which may be closed, or none."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _cell() -> Any:
    """What shows things below a notebook's cell; ``None`` outside of notebooks."""
    ipython = sys.modules.get("IPython")
    if ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    return importlib.import_module("IPython.display").display


def _below(display: Any, columns: Sequence[ProgressColumn], after: float) -> Progress:
    """A bar whose refresh changes one output of a notebook's cell, ``after`` some seconds; Rich's
    own needs ipywidgets."""
    from rich.console import Console
    from rich.progress import Progress

    plain = partial(Console, force_jupyter=False, color_system=None, width=100)
    begin = time.monotonic() + after

    class Below(Progress):
        output: Any = None

        def refresh(self) -> None:
            """Write the lines anew."""
            if self.output is None and time.monotonic() < begin:
                return
            lines = io.StringIO()
            plain(file=lines).print(self.get_renderable())
            shown = {"text/plain": lines.getvalue()}
            if self.output is not None:
                self.output.update(shown, raw=True)
            elif self.tasks:
                self.output = display(shown, raw=True, display_id=True)

    return Below(*columns, console=plain(file=io.StringIO()), auto_refresh=False)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is done inside."""
    bar = SHOWN.get()
    if bar is None:
        yield
        return
    task = bar.add_task(what, total=None, left="", count="")
    bar.refresh()
    try:
        yield
    finally:
        bar.remove_task(task)


@contextmanager
def counting(what: str, count: int) -> Iterator[Callable[[str], None]]:
    """A function that says that the next of ``count`` begins, by its name; one alone is not
    counted."""
    bar = SHOWN.get()
    if bar is None or count < 2:
        yield lambda name: None
        return
    counted = (other for other in bar.tasks if other.total is not None)
    within = any(not other.finished for other in counted)  # of something that is counted already
    task = bar.add_task(f"{what} 0 of {count}", total=count, left="", count="")
    began, done = time.monotonic(), -1

    def begin(name: str) -> None:
        nonlocal done
        done += 1
        text = f"{what} {min(done + 1, count)} of {count}" + (f": {name}" if name else "")
        pace = (time.monotonic() - began) / max(done, 1)
        left = f"about {pace * (count - done):.0f} s left" if 0 < done < count else ""
        bar.update(task, description=text, completed=done, left=left, refresh=True)

    try:
        yield begin
        bar.update(task, completed=count, left="", refresh=True)
    finally:
        if within:
            bar.remove_task(task)


def with_progress(items: Iterable[T], what: str, count: int) -> Iterator[T]:
    """The items, ``count`` of them, each said when it begins."""
    with counting(what, count) as begin:
        for item in items:
            begin("")
            yield item
