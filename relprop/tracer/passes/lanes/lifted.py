"""Lanes merged the second way: each lane is a place on a new first axis, and parallel linear maps
become one."""

from __future__ import annotations

import math

from torch import fx
from torch.utils._pytree import tree_unflatten

from relprop.operations import Kind, Value, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    emit,
    expanded,
    is_float,
    is_live,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    tensor_inputs,
)
from relprop.tracer.labels import Labels
from relprop.tracer.passes.lanes.alike import ALIGNS, Apart, InTurn, Lanes, columns
from relprop.tracer.passes.lanes.pieces import on_first_axis
from relprop.tracer.passes.lanes.same import Numbers

Known = dict[Lanes, "fx.Node | None"]  # lanes on a first axis of their own

Arguments = list["fx.Node | None"]  # of a call, each with the lanes' axis if they differ in it


def lifted(at: fx.Node, parts: Lanes, dim: int, known: Known, labels: Labels) -> fx.Node:
    """The lanes on a first axis of their own, laid down along ``dim``. ``known``: those that were
    laid so before, to which these are added."""
    laid = on_an_axis(at, parts, known, labels)
    order = [*range(1, dim + 1), 0, *range(dim + 1, rank(parts[0]) + 1)]
    shape = shape_of(parts[0])
    shape[dim] *= len(parts)
    return reshaped(at, permuted(at, laid, order), shape)


def on_an_axis(at: fx.Node, parts: Lanes, known: Known, labels: Labels) -> fx.Node:
    """The lanes on a first axis of their own."""
    if len({tuple(shape_of(p)) for p in parts}) > 1:
        raise Apart
    lift = _Lift(at, len(parts), known, labels)
    if (laid := lift.lane(parts)) is None:
        raise Apart
    known |= lift.lane.made
    return laid


class _Lift:
    """One computation with a first axis of ``count`` lanes."""

    def __init__(self, at: fx.Node, count: int, known: Known, labels: Labels) -> None:
        self.at, self.count, self.numbers, self.labels = at, count, Numbers(), labels
        self.lane = InTurn(self._lane, dict(known))

    def _lane(self, nodes: Lanes) -> fx.Node | None:
        """The lanes' tensors on a first axis; ``None``: they are all the same tensor, which has no
        such axis."""
        if self.numbers.same(nodes):
            return None
        if not all(map(is_tensor, nodes)) or len({tuple(shape_of(n)) for n in nodes}) > 1:
            raise Apart
        if not any(is_live(n) and is_float(n) for n in nodes):
            return self._stacked(nodes)  # no relevance passes, however each of them was made
        laid = on_first_axis(self.at, nodes, self.labels)
        return self._call(nodes) if laid is None else laid

    def _stacked(self, nodes: Lanes) -> fx.Node:
        shape = [1, *shape_of(nodes[0])]
        return emit(self.at, aten.cat.default, [reshaped(self.at, n, shape) for n in nodes], 0)

    def _call(self, nodes: Lanes) -> fx.Node | None:
        """One call of the operator on operands of which some have the lanes' axis in front."""
        first, (given, spec) = nodes[0], columns(nodes)
        lanes = [self._argument(values) for values in given]
        if all(lane is None for lane in lanes):
            return None
        if is_call(first, aten.cat):
            return emit(
                self.at, aten.cat.default, self._full(first, lanes), arguments(first)[1] + 1
            )
        if is_call(first, aten.linear):
            return self._linear(first, lanes)
        if kind(first) in ALIGNS:
            pairs = zip(given, lanes, strict=True)
            made = [v[0] if lane is None else self._aligned(first, lane) for v, lane in pairs]
            args, kwargs = tree_unflatten(made, spec)
            return emit(self.at, first.target, *args, **kwargs)
        if lanes[0] is None or any(lane is not None for lane in lanes[1:]):
            raise Apart
        return self._of_one(first, lanes[0])

    def _argument(self, values: tuple[Value, ...]) -> fx.Node | None:
        """The lanes of an argument on a first axis; ``None``: it is the same for all of them."""
        if all(isinstance(v, fx.Node) for v in values):
            return self.lane(values)
        if any(v != values[0] for v in values):
            raise Apart
        return None

    def _full(self, first: fx.Node, lanes: Arguments) -> list[fx.Node]:
        """A call's operands, each with the lanes' axis."""
        pairs = zip(tensor_inputs(first), lanes, strict=False)
        return [self._repeated(x) if lane is None else lane for x, lane in pairs]

    def _repeated(self, x: fx.Node) -> fx.Node:
        shape = shape_of(x)
        return expanded(self.at, reshaped(self.at, x, [1, *shape]), [self.count, *shape])

    def _aligned(self, first: fx.Node, lane: fx.Node) -> fx.Node:
        """An operand with its lanes in front of as many axes as the result has."""
        count, *shape = shape_of(lane)
        return reshaped(self.at, lane, [count, *[1] * (rank(first) - len(shape)), *shape])

    def _of_one(self, first: fx.Node, x: fx.Node) -> fx.Node:
        """A call of one tensor, which has the lanes' axis in front: all other axes stand one
        behind."""
        what, rest = kind(first), arguments(first)[1:]
        if what is Kind.NORM:
            return emit(self.at, first.target, x, *rest)
        if what is Kind.RESHAPE:
            return reshaped(self.at, x, [self.count, *shape_of(first)])
        if what is Kind.PERMUTE:
            return permuted(self.at, x, [0, *(d + 1 for d in rest[0])])
        if what is Kind.EXPAND:
            return expanded(self.at, self._aligned(first, x), [self.count, *shape_of(first)])
        if what in (Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.SELECT, Kind.SLICE):
            return emit(self.at, first.target, x, rest[0] + 1, *rest[1:])
        if what is Kind.TOTAL and rest:
            dims = [d + 1 for d in sorted(dims_of(first))]
            return emit(self.at, first.target, x, dims, *rest[1:], **first.kwargs)
        raise Apart

    def _linear(self, first: fx.Node, lanes: Arguments) -> fx.Node:
        """Parallel linear maps of one tensor are one; of the lanes' own, one for each group."""
        if all(lane is None for lane in lanes[1:]):
            return emit(self.at, first.target, lanes[0], *arguments(first)[1:])
        x, weight, *biases = self._full(first, lanes)
        if lanes[0] is None:
            return self._of_the_same(operand(first), weight, biases)
        count, *rows, inputs = shape_of(x)
        x = reshaped(self.at, x, [count, math.prod(rows), inputs])
        biases = [reshaped(self.at, b, [count, 1, shape_of(b)[-1]]) for b in biases]
        made = emit(self.at, grouped_linear, x, weight, *biases)
        return reshaped(self.at, made, [count, *shape_of(first)])

    def _of_the_same(self, x: fx.Node, weight: fx.Node, biases: list[fx.Node]) -> fx.Node:
        """Several linear maps of one tensor as one, whose results are laid on a first axis."""
        count, outputs, inputs = shape_of(weight)
        weight = reshaped(self.at, weight, [count * outputs, inputs])
        biases = [reshaped(self.at, b, [count * outputs]) for b in biases]
        made = emit(self.at, aten.linear.default, x, weight, *biases)
        shape = shape_of(made)[:-1]
        made = reshaped(self.at, made, [*shape, count, outputs])
        return permuted(self.at, made, [len(shape), *range(len(shape)), len(shape) + 1])
