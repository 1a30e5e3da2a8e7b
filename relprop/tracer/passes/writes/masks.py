"""Masks whose true places an index counts."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, rank, shape_of


def mask_of(indices: list[fx.Node | None]) -> fx.Node | None:
    """The mask of neighbouring axes that is true at the places that indices say, each once."""
    found = [_column_of(i) for i in indices if i is not None]
    mask = found[0][0] if found and found[0] is not None else None
    return mask if mask is not None and found == [(mask, i) for i in range(rank(mask))] else None


def is_column(places: fx.Node) -> bool:
    """Whether an index counts a mask's true places along one of its axes."""
    return rank(places) == 1 and _column_of(places) is not None


def _column_of(places: fx.Node) -> tuple[fx.Node, int] | None:
    """The mask at whose true places an index counts, and along which of its axes."""
    axis, length = 0, None
    while True:
        if kind(places) is Kind.OUTPUT:
            axis = arguments(places)[1]
        elif kind(places) is Kind.SELECT:
            axis = arguments(places)[2]
        elif is_call(places, aten.remainder):
            length = arguments(places)[1]
        elif kind(places) is not Kind.RESHAPE:
            break
        places = operand(places)
    if not is_call(places, aten.nonzero, aten.nonzero_numpy, aten.where) or len(places.args) > 1:
        return None
    mask = operand(places)
    axis = 0 if rank(mask) == 1 else axis
    sized = isinstance(axis, int) and length in (None, *shape_of(mask)[axis : axis + 1])
    return (mask, axis) if sized else None
