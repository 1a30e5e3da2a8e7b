"""What is written through a view, put back into the tensor that it is a view of."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from relprop.errors import CaptureError
from relprop.operations import Kind, argument, is_call, kind
from relprop.tracer.editing import (
    applied,
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
from relprop.tracer.passes.spelling.slices import extent
from relprop.tracer.passes.spelling.views import order_of


def put_back(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    """``whole`` with ``part`` in the place that ``view`` shows."""
    what, shape = kind(view), shape_of(whole)
    if what is Kind.RESHAPE or (what is Kind.EXPAND and val(view).numel() == math.prod(shape)):
        return reshaped(at, part, shape)
    if what is Kind.COMPLEX:
        return _complex_again(at, whole, part, view)
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
        return _put_slice(at, whole, part, view)
    return _put_by_index(at, whole, part, view)


def _complex_again(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    """A complex tensor whose real or imaginary part, or both as real numbers, are ``part``; or real
    numbers read as a complex one."""
    if is_call(view, aten.view_as_complex):
        return emit(at, aten.view_as_real.default, part)
    if is_call(view, aten.conj, aten._conj):
        return emit(at, aten.conj_physical.default, part)
    if is_call(view, aten.view_as_real):
        sides = [emit(at, aten.select.int, part, rank(part) - 1, i) for i in (0, 1)]
    elif not val(whole).is_complex():
        return part
    elif is_call(view, aten.real):
        sides = [part, emit(at, aten.imag.default, whole)]
    else:
        sides = [emit(at, aten.real.default, whole), part]
    return emit(at, aten.complex.default, *sides)


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


def _put_slice(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    dim, shape = argument(view, "dim") % rank(whole), shape_of(whole)
    if argument(view, "length") is not None:  # narrow
        start = argument(view, "start")
        start += shape[dim] if start < 0 else 0
        return put(at, whole, part, dim, start, start + argument(view, "length"))
    bounds = slice(*(argument(view, n) for n in ("start", "end", "step")))
    return put_slice(at, whole, part, dim, range(*bounds.indices(shape[dim])))


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


def _put_by_index(at: fx.Node, whole: fx.Node, part: fx.Node, view: fx.Node) -> fx.Node:
    """Through any other view: the places it shows, numbered. Raises ``CaptureError`` where one
    place is shown twice, or which are shown depends on the input."""
    shape, inputs = shape_of(whole), [a for a in arguments(view)[1:] if isinstance(a, fx.Node)]
    count = math.prod(shape)
    if inputs or not isinstance(val(part), Tensor):
        raise _no_inverse(view, "which places it shows depends on values")
    numbers = torch.arange(count).reshape(shape)
    shown = applied(view, numbers)
    if len(shown.unique()) < shown.numel():
        raise _no_inverse(view, "it shows one place several times")
    flat = emit(at, aten.arange.default, count, dtype=torch.long)
    where = emit(at, view.target, reshaped(at, flat, shape), *arguments(view)[1:], **view.kwargs)
    values = reshaped(at, expanded(at, part, shape_of(where)), [-1])
    made = emit(
        at,
        aten.index_put.default,
        reshaped(at, whole, [count]),
        [reshaped(at, where, [-1])],
        values,
    )
    return reshaped(at, made, shape)


def _no_inverse(view: fx.Node, why: str) -> CaptureError:
    fact = f"the model writes in place into a view by {view.target}, which has no inverse: {why}"
    return refusal(view, fact)
