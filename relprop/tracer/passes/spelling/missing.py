"""Numbers that a mask marks as NaN are left out of a sum that passes over NaN: they are 0 to it,
and what is asked for NaN is asked of the mask."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import MOVES, Kind, argument, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    emit,
    expanded,
    is_tensor,
    rank,
    shape_of,
    swap,
    val,
)


def leave_out_missing(graph: fx.Graph, constants: Constants) -> None:
    """Sums over what is no NaN, and counts of it → those of what a mask leaves."""
    for node in list(graph.nodes):
        if is_call(node, aten.nansum, aten.isnan) or _differs_from_itself(node):
            x, mask = _marked(node, operand(node), constants)
            if x is not None and mask is not None:
                swap(node, _without(node, x, mask))


def mean_of_numbers(node: fx.Node) -> fx.Node | None:
    """``nanmean`` is the sum of what is no NaN, by how many there are."""
    x, dims, keepdim = operand(node), dims_of(node), bool(argument(node, "keepdim"))
    there = emit(node, aten.logical_not.default, emit(node, aten.isnan.default, x))
    count = emit(node, aten.sum.dim_IntList, there, dims, keepdim)
    made = emit(node, aten.div.Tensor, emit(node, aten.nansum.default, x, dims, keepdim), count)
    return made if val(made).dtype == val(node).dtype else None


def _differs_from_itself(node: fx.Node) -> bool:
    return is_call(node, aten.ne) and node.args[0] is node.args[1]


def _without(node: fx.Node, x: fx.Node, mask: fx.Node) -> fx.Node:
    if not is_call(node, aten.nansum):
        return expanded(node, mask, shape_of(node))
    kept = emit(node, aten.masked_fill.Scalar, x, mask, 0)
    keepdim = rank(node) == rank(kept)
    return emit(node, aten.sum.dim_IntList, kept, dims_of(node), keepdim)


def _marked(at: fx.Node, x: fx.Node, constants: Constants) -> tuple[fx.Node | None, fx.Node | None]:
    """The tensor in which a mask marks numbers, and the mask."""
    a, b, c = (*arguments(x), None, None, None)[:3]
    if is_call(x, aten.masked_fill) and _is_nan(c, constants):
        return a, b
    if not is_call(x, aten.where):
        return None, None
    if is_tensor(b) and _is_nan(c, constants):
        return b, emit(at, aten.logical_not.default, a)
    return (c, a) if is_tensor(c) and _is_nan(b, constants) else (None, None)


def _is_nan(number: object, constants: Constants) -> bool:
    found = constants.number(number)
    return isinstance(found, float) and math.isnan(found)


def sum_of_numbers(node: fx.Node) -> fx.Node | None:
    """``nansum`` where all are numbers is a sum."""
    if not _all_numbers(operand(node)):
        return None
    dims, keepdim = dims_of(node), bool(argument(node, "keepdim"))
    made = emit(node, aten.sum.dim_IntList, operand(node), dims, keepdim)
    return made if val(made).dtype == val(node).dtype else None


_GIVES_NUMBERS = frozenset({Kind.LINEAR, Kind.CONVOLUTION, Kind.MATMUL, Kind.NORM})


_KEEPS_NUMBERS = MOVES | {Kind.SUM, Kind.PRODUCT, Kind.AFFINE, Kind.SOFTMAX}


def _all_numbers(x: fx.Node) -> bool:
    """Whether a tensor holds numbers alone if its inputs are finite: none of what it is made of, up
    to layers, divides, takes logarithms, or hides scores."""
    left = [x]
    while left:
        here = left.pop()
        if here.op == "get_attr" or kind(here) in _GIVES_NUMBERS:
            continue
        divides = kind(here) is Kind.QUOTIENT and not is_tensor(arguments(here)[1])
        if kind(here) not in _KEEPS_NUMBERS and not divides:
            return False
        left += here.all_input_nodes
    return True
