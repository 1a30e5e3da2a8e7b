"""Masks whose true places an index counts."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, rank, shape_of, val


def count_masks(graph: fx.Graph, constants: Constants) -> None:
    """Positions of one axis that a mask of constants says, read or written → by their numbers. What
    is added at a mask stays: it brings no two values to one place, as numbers may."""
    counted: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        adds = is_call(node, aten.index_put) and argument(node, "accumulate")
        if adds or not is_call(node, aten.index, aten.index_put):
            continue
        indices = list(arguments(node)[1])
        for i, mask in enumerate(indices):
            if mask is None or val(mask).dtype != torch.bool or rank(mask) != 1:
                continue
            known = constants.value(mask)
            if mask not in counted and isinstance(known, Tensor) and bool(known.any()):
                places = known.nonzero()[:, 0].to(constants.device)
                counted[mask] = emit(mask.next, Held(places))
            indices[i] = counted.get(mask, mask)
        node.args = (node.args[0], indices, *node.args[2:])


def case_of(mask: object) -> tuple[fx.Node, int] | None:
    """The tensor and the number to which a mask compares it."""
    if is_call(mask, aten.eq) and isinstance(arguments(mask)[1], int):
        return operand(mask), arguments(mask)[1]
    if not is_call(mask, aten.select) or not isinstance(arguments(mask)[2], int):
        return None
    x, axis, number = arguments(mask)
    number %= shape_of(x)[axis]
    while kind(x) is Kind.PERMUTE:
        x, axis = operand(x), arguments(x)[1][axis]
    return (x, number) if is_call(x, aten.one_hot) and axis == rank(x) - 1 else None


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
