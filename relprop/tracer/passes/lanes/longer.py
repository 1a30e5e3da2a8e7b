"""Lanes merged the first way: cat(f(x_1), ..., f(x_n)) = f(cat(x_1, ..., x_n)) where f treats the
positions of that axis apart; pieces may be unequal."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx
from torch.fx.node import Argument

from relprop.operations import ELEMENTWISE, Kind, is_call, kind, operand
from relprop.operations.vocabulary import WrittenNorm
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    emit,
    expanded,
    is_live,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
)
from relprop.tracer.passes.lanes.alike import (
    Apart,
    InTurn,
    Lanes,
    alike,
    kept_axis,
    one_run,
    operands,
)
from relprop.tracer.passes.lanes.same import Numbers


def longer(at: fx.Node, parts: Lanes, dim: int) -> fx.Node:
    """The lanes as one computation along a longer axis."""
    longer = _Longer(at)
    whole = longer.join(parts, dim)
    if longer.cuts is None:
        return whole
    cuts = [emit(at, aten.slice.Tensor, whole, dim, *cut) for cut in longer.cuts]
    return emit(at, aten.cat.default, cuts, dim)


class _Longer:
    """One computation along a longer axis. ``cuts``: where the lanes lie on it, if that is not one
    after another."""

    def __init__(self, at: fx.Node) -> None:
        self.at, self.numbers = at, Numbers()
        self._made = InTurn[tuple[Lanes, int], fx.Node](self._join, {})
        self.cuts: tuple[tuple[int, ...], ...] | None = None

    def join(self, nodes: Lanes, dim: int) -> fx.Node:
        """The lanes' tensors one after another along ``dim``, computed as one."""
        return self._made((nodes, dim))

    def _join(self, lanes: tuple[Lanes, int]) -> fx.Node:
        nodes, dim = lanes
        if not any(is_live(n) for n in nodes):
            return emit(self.at, aten.cat.default, list(nodes), dim)
        if (run := one_run(self.at, nodes, dim)) is not None:
            return run
        if (whole := self._shuffled(nodes, dim)) is not None:
            return whole
        if not alike(nodes) or len({rank(n) for n in nodes}) > 1:
            raise Apart
        return self._call(nodes, dim)

    def _call(self, nodes: Lanes, dim: int) -> fx.Node:
        """One call in place of the lanes' calls of one operator."""
        what, first = kind(nodes[0]), nodes[0]
        if what in ELEMENTWISE or isinstance(first.target, WrittenNorm):
            return self._pointwise(nodes, dim)
        if what is Kind.LINEAR and is_call(first, aten.linear) and dim != rank(first) - 1:
            return self._alone(nodes, dim)
        if what in (Kind.SOFTMAX, Kind.LOG_SOFTMAX) and dim != arguments(first)[1]:
            return self._alone(nodes, dim)
        if is_call(first, aten.layer_norm, aten.rms_norm):
            if dim >= rank(first) - len(arguments(first)[1]):
                raise Apart
            return self._alone(nodes, dim)
        if is_call(first, aten.cat) and arguments(first)[1] != dim:
            return self._cat(nodes, dim)
        if is_call(first, aten.sum, aten.mean):
            return self._total(nodes, dim)
        return self._move(nodes, dim)

    def _move(self, nodes: Lanes, dim: int) -> fx.Node:
        what = kind(nodes[0])
        if what is Kind.MATMUL:
            return self._product(nodes, dim)
        if what is Kind.PERMUTE:
            return self._permute(nodes, dim)
        if what is Kind.RESHAPE:
            return self._reshape(nodes, dim)
        if what is Kind.EXPAND:
            return self._expand(nodes, dim)
        if what in (Kind.SELECT, Kind.SLICE):
            return self._cut(nodes, dim)
        raise Apart

    def _alone(self, nodes: Lanes, axis: int) -> fx.Node:
        """A call whose first operand alone differs, and lies along ``axis``."""
        self._same(nodes, slice(1, None))
        first, x = nodes[0], self.join(operands(nodes, 0), axis)
        return emit(self.at, first.target, x, *arguments(first)[1:])

    def _permute(self, nodes: Lanes, dim: int) -> fx.Node:
        self._same(nodes, slice(1, None))
        order = arguments(nodes[0])[1]
        return permuted(self.at, self.join(operands(nodes, 0), order[dim]), order)

    def _shuffled(self, nodes: Lanes, dim: int) -> fx.Node | None:
        """The tensor all of whose positions the lanes are, in some order."""
        if not all(is_call(n, aten.slice) and arguments(n)[1] == dim for n in nodes):
            return None
        x, cuts = operand(nodes[0]), tuple(arguments(n)[2:5] for n in nodes)
        places = sorted(p for cut in cuts for p in range(*cut))
        whole = places == list(range(shape_of(x)[dim]))
        if any(operand(n) is not x for n in nodes) or not whole or self.cuts not in (None, cuts):
            return None
        self.cuts = cuts
        return x

    def _same(self, nodes: Lanes, which: slice) -> None:
        """The lanes' other arguments must be the same."""
        rows = zip(*(arguments(n)[which] for n in nodes), strict=True)
        if any(n.kwargs != nodes[0].kwargs for n in nodes) or not all(map(self._one, rows)):
            raise Apart

    def _one(self, given: Sequence[object]) -> bool:
        """Whether an argument is the same for all lanes."""
        tensors = [g for g in given if isinstance(g, fx.Node)]
        if len(tensors) == len(given):
            return self.numbers.same(tensors)
        return all(g == given[0] for g in given)

    def _pointwise(self, nodes: Lanes, dim: int) -> fx.Node:
        first = nodes[0]
        args = [self._operand(nodes, i, dim) for i in range(len(first.args))]
        if any(n.kwargs != first.kwargs for n in nodes):
            raise Apart
        return emit(self.at, first.target, *args, **first.kwargs)

    def _operand(self, nodes: Lanes, i: int, dim: int) -> Argument:
        """An argument of pointwise calls as one: what is no tensor must be the same for all."""
        given = operands(nodes, i)
        if not isinstance(given[0], fx.Node):
            if any(g != given[0] for g in given):
                raise Apart
            return given[0]
        if shape_of(nodes[0])[dim] == 1 and self._one(given):
            return given[0]
        return self._side(nodes, given, dim)

    def _side(self, nodes: Lanes, given: Lanes, dim: int) -> fx.Node:
        """Operands that lie along the axis are joined, those that are repeated along it must be
        one."""
        along = dim - (rank(nodes[0]) - rank(given[0]))
        if along >= 0 and all(
            shape_of(g)[along] == shape_of(n)[dim] for g, n in zip(given, nodes, strict=True)
        ):
            return self.join(given, along)
        if self._one(given):
            return given[0]
        raise Apart

    def _product(self, nodes: Lanes, dim: int) -> fx.Node:
        first, last = nodes[0], rank(nodes[0]) - 1
        left, right = operands(nodes, 0), operands(nodes, 1)
        if dim == last - 1 and self._one(right):
            left_axis = rank(left[0]) - 2
            return emit(self.at, first.target, self.join(left, left_axis), right[0])
        if dim == last and self._one(left):
            return emit(self.at, first.target, left[0], self.join(right, rank(right[0]) - 1))
        if dim >= last - 1:
            raise Apart
        sides = [self._side(nodes, side, dim) for side in (left, right)]
        return emit(self.at, first.target, *sides)

    def _reshape(self, nodes: Lanes, dim: int) -> fx.Node:
        """A reshape that leaves the axis alone, as many elements before it as after."""
        axes = {kept_axis(n, dim) for n in nodes}
        if len(axes) > 1 or None in axes:
            raise Apart
        axis = axes.pop()
        assert axis is not None
        shape = shape_of(nodes[0])
        shape[dim] = sum(shape_of(n)[dim] for n in nodes)
        return reshaped(self.at, self.join(operands(nodes, 0), axis), shape)

    def _expand(self, nodes: Lanes, dim: int) -> fx.Node:
        shape = shape_of(nodes[0])
        shape[dim] = sum(shape_of(n)[dim] for n in nodes)
        return expanded(self.at, self._side(nodes, operands(nodes, 0), dim), shape)

    def _cut(self, nodes: Lanes, dim: int) -> fx.Node:
        """A cut along another axis."""
        cut = arguments(nodes[0])[1]
        if kind(nodes[0]) is Kind.SLICE and cut == dim:
            raise Apart
        return self._alone(nodes, dim + (kind(nodes[0]) is Kind.SELECT and cut <= dim))

    def _cat(self, nodes: Lanes, dim: int) -> fx.Node:
        counts = {len(joined(n)) for n in nodes}
        if len(counts) > 1:
            raise Apart
        rows = zip(*map(joined, nodes), strict=True)
        return emit(
            self.at, aten.cat.default, [self.join(r, dim) for r in rows], arguments(nodes[0])[1]
        )

    def _total(self, nodes: Lanes, dim: int) -> fx.Node:
        first = nodes[0]
        self._same(nodes, slice(1, None))
        dims, keep = dims_of(first), shape_of(first)
        wide = rank(operand(first))
        kept = len(keep) == wide
        left = [i for i in range(wide) if kept or i not in dims]
        if left[dim] in dims:
            raise Apart
        inner = self.join(operands(nodes, 0), left[dim])
        return emit(self.at, first.target, inner, *arguments(first)[1:], **first.kwargs)
