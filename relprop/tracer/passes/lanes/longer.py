"""Lanes merged the first way: cat(f(x_1), ..., f(x_n)) = f(cat(x_1, ..., x_n)) where f treats the
positions of that axis apart; pieces may be unequal."""

from __future__ import annotations

from torch import fx
from torch.utils._pytree import tree_unflatten

from relprop.operations import Kind, Value, kind
from relprop.tracer.editing import arguments, aten, emit, is_live, shape_of
from relprop.tracer.labels import Labels
from relprop.tracer.passes.lanes.alike import ALIGNS, SHAPED, Apart, InTurn, Lanes, columns
from relprop.tracer.passes.lanes.pieces import one_after_another
from relprop.tracer.passes.lanes.same import Numbers
from relprop.tracer.passes.lookups.axes import labels_of


def longer(at: fx.Node, parts: Lanes, dim: int, labels: Labels) -> fx.Node:
    """The lanes as one computation along a longer axis."""
    return _Longer(at, labels).join(parts, dim)


class _Longer:
    """One computation along a longer axis."""

    def __init__(self, at: fx.Node, labels: Labels) -> None:
        self.at, self.labels, self.numbers = at, labels, Numbers()
        self._made = InTurn[tuple[Lanes, int], fx.Node](self._join, {})

    def join(self, nodes: Lanes, dim: int) -> fx.Node:
        """The lanes' tensors one after another along ``dim``, computed as one."""
        return self._made((nodes, dim))

    def _join(self, lanes: tuple[Lanes, int]) -> fx.Node:
        nodes, dim = lanes
        if not any(is_live(n) for n in nodes):
            return emit(self.at, aten.cat.default, list(nodes), dim)
        if (whole := one_after_another(self.at, nodes, dim, self.labels)) is not None:
            return whole
        return self._call(nodes, dim)

    def _call(self, nodes: Lanes, dim: int) -> fx.Node:
        """One call in place of the lanes' calls of one operator."""
        first, shape, (given, spec) = nodes[0], _long_shape(nodes, dim), columns(nodes)
        ways = {
            _along(n, values, dim)
            for n, values in zip(nodes, zip(*given, strict=True), strict=True)
        }
        if len(ways) > 1 or (kind(first) is Kind.RESHAPE and None in next(iter(ways))):
            raise Apart
        pairs = zip(given, ways.pop(), strict=True)
        made = [self._argument(first, values, axis) for values, axis in pairs]
        args, kwargs = tree_unflatten(made, spec)
        more = [shape] if kind(first) in SHAPED else []
        new = emit(self.at, first.target, *args, *more, **kwargs)
        if shape_of(new) != shape:
            raise Apart
        return new

    def _argument(self, first: fx.Node, given: tuple[Value, ...], axis: int | None) -> Value:
        """An argument of all lanes as one: joined along an axis, or the same for all."""
        nodes = all(isinstance(g, fx.Node) for g in given)
        same = self.numbers.same(given) if nodes else all(g == given[0] for g in given)
        if axis is not None:
            repeated = same and shape_of(given[0])[axis] == 1 and kind(first) in ALIGNS
            return given[0] if repeated else self.join(given, axis)
        if not same:
            raise Apart
        return given[0]


def _long_shape(nodes: Lanes, dim: int) -> list[int]:
    """The shape of lanes one after another."""
    shapes = [shape_of(n) for n in nodes]
    size = sum(s.pop(dim) for s in shapes if len(s) > dim)
    if any(s != shapes[0] for s in shapes):
        raise Apart
    return [*shapes[0][:dim], size, *shapes[0][dim:]]


def _along(node: fx.Node, given: tuple[Value, ...], dim: int) -> tuple[int | None, ...]:
    """By argument, the axis that becomes axis ``dim`` of a call's result, each position of it by
    itself."""
    softmax = kind(node) in (Kind.SOFTMAX, Kind.LOG_SOFTMAX)
    if softmax and arguments(node)[1] == dim:
        return (None,) * len(given)
    axes = {x: axis for x, axis, out in labels_of(node, least=1) if out == dim}
    return tuple(axes.get(g) if isinstance(g, fx.Node) else None for g in given)
