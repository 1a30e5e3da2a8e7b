"""What errors and warnings say, without what differs from run to run."""

from __future__ import annotations

import re

from relprop.errors import RelpropError, RelpropWarning


def sentence(error: BaseException | str, whole: bool = False) -> str:
    """What an error or a warning says: its class and its first line, or the ``whole``. Of PyTorch's
    own, which is of its version, the class alone; addresses are any."""
    name = type(error).__name__
    if not isinstance(error, (RelpropError, RelpropWarning)):
        return f"raw {name}"
    text = str(error) if whole else str(error).splitlines()[0]
    return _without_rounding(f"{name}: {text}")


def _without_rounding(text: str) -> str:
    """A text without addresses, PyTorch's own words, and small numbers that rounding made."""
    text = re.sub(r" at 0x[0-9a-f]+|(?<=RuntimeError: ).*", "", text)
    return re.sub(r"\d(?:\.\d+)?e-(\d+)", "1e-…", text)
