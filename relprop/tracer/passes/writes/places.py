"""What is written through a view, put back into the tensor that it is a view of."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import Kind, argument, kind
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.facts import refusal
from relprop.tracer.passes.spelling.slices import bounds_of, extent
from relprop.tracer.passes.spelling.views import order_of


def put_back(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    """``whole`` with ``part`` in the place that ``view`` shows. Raises ``CaptureError`` for views
    that are no cut and no other order of its numbers."""
    what, shape = kind(view), shape_of(whole)
    if what is Kind.RESHAPE or (what is Kind.EXPAND and val(view).numel() == math.prod(shape)):
        return reshaped(at, part, shape)
    if what is Kind.PERMUTE:
        order = order_of(view)
        return permuted(at, part, [order.index(i) for i in range(len(order))])
    if what is Kind.OUTPUT:
        dim, start, length = extent(view)
        return put(at, whole, part, dim, start, start + (length or 1))
    if what is Kind.SELECT and isinstance(argument(view, "index"), int):
        dim, index = argument(view, "dim") % len(shape), argument(view, "index")
        return put(at, whole, part, dim, index % shape[dim], index % shape[dim] + 1)
    if what is Kind.SLICE and not any(isinstance(a, fx.Node) for a in arguments(view)[1:]):
        dim = argument(view, "dim") % len(shape)
        return put_slice(at, whole, part, dim, range(*bounds_of(view, shape[dim])))
    fact = f"the model writes in place into a view by {view.target}, which is not followed"
    raise refusal(view, fact)


def put(at: fx.Node, whole: fx.Node, part: fx.Node, dim: int, start: int, end: int) -> fx.Node:
    """``whole`` with ``part`` in positions ``start`` to ``end`` of an axis: one after another.

    Not by PyTorch's ``select_scatter``, whose derivative under ``vmap`` (torch 2.15) counts the
    source once for each element of the axis.
    """
    shape = shape_of(whole)
    shape[dim] = end - start
    wide = expanded(at, part, shape) if rank(part) == len(shape) else reshaped(at, part, shape)
    pieces = [wide]
    if start:
        pieces.insert(0, emit(at, aten.slice.Tensor, whole, dim, 0, start, 1))
    if end < shape_of(whole)[dim]:
        pieces.append(emit(at, aten.slice.Tensor, whole, dim, end, shape_of(whole)[dim], 1))
    return wide if len(pieces) == 1 else emit(at, aten.cat.default, pieces, dim)


def put_slice(at: fx.Node, whole: fx.Node, part: fx.Node, dim: int, places: range) -> fx.Node:
    """``whole`` with ``part`` in evenly spaced ``places`` of an axis. Where they come round evenly
    (all even ones), they are one position of an axis as long as their step."""
    shape, start, step = shape_of(whole), places.start, places.step
    if step == 1:
        return put(at, whole, part, dim, start, max(start, places.stop))
    count, rest = divmod(shape[dim], step)
    if rest == 0 and start < step and shape_of(part)[dim] == count:
        rows = reshaped(at, whole, [*shape[:dim], count, step, *shape[dim + 1 :]])
        one = reshaped(at, part, [*shape[:dim], count, 1, *shape[dim + 1 :]])
        return reshaped(at, put(at, rows, one, dim + 1, start, start + 1), shape)
    bounds = (start, places.stop, step)
    return emit(at, aten.slice_scatter.default, whole, part, dim, *bounds)
