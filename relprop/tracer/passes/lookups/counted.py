"""Whole numbers that pick rows, those below 0 among them, which count from the last row."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, emit, is_number, tensor_inputs

#: What only brings numbers to other places, or makes them whole.
_MOVES = frozenset(
    (
        *(Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE, Kind.JOIN),
        *(Kind.SHIFT, Kind.REPEAT, Kind.SPLIT, Kind.OUTPUT, Kind.CAST),
    )
)


def from_the_first(at: fx.Node, ids: fx.Node, count: int) -> fx.Node:
    """Numbers of ``count`` rows, those below 0, which count from the last, counted from the first,
    as an embedding counts them."""
    return ids if _are_counted(ids) else emit(at, aten.remainder.Scalar, ids, count)


def _are_counted(ids: fx.Node) -> bool:
    """Whether numbers are those of an input, or places and counts, wherever they are brought and
    however they are multiplied and added: those are not below 0."""
    if kind(ids) is Kind.OUTPUT and kind(operand(ids)) is Kind.PICK:
        return is_number(arguments(ids)[1], 1)
    if ids.op == "placeholder" or kind(ids) is Kind.COUNT or is_call(ids, aten.remainder):
        return True
    if kind(ids) in (Kind.PRODUCT, Kind.QUOTIENT) or is_call(ids, aten.add):
        given = (*ids.args, *ids.kwargs.values())
        if any(isinstance(n, (int, float)) and n < 0 for n in given):
            return False
    elif kind(ids) not in _MOVES:
        return False
    return all(map(_are_counted, tensor_inputs(ids)))
