"""What part of a graph gives for other ids than the graph's, however many: which have rows of their
own in a table, and what the rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Args, Kind, Kwargs, Operator, Value, kind, operand
from relprop.tracer.calls import Values
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, is_float, rank, shape_of, val
from relprop.tracer.passes.trials.recipes import as_before, plain
from relprop.tracer.passes.trials.subgraphs import only_ones

FAILURES = (RuntimeError, TypeError, ValueError, IndexError)


@dataclass(frozen=True)
class Extent:
    """The ids that have rows of their own; those ``beyond`` have that of the nearest."""

    first: int
    end: int
    beyond: bool = False

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.end - self.first

    @property
    def ids(self) -> Tensor:
        """The ids, in order."""
        return torch.arange(self.first, self.end)

    def around(self) -> tuple[int, int]:
        """Ids to try, from the first to the one after the last."""
        return self.first * 4, self.end + 4 * self.beyond

    def places(self, ids: Tensor) -> Tensor:
        """Their rows."""
        return ids.flatten().clamp(self.first, self.end - 1) - self.first


def _call(op: Operator, *args: object, **kwargs: object) -> Value:
    return op(*args, **{k: v for k, v in kwargs.items() if k != "device"})


def run(
    nodes: list[fx.Node],
    given: Values,
    constants: Constants,
    call: Callable[..., Value] = _call,
) -> Values:
    """The values of ``nodes``, in order, from those ``given``; or, where ``call`` makes nodes, new
    nodes for them. Those that one of them alone reads are gone."""
    known = dict(given)

    def value(node: fx.Node) -> Value:
        if node in known:
            return known[node]
        number = constants.number(node) if is_float(node) else None
        if number is None:
            return constants.value(node)
        options = {"dtype": val(node).dtype, "device": constants.device}
        return call(aten.full.default, [1] * rank(node), number, **options)

    for node in nodes:
        if node not in known:
            args, kwargs = plain(fx.node.map_arg((node.args, node.kwargs), value))
            known[node] = _again(node, args, kwargs, call)
        for i in node.all_input_nodes:
            if len(i.users) == 1 and i not in given:
                known.pop(i, None)
    return known


def _again(node: fx.Node, args: Args, kwargs: Kwargs, call: Callable[..., Value]) -> Value:
    """A call of tensors in another shape: shapes that are written out follow."""
    if kind(node) not in (Kind.RESHAPE, Kind.EXPAND):
        return call(node.target, *args, **kwargs)
    old, shape, new = shape_of(operand(node)), shape_of(node), shape_of(args[0])
    if kind(node) is Kind.EXPAND:
        sides = zip(
            shape[::-1], new[::-1] + [1] * len(shape), old[::-1] + [1] * len(shape), strict=False
        )
        sizes = [n if n != 1 or o == s else s for s, n, o in sides][::-1]
        return call(aten.expand.default, args[0], sizes)
    if not only_ones(node):
        raise ValueError("a reshape that does more")
    return call(aten.reshape.default, args[0], as_before(tuple(old), tuple(shape), new))


def largest(numbers: object) -> int:
    """The size of a number, or of the largest of several; of what is none, 0."""
    if not isinstance(numbers, (int, float, Tensor)):
        return 0
    sizes = torch.as_tensor(numbers).double().abs()
    return int(sizes[sizes.isfinite()].amax()) if bool(sizes.isfinite().any()) else 0
