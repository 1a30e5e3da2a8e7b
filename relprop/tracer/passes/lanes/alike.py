"""Lanes: calls of one operator that stand side by side."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import fx

from relprop.operations import is_call, operand
from relprop.operations.vocabulary import Written, WrittenNorm
from relprop.tracer.editing import arguments, aten, emit, shape_of

Lanes = tuple[fx.Node, ...]


Key = TypeVar("Key")


Made = TypeVar("Made")


class Apart(Exception):
    """The lanes are not the same computation."""


class _Missing(Exception):
    """Something else has to be made first."""


class InTurn(Generic[Key, Made]):
    """What is made by ``make`` of others of its kind, each once, on ways of any length: who asks
    for something that is not there yet is asked again when it is."""

    def __init__(self, make: Callable[[Key], Made], made: dict[Key, Made]) -> None:
        self.make, self.made = make, made
        self._left: list[Key] = []

    def __call__(self, key: Key) -> Made:
        """What is made for ``key``."""
        if key in self.made:
            return self.made[key]
        self._left.append(key)
        if len(self._left) > 1:
            raise _Missing
        while self._left:
            here = self._left[-1]
            with contextlib.suppress(_Missing):
                self.made[here] = self.make(here)
                self._left.pop()
        return self.made[key]


def alike(nodes: Lanes) -> bool:
    """Whether all are calls of one operator with the same arguments but for tensors and shapes."""
    first = nodes[0]
    if any(n.op != "call_function" or n.target is not first.target for n in nodes):
        same = {family(n) for n in nodes}
        return len(same) == 1 and None not in same
    return True


def family(node: fx.Node) -> str | None:
    """For functions written out, what they compute."""
    if isinstance(node.target, Written):
        return repr(node.target.function)
    if isinstance(node.target, WrittenNorm):
        return repr((node.target.core, node.target.axes, node.target.centred))
    return None


def operands(nodes: Lanes, i: int) -> Lanes:
    """The i-th argument of every call."""
    return tuple(arguments(n)[i] for n in nodes)


def kept_axis(node: fx.Node, dim: int) -> int | None:
    """The axis of a reshape's operand that axis ``dim`` of its result is."""
    before, after = shape_of(operand(node)), shape_of(node)
    ahead = math.prod(after[:dim])
    found = [i for i, s in enumerate(before) if s == after[dim] and math.prod(before[:i]) == ahead]
    return found[-1] if found and after[dim] > 1 else found[0] if len(found) == 1 else None


def one_run(at: fx.Node, nodes: Lanes, dim: int) -> fx.Node | None:
    """The tensor of which the lanes are neighbouring pieces, or that part of it."""
    if not all(is_call(n, aten.slice) and arguments(n)[1] == dim for n in nodes):
        return None
    x = operand(nodes[0])
    pairs = itertools.pairwise(nodes)
    if any(operand(n) is not x or arguments(n)[4] != 1 for n in nodes):
        return None
    if any(arguments(a)[3] != arguments(b)[2] for a, b in pairs):
        return None
    first, last = arguments(nodes[0])[2], arguments(nodes[-1])[3]
    if (first, last) == (0, shape_of(x)[dim]):
        return x
    return emit(at, aten.slice.Tensor, x, dim, first, last, 1)


def undo(node: fx.Node, mark: fx.Node) -> None:
    """Erase what an attempt left between ``mark`` and ``node``."""
    while node.prev is not mark:
        node.graph.erase_node(node.prev)
