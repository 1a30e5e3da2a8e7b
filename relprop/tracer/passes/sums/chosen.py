"""What a mask of zeros and ones leaves of a tensor is a choice (the tokens that Parakeet's encoder
keeps)."""

from __future__ import annotations

from torch import fx

from relprop.operations import is_call
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, emit, is_float, is_live, shape_of, swap, val
from relprop.tracer.passes.functions.masked import kept


def raise_choices(graph: fx.Graph, constants: Constants) -> None:
    """x·m → x where the mask m, which depends on an input, is not 0, else 0."""
    for node in list(graph.nodes):
        if not is_call(node, aten.mul) or not is_live(node) or not is_float(node):
            continue
        part = kept(node, constants)
        if part is None or not is_live(part.x) or not is_live(part.condition):
            continue
        if shape_of(part.x) == shape_of(node) and val(part.x).dtype == val(node).dtype:
            swap(node, emit(node, aten.masked_fill.Scalar, part.x, part.hidden(node), 0.0))
