"""What was changed for a while, put back to the last step, also where the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

Steps = list[Callable[[], object]]


@contextmanager
def cleanup_steps() -> Iterator[Steps]:
    """A list for steps that are taken at the end, the last first. A step is added before the change
    that it takes back, and may be taken twice: an interrupt (Ctrl-C) between two of them is raised
    when all of them have been."""
    steps = Steps()
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


def replaced(steps: Steps, owner: object, name: str, new: object) -> None:
    """Another attribute, until the ``steps`` are taken."""
    steps.append(partial(setattr, owner, name, getattr(owner, name)))
    setattr(owner, name, new)
