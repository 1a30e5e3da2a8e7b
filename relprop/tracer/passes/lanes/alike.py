"""Lanes: calls of one operator that stand side by side."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten

from relprop.operations import ELEMENTWISE, Kind, Value, kind, operand
from relprop.operations.vocabulary import Written, WrittenNorm
from relprop.tracer.editing import shape_of

Lanes = tuple[fx.Node, ...]
Key = TypeVar("Key")
Made = TypeVar("Made")

#: What aligns the axes of its operands from the last one on.
ALIGNS = ELEMENTWISE | {Kind.MATMUL}
#: What is given the shape of its result.
SHAPED = (Kind.RESHAPE, Kind.EXPAND)


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


def columns(nodes: Lanes) -> tuple[list[tuple[Value, ...]], TreeSpec]:
    """Every argument of calls that are alike, in all of them, and how one call's arguments are put
    together again; without a shape that follows from the call's own. Raises ``Apart`` if they are
    not alike."""
    if not alike(nodes):
        raise Apart
    shaped = kind(nodes[0]) in SHAPED
    given = [tree_flatten((n.args[:1] if shaped else n.args, n.kwargs)) for n in nodes]
    if any(spec != given[0][1] for _, spec in given):
        raise Apart
    return list(zip(*(values for values, _ in given), strict=True)), given[0][1]


def kept_axis(node: fx.Node, dim: int) -> int | None:
    """The axis of a reshape's operand that axis ``dim`` of its result is."""
    before, after = shape_of(operand(node)), shape_of(node)
    ahead = math.prod(after[:dim])
    found = [i for i, s in enumerate(before) if s == after[dim] and math.prod(before[:i]) == ahead]
    return found[-1] if found and after[dim] > 1 else found[0] if len(found) == 1 else None


def undo(node: fx.Node, mark: fx.Node) -> None:
    """Erase what an attempt left between ``mark`` and ``node``."""
    while node.prev is not mark:
        node.graph.erase_node(node.prev)
