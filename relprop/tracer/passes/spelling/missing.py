"""Sums and means that pass over NaN, of what holds none."""

from __future__ import annotations

from torch import fx

from relprop.operations import MOVES, Kind, argument, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    emit,
    is_tensor,
    val,
)


def mean_of_numbers(node: fx.Node) -> fx.Node | None:
    """``nanmean`` is the sum of what is no NaN, by how many there are."""
    x, dims, keepdim = operand(node), dims_of(node), bool(argument(node, "keepdim"))
    there = emit(node, aten.logical_not.default, emit(node, aten.isnan.default, x))
    count = emit(node, aten.sum.dim_IntList, there, dims, keepdim)
    made = emit(node, aten.div.Tensor, emit(node, aten.nansum.default, x, dims, keepdim), count)
    return made if val(made).dtype == val(node).dtype else None


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
