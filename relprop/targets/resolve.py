"""Which kind of target it is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from relprop.targets.index import Context, Start, resolve_index
from relprop.targets.tail import resolve_callable


def resolve(target: Any, context: Context) -> Start:
    """The start of one target: a callable's is traced, any other names an element of the output. Raises ``TargetError``."""
    if callable(target) and not isinstance(target, Tensor):
        return resolve_callable(target, context)
    return resolve_index(target, context)
