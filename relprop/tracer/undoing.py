"""What was changed for a while, put back to the last step, also where the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def undone() -> Iterator[list[Callable[[], object]]]:
    """A list for steps that are taken at the end, the last first. A step is added before the change
    that it takes back, and may be taken twice: an interrupt (Ctrl-C) between two of them is raised
    when all of them have been."""
    steps = list[Callable[[], object]]()
    try:
        yield steps
    finally:
        interrupted = None
        while steps:
            try:
                while steps:
                    steps[-1]()
                    steps.pop()
            except KeyboardInterrupt as interrupt:
                interrupted = interrupt
        if interrupted is not None:
            raise interrupted
