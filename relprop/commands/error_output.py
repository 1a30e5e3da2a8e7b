"""How a command ends: what is printed of an error, of an interrupt and of warnings."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relprop.commands.printing import echo
from relprop.error_boundary import answered
from relprop.errors import RelpropError, RelpropWarning, UnforeseenError


def refusal(error: Exception) -> str:
    """What the user is told of an error."""

    if "torchvision::nms" in str(error):
        return f"{error}\n  then  relprop doctor  # torchvision was made for another PyTorch"
    known = isinstance(error, (RelpropError, RelpropWarning, OSError))  # a warning by --strict
    if known and not isinstance(error, UnforeseenError):
        return str(error)
    refused = error if isinstance(error, RelpropError) else answered(error, "the command")
    return f"{refused}\n        RELPROP_TRACEBACK=1 relprop ...   # shows the traceback"


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Ctrl-C ends the command in order; a second one, while it does so, at once and without a
    word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is first:
            signal.signal(signal.SIGINT, before)


@contextmanager
def deprecations_silenced() -> Iterator[None]:
    """PyTorch's log of deprecated calls is written for the authors of libraries."""
    log = logging.getLogger("torch.utils._pytree")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def warnings_as_messages() -> Iterator[None]:
    """Print relprop's own warnings as messages, without the line of code that warns."""

    shown: Any = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> None:
        if issubclass(category, RelpropWarning):
            echo(f"warning: {message}", err=True)
        else:
            shown(message, category, *place, **line)

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield
