"""Sums by an index that brings no two numbers to one place: what is there is read, added to, and
written back."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    before_reshapes,
    emit,
    is_number,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.spelling.picking import row_index
from relprop.tracer.passes.sums.terms import added, is_top, terms_of
from relprop.tracer.passes.writes.by_index import accumulated
from relprop.tracer.passes.writes.masks import is_column
from relprop.tracer.softmax_rows import after_reshape


def write_distinct(graph: fx.Graph, constants: Constants) -> None:
    """x plus a sum by index, or plus what is written onto zeros, as a write into x; where a mask
    says what is read, added to and written back, as x plus a sum."""
    for node in list(graph.nodes):
        if not node._erased and (new := _written_back(node, constants)) is not None:
            swap(node, new)
    for node in list(graph.nodes):
        if is_call(node, aten.index_put) and not argument(node, "accumulate"):
            _add_there(node)
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _write_into(node)


def _written_back(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A sum by index as a write."""
    if is_call(node, aten.scatter_add):
        base, dim, index, source = arguments(node)[:4]
        once = shape_of(index) == shape_of(source) and _distinct(index, dim % rank(node), constants)
        return _along(node, base, source, dim, index) if once else None
    if is_call(node, aten.index_add) and is_number(argument(node, "alpha") or 1, 1):
        base, dim, index, source = arguments(node)[:4]
        once = rank(index) == 1 and _distinct(index, 0, constants)
        return _at(node, base, source, [*[None] * (dim % rank(node)), index]) if once else None
    if is_call(node, aten.index_put) and argument(node, "accumulate"):
        base, indices, source = arguments(node)[:3]
        return _at(node, base, source, indices) if _are_distinct(indices, constants) else None
    return None


def _at(node: fx.Node, base: fx.Node, source: fx.Node, indices: list[fx.Node | None]) -> fx.Node:
    """``base`` with ``source`` added to what is at some places, by an index of each axis."""
    if not is_number(base, 0):
        source = emit(node, aten.add.Tensor, emit(node, aten.index.Tensor, base, indices), source)
    return emit(node, aten.index_put.default, base, indices, source)


def _along(node: fx.Node, base: fx.Node, source: fx.Node, dim: int, index: fx.Node) -> fx.Node:
    """The same by one index along an axis, as ``scatter`` has it."""
    if (rows := row_index(node, base, dim, index)) is not None:
        return _at(node, base, source, [*[None] * (dim % rank(base)), rows])
    if not is_number(base, 0):
        there = emit(node, aten.gather.default, base, dim, index)
        source = emit(node, aten.add.Tensor, there, source)
    return emit(node, aten.scatter.src, base, dim, index, source)


def _write_into(node: fx.Node) -> None:
    """x + what is written onto zeros → a write into x."""
    terms = terms_of(node)
    for term in terms:
        sign, write = term
        put = is_call(write, aten.index_put) and not argument(write, "accumulate")
        put = put and not any(_is_mask(index) for index in arguments(write)[1])
        writes = put or (is_call(write, aten.scatter) and is_tensor(arguments(write)[-1]))
        alone = sign > 0 and writes and len(write.users) == 1
        if not alone or not is_number(operand(write), 0) or _fills(write):
            continue
        base = added(node, [t for t in terms if t is not term])
        if shape_of(base) != shape_of(write):
            continue
        if put:
            indices, source = arguments(write)[1:3]
            swap(node, _at(node, base, source, indices))
        else:
            dim, index, source = arguments(write)[1:4]
            swap(node, _along(node, base, source, dim, index))
        return


def _add_there(node: fx.Node) -> None:
    """x[i] + v, written into x where i is the true places of a mask → x and what adds v there."""
    base, indices, source = arguments(node)[:3]
    terms = terms_of(before_reshapes(source, alone=True))
    read = [t for t in terms if t[0] > 0 and is_call(t[1], aten.index)]
    read = [t for t in read if operand(t[1]) is base and arguments(t[1])[1] == indices]
    masks = [index for index in indices if _is_mask(index)]
    if len(read) != 1 or len(terms) < 2 or not (masks or _counts_mask(indices)):
        return
    more = reshaped(node, added(node, [t for t in terms if t is not read[0]]), shape_of(read[0][1]))
    if masks:
        zeros = emit(node, aten.zeros_like.default, base)
        there = emit(node, aten.index_put.default, zeros, indices, more)
    else:
        there = accumulated(node, base, indices, [*range(len(indices))], more)
    swap(node, emit(node, aten.add.Tensor, base, there))


def _counts_mask(indices: list[fx.Node | None]) -> bool:
    """Whether each index, from the first axis on, counts the true places of a mask."""
    return bool(indices) and all(i is not None and is_column(i) for i in indices)


def _fills(write: fx.Node) -> bool:
    """Whether what is written is as large as the whole: positions in another order."""
    return bool(
        val(arguments(write)[2 if is_call(write, aten.index_put) else 3]).numel()
        == val(write).numel()
    )


def _is_mask(index: fx.Node | None) -> bool:
    """Whether an index is one of truth values."""
    return index is not None and val(index).dtype == torch.bool


def _are_distinct(indices: list[fx.Node | None], constants: Constants) -> bool:
    """Whether an index and, of the samples or heads beside it, each its own name no place twice."""
    given = [index for index in indices if index is not None]
    held = [value for index in given if (value := constants.value(index)) is not None]
    live = [index for index in given if constants.value(index) is None]
    if any(_is_mask(index) for index in given) or len(live) != 1 or len(held) > 1:
        return False
    (index,) = live
    for axis in range(rank(index)):
        others = [size for i, size in enumerate(shape_of(index)) if i != axis]
        if _distinct(index, axis, constants):
            return all(isinstance(b, Tensor) and _counts(b, others) for b in held)
    return False


def _counts(beside: Tensor, others: list[int]) -> bool:
    """Whether a constant has another number for each place along the other axes."""
    return beside.numel() == math.prod(others) == len(beside.unique())


def _distinct(index: fx.Node, axis: int, constants: Constants) -> bool:
    """Whether no number stands twice along an axis."""
    return _between(index, axis, constants) is not None


def _between(index: fx.Node, axis: int, constants: Constants) -> range | None:
    """The numbers among which an index is, if none stands twice along an axis: an order, the
    largest few, what is picked of these by such an index, and such indices beside each other."""
    what, args = kind(index), arguments(index)
    if isinstance(known := constants.value(index), Tensor):
        return _of_constant(known, axis)
    if what is Kind.OUTPUT and is_call(args[0], aten.topk, aten.sort):
        x, dim = operand(args[0]), argument(args[0], "dim") % rank(index)
        if dim != axis:
            return None
        return range(shape_of(x)[dim]) if args[1] == 1 else _between(x, axis, constants)
    if is_call(index, aten.argsort):
        dim = argument(index, "dim") % rank(index)
        return range(shape_of(index)[dim]) if dim == axis else None
    if what is Kind.GATHER and argument(index, "dim") % rank(index) == axis:
        places = _between(argument(index, "index"), axis, constants)
        return None if places is None else _between(operand(index), axis, constants)
    if what is Kind.SUM and (by := constants.number(args[1])) is not None:
        found = _between(operand(index), axis, constants)
        return None if found is None else range(found.start + int(by), found.stop + int(by))
    if what is Kind.JOIN and argument(index, "dim") % rank(index) == axis:
        parts = [_between(part, axis, constants) for part in args[0]]
        ranges = sorted((r for r in parts if r is not None), key=lambda r: r.start)
        apart = all(one.stop <= other.start for one, other in pairwise(ranges))
        return range(ranges[0].start, ranges[-1].stop) if apart and None not in parts else None
    if what in (Kind.RESHAPE, Kind.EXPAND, Kind.CAST):
        below = operand(index)
        at = axis - rank(index) + rank(below)
        if what is Kind.RESHAPE:
            found_at = after_reshape(tuple(shape_of(index)), tuple(shape_of(below)), axis)
            at = -1 if found_at is None else found_at
        whole = at >= 0 and shape_of(below)[at] == shape_of(index)[axis]
        return _between(below, at, constants) if whole else None
    return None


def _of_constant(known: Tensor, axis: int) -> range | None:
    if known.dim() <= axis or known.dtype == torch.bool or not known.numel():
        return None
    if bool((known.sort(axis).values.diff(dim=axis) == 0).any()):
        return None
    return range(int(known.min()), int(known.max()) + 1)
