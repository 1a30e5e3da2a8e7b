"""What a long call is at, on standard error or below a notebook's cell: ``method 5 of 21: gae``.
How long the rest may take is said only once something is done.

What counts (``counting``, ``told``) does not know whether anybody looks; ``showing`` says so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
#: The display of this call; ``None``: nobody looks.
SHOWN: ContextVar[Progress | None] = ContextVar("SHOWN", default=None)


@contextmanager
def undrawn() -> Iterator[None]:
    """Around an import of Rich, which draws one of Python's random numbers when it is first
    imported: that is put back."""
    before = random.getstate()
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def showing(wanted: bool) -> Iterator[None]:
    """Show what is counted inside, if it is ``wanted`` and not shown already."""
    if not wanted or SHOWN.get() is not None:
        yield
        return
    with undrawn():
        from rich import progress
        from rich.console import Console

    columns = (
        progress.TextColumn("explaining: {task.description}"),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        before = SHOWN.set(bar)
        try:
            yield
        finally:
            SHOWN.reset(before)


@contextmanager
def counting(what: str, count: int) -> Iterator[Callable[[str], None]]:
    """A function that says that the next of ``count`` begins, by its name; one alone is not
    counted."""
    bar = SHOWN.get()
    if bar is None or count < 2:
        yield lambda name: None
        return
    within = bool(bar.tasks)  # of something that is counted already
    task = bar.add_task(f"{what} 0 of {count}", total=count, left="", count="")
    began, done = time.monotonic(), -1

    def begin(name: str) -> None:
        nonlocal done
        done += 1
        said = f"{what} {min(done + 1, count)} of {count}" + (f": {name}" if name else "")
        pace = (time.monotonic() - began) / max(done, 1)
        left = f"about {pace * (count - done):.0f} s left" if 0 < done < count else ""
        bar.update(task, description=said, completed=done, left=left, refresh=True)

    try:
        yield begin
        bar.update(task, completed=count, left="", refresh=True)
    finally:
        if within:
            bar.remove_task(task)


def told(items: Iterable[T], what: str, count: int) -> Iterator[T]:
    """The items, ``count`` of them, each said when it begins."""
    with counting(what, count) as begin:
        for item in items:
            begin("")
            yield item
