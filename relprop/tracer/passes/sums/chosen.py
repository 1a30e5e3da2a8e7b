"""Choices that are written as products: what a mask of zeros and ones leaves of a tensor."""

from __future__ import annotations

from torch import fx

from relprop.operations import is_call
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    is_float,
    is_live,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.functions.masked import Kept, kept


def raise_choices(graph: fx.Graph, constants: Constants) -> None:
    """x·m → x where the mask m is not 0, else 0."""
    for node in list(graph.nodes):
        if is_call(node, aten.mul) and (part := _part(node, constants)) is not None:
            swap(node, emit(node, aten.masked_fill.Scalar, part.x, part.hidden(node), 0.0))


def _part(node: fx.Node, constants: Constants) -> Kept | None:
    """What a product keeps of a tensor as large as its result, by a mask that depends on an
    input."""
    part = kept(node, constants) if is_live(node) and is_float(node) else None
    if part is None or shape_of(part.x) != shape_of(node) or val(part.x).dtype != val(node).dtype:
        return None
    return part if is_live(part.x) and is_live(part.condition) else None
