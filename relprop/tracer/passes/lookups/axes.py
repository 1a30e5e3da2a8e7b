"""The axes along which a call treats all positions alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from relprop.operations import ELEMENTWISE, Kind, argument, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, dims_of, rank, shape_of
from relprop.tracer.passes.lanes.alike import kept_axis

#: An operand, an axis of it along which a call treats all positions alike, and the axis of the
#: result that it becomes; below 0 if it is summed.
Label = tuple[fx.Node, int, int]


def labels_of(node: fx.Node, least: int = 2) -> Iterator[Label]:
    """Along which axes of its operands, that are so long at ``least``, a call treats all positions
    alike."""
    if not node.args:
        return
    what, wide = kind(node), rank(node)
    if what in ELEMENTWISE and not is_call(node, aten.prelu):
        yield from _aligned(node, node.all_input_nodes, wide, least=least)
    elif is_call(node, aten.cat):
        every, dim = _aligned(node, node.all_input_nodes, wide, least=least), arguments(node)[1]
        yield from (t for t in every if t[2] != dim)
    elif is_call(node, aten.matmul):
        yield from _of_product(node, least)
    elif what in (Kind.TOTAL, Kind.LARGEST, Kind.STATISTIC) and not is_call(node, aten.norm):
        yield from _of_reduction(node)
    else:
        yield from _of_one(node, arguments(node)[0], least)


def _of_one(node: fx.Node, x: fx.Node, least: int) -> Iterator[Label]:
    """The labels of a call that treats alike the positions of its first operand alone."""
    what, wide = kind(node), rank(node)
    if what in (Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.EXPAND):
        yield from _aligned(node, [x], wide, least=least)
    elif is_call(node, aten.linear):
        yield from _aligned(node, [x], wide - 1, rank(x), least)
    elif is_call(node, aten.layer_norm, aten.rms_norm):
        yield from _aligned(node, [x], wide - len(argument(node, "normalized_shape")), least=least)
    elif what is Kind.PERMUTE:
        yield from ((x, d, i) for i, d in enumerate(arguments(node)[1]))
    elif what is Kind.RESHAPE:
        kept = ((kept_axis(node, i), i) for i in range(wide) if shape_of(node)[i] >= least)
        yield from ((x, d, i) for d, i in kept if d is not None)
    elif is_call(node, aten.select, aten.slice):
        dim, gone = argument(node, "dim"), is_call(node, aten.select)
        others = (d for d in range(rank(x)) if d != dim)
        yield from ((x, d, d - (gone and d > dim)) for d in others)


def _aligned(
    node: fx.Node, operands: Sequence[fx.Node], below: int, wide: int = 0, least: int = 2
) -> Iterator[Label]:
    """Axes as broadcasting aligns them, of the result's those ``below`` one."""
    for x in operands:
        ahead = (wide or rank(node)) - rank(x)
        for axis, size in enumerate(shape_of(x)):
            at = axis + ahead
            if 0 <= at < below and size >= least and shape_of(node)[at] == size:
                yield x, axis, at


def _of_product(node: fx.Node, least: int) -> Iterator[Label]:
    a, b = arguments(node)[:2]
    if a is b or min(rank(a), rank(b)) < 2:
        return
    last = rank(node) - 1
    for x, own, out in ((a, -2, last - 1), (b, -1, last)):
        yield from _aligned(node, [x], last - 1, least=least)
        yield x, rank(x) + own, out
    yield a, rank(a) - 1, -1
    yield b, rank(b) - 2, -1


def _of_reduction(node: fx.Node) -> Iterator[Label]:
    x, gone, keeps = operand(node), dims_of(node), bool(argument(node, "keepdim"))
    for d in range(rank(x)):
        out = d if keeps else d - sum(g < d for g in gone)
        yield x, d, -1 - d if d in gone else out
