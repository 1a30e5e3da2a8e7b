"""Where values go: numbers pushed through moves in place of values. Labels start at 1; 0 is
anything that was not there before (padding, a constant)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, function_of, kind
from relprop.tracer.calls import template
from relprop.tracer.constants import Constants
from relprop.tracer.editing import val

LARGEST = 1 << 24
PUSHED = MOVES | {Kind.PAD, Kind.FILL, Kind.WINDOWS}


class Labels:
    """Pushes labels through the moves of one graph; constants (indices) are computed when they are
    needed, once."""

    def __init__(self, constants: Constants | None = None) -> None:
        self._constants = constants or Constants()

    def push(self, node: fx.Node, labels: dict[fx.Node, Tensor]) -> Tensor | None:
        """The labels at ``node``, given those at some of its operands; ``None`` where it is no
        move, or its indices depend on the input."""
        value = val(node)
        if kind(node) not in PUSHED or not isinstance(value, Tensor) or value.numel() > LARGEST:
            return None
        operands, rebuild = template(node)
        given = [self._operand(o, labels) for o in operands]
        if any(g is None for g in given):
            return None
        args, kwargs = rebuild(*given)
        if kind(node) is Kind.PAD:
            args, kwargs = (args[0], args[1]), {}
        try:
            pushed: Tensor = function_of(node)(*args, **kwargs)
            return pushed
        except (RuntimeError, IndexError):
            return None

    def _operand(self, node: fx.Node, labels: dict[fx.Node, Tensor]) -> Tensor | None:
        if node in labels:
            return labels[node]
        value = val(node)
        if not isinstance(value, Tensor):
            return None
        if value.is_floating_point():
            return torch.zeros(value.shape, dtype=torch.float64)
        return self.constant(node)

    def constant(self, node: fx.Node) -> Tensor | None:
        """The tensor at a node that depends on no input and no parameter, or ``None``."""
        found = self._constants.value(node)
        return found if isinstance(found, Tensor) else None


def along(shape: tuple[int, ...], axis: int) -> Tensor:
    """Labels 1, 2, ... along one axis."""
    return _numbered(shape, [size if i == axis else 1 for i, size in enumerate(shape)])


def rows(shape: tuple[int, ...], axis: int) -> Tensor:
    """One label for each row along ``axis``: all its elements have it."""
    return _numbered(shape, [size if i != axis else 1 for i, size in enumerate(shape)])


def _numbered(shape: tuple[int, ...], sizes: list[int]) -> Tensor:
    """As many labels as ``sizes`` have places, repeated along the other axes of a shape."""
    labels = torch.arange(1, math.prod(sizes) + 1, dtype=torch.float64)
    return labels.reshape(sizes).expand(shape).contiguous()
