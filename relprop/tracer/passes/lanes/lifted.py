"""Lanes merged the second way: each lane is a place on a new first axis, and parallel linear maps
become one."""

from __future__ import annotations

import math

import torch
from torch import fx

from relprop.operations import ELEMENTWISE, Kind, argument, is_call, kind, operand
from relprop.operations.vocabulary import WrittenNorm, grouped_linear
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    emit,
    expanded,
    is_float,
    is_live,
    is_picked,
    is_tensor,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.labels import Labels
from relprop.tracer.passes.lanes.alike import Apart, InTurn, Lanes, alike, operands
from relprop.tracer.passes.lanes.pieces import picked, pieces
from relprop.tracer.passes.lanes.same import Numbers
from relprop.tracer.passes.products.routed import row_numbers
from relprop.tracer.passes.trials.recipes import Recipe, Slot, Step

Known = dict[Lanes, "fx.Node | None"]  # lanes on a first axis of their own


ByPlace = dict[int, "fx.Node | None"]  # by argument: lanes on a first axis; ``None``: all the same
Operands = dict[int, fx.Node]  # by argument: those, or the one that is the same for all


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
    laid = lift.lane(parts)
    if laid is None:
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
        if (laid := pieces(self.at, nodes) or self._picked(nodes)) is not None:
            return laid
        if all(is_call(n, aten.cat) for n in nodes):
            laid = picked(self.at, nodes, self.labels)
        try:
            return self._alike(nodes) if laid is None else laid
        except Apart:
            if (laid := picked(self.at, nodes, self.labels)) is None:
                raise
            return laid

    def _alike(self, nodes: Lanes) -> fx.Node | None:
        if not alike(nodes):
            raise Apart
        return self._call(nodes)

    def _stacked(self, nodes: Lanes) -> fx.Node:
        shape = [1, *shape_of(nodes[0])]
        return emit(self.at, aten.cat.default, [reshaped(self.at, n, shape) for n in nodes], 0)

    def _picked(self, nodes: Lanes) -> fx.Node | None:
        """Weights that the model picks of one table by whole numbers, of all lanes at once."""
        numbers = [n for n in map(row_numbers, nodes) if n is not None]
        if len(numbers) < len(nodes) or any(val(n).dtype == torch.bool for n in numbers):
            return None
        if not all(map(is_picked, nodes)) or len({operand(n) for n in nodes}) > 1:
            return None
        return emit(self.at, aten.index.Tensor, operand(nodes[0]), [self._stacked((*numbers,))])

    def _call(self, nodes: Lanes) -> fx.Node | None:
        first = nodes[0]
        if is_call(first, aten.cat):
            return self._cat(nodes)
        tensors = [i for i, a in enumerate(first.args) if isinstance(a, fx.Node)]
        if any(_holds_tensors(a) for a in first.args):
            raise Apart
        plain = [a for i, a in enumerate(first.args) if i not in tensors]
        for n in nodes:
            others = [a for i, a in enumerate(n.args) if i not in tensors]
            if others != plain or n.kwargs != first.kwargs or len(n.args) != len(first.args):
                raise Apart
        lanes = {i: self.lane(operands(nodes, i)) for i in tensors}
        if all(lane is None for lane in lanes.values()):
            return None
        given = {i: operand(first, i) if lane is None else lane for i, lane in lanes.items()}
        return self._with_axis(first, lanes, given)

    def _with_axis(self, first: fx.Node, lanes: ByPlace, given: Operands) -> fx.Node:
        """One call of the operator on operands of which some have the lanes' axis in front."""
        what = kind(first)
        if what in ELEMENTWISE:
            return self._pointwise(first, lanes, given)
        if what is Kind.LINEAR:
            return self._linear(first, lanes, given)
        if what is Kind.MATMUL:
            sides = [self._aligned(first, lanes, given, i) for i in (0, 1)]
            return emit(self.at, first.target, *sides)
        x = given[0]
        if what is Kind.NORM:
            x = self._repeated(x) if lanes[0] is None else x
            return self._norm(first, x, lanes, given)
        if lanes[0] is None:
            raise Apart
        return self._of_one(first, x)

    def _of_one(self, first: fx.Node, x: fx.Node) -> fx.Node:
        """A call of one tensor, which has the lanes' axis in front: all other axes stand one
        behind."""
        what, rest = kind(first), arguments(first)[1:]
        if what in (Kind.SOFTMAX, Kind.LOG_SOFTMAX):
            return emit(self.at, first.target, x, rest[0] + 1)
        if what is Kind.RESHAPE:
            return reshaped(self.at, x, [self.count, *shape_of(first)])
        if what is Kind.PERMUTE:
            return permuted(self.at, x, [0, *(d + 1 for d in rest[0])])
        if what is Kind.EXPAND:
            missing = rank(first) - rank(operand(first))
            x = reshaped(self.at, x, [self.count, *[1] * missing, *shape_of(operand(first))])
            return expanded(self.at, x, [self.count, *shape_of(first)])
        if what in (Kind.SELECT, Kind.SLICE):
            return emit(self.at, first.target, x, rest[0] + 1, *rest[1:])
        if what in (Kind.TOTAL, Kind.LARGEST) and rest:
            dims = [d + 1 for d in sorted(dims_of(first))]
            return emit(self.at, first.target, x, dims, *rest[1:], **first.kwargs)
        raise Apart

    def _pointwise(self, first: fx.Node, lanes: ByPlace, given: Operands) -> fx.Node:
        args = [
            self._aligned(first, lanes, given, i) if i in given else a
            for i, a in enumerate(first.args)
        ]
        return emit(self.at, first.target, *args, **first.kwargs)

    def _aligned(self, first: fx.Node, lanes: ByPlace, given: Operands, i: int) -> fx.Node:
        """An operand with its lanes in front of as many axes as the result has."""
        x: fx.Node = given[i]
        if lanes[i] is None:
            return x
        missing = rank(first) - (rank(x) - 1)
        shape = shape_of(x)
        return reshaped(self.at, x, [shape[0], *[1] * missing, *shape[1:]])

    def _linear(self, first: fx.Node, lanes: ByPlace, given: Operands) -> fx.Node:
        """Parallel linear maps of one tensor are one; of the lanes' own, one for each group."""
        if is_call(first, grouped_linear):
            return self._grouped(first, lanes, given)
        if not is_call(first, aten.linear):
            raise Apart
        if lanes[1] is None and lanes.get(2) is None:
            return emit(self.at, first.target, given[0], *arguments(first)[1:])
        weight = self._repeated(given[1]) if lanes[1] is None else given[1]
        bias = given.get(2)
        if bias is not None and lanes.get(2) is None:
            bias = self._repeated(bias)
        outputs = shape_of(weight)[1]
        if lanes[0] is None:
            return self._of_the_same(given[0], weight, bias)
        count, *rows, inputs = shape_of(given[0])
        x = reshaped(self.at, given[0], [count, math.prod(rows), inputs])
        more = [] if bias is None else [reshaped(self.at, bias, [count, 1, outputs])]
        made = emit(self.at, grouped_linear, x, weight, *more)
        return reshaped(self.at, made, [count, *rows, outputs])

    def _grouped(self, first: fx.Node, lanes: ByPlace, given: Operands) -> fx.Node:
        """Linear maps of groups: the groups of all lanes are groups."""
        full = [self._repeated(given[i]) if lanes[i] is None else given[i] for i in given]
        groups = [reshaped(self.at, x, [-1, *shape_of(x)[2:]]) for x in full]
        made = emit(self.at, grouped_linear, *groups)
        return reshaped(self.at, made, [self.count, *shape_of(first)])

    def _of_the_same(self, x: fx.Node, weight: fx.Node, bias: fx.Node | None) -> fx.Node:
        """Several linear maps of one tensor as one, whose results are laid on a first axis."""
        count, outputs, inputs = shape_of(weight)
        weight = reshaped(self.at, weight, [count * outputs, inputs])
        more = [] if bias is None else [reshaped(self.at, bias, [count * outputs])]
        made = emit(self.at, aten.linear.default, x, weight, *more)
        shape = shape_of(made)[:-1]
        made = reshaped(self.at, made, [*shape, count, outputs])
        return permuted(self.at, made, [len(shape), *range(len(shape)), len(shape) + 1])

    def _repeated(self, x: fx.Node) -> fx.Node:
        shape = shape_of(x)
        return expanded(self.at, reshaped(self.at, x, [1, *shape]), [self.count, *shape])

    def _norm(self, first: fx.Node, x: fx.Node, lanes: ByPlace, given: Operands) -> fx.Node:
        """Norms with parameters of their own: those stand in front of what they scale."""
        if not any(lanes[i] is not None for i in given if i > 0):
            return emit(self.at, first.target, x, *arguments(first)[1:])
        norm, args = first.target, list(arguments(first))
        if is_call(first, aten.layer_norm):
            shape, eps = args[1], argument(first, "eps")
            core = Recipe(1, (Step(first.target, (Slot(0), list(shape), None, None, eps), {}),))
            norm = WrittenNorm(core, tuple(range(-len(shape), 0)), centred=True)
            places = [0, 2, 3]
        elif isinstance(norm, WrittenNorm):
            places = list(range(len(args)))
        else:
            raise Apart
        full = [
            self._aligned(first, lanes, given, i) if i in given else args[i]
            for i in places
            if i < len(args)
        ]
        return emit(self.at, norm, x, *full[1:])

    def _cat(self, nodes: Lanes) -> fx.Node | None:
        first = nodes[0]
        if any(
            arguments(n)[1] != arguments(first)[1] or len(joined(n)) != len(joined(first))
            for n in nodes
        ):
            raise Apart
        rows = list(zip(*map(joined, nodes), strict=True))
        lanes = [self.lane(r) for r in rows]
        if all(lane is None for lane in lanes):
            return None
        full = [
            self._repeated(r[0]) if lane is None else lane
            for r, lane in zip(rows, lanes, strict=True)
        ]
        return emit(self.at, aten.cat.default, full, arguments(first)[1] + 1)


def _holds_tensors(argument: object) -> bool:
    """Whether an argument is a list of tensors."""
    if not isinstance(argument, (list, tuple)):
        return False
    return any(isinstance(e, fx.Node) for e in argument)
