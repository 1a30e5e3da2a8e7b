"""What a tensor is made of: the part of a graph above it, up to where it comes from."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from relprop.tracer.constants import Constants
from relprop.tracer.editing import is_live, tensor_inputs
from relprop.tracer.passes.trials.parts import Piece


def part_above(
    output: fx.Node, constants: Constants, is_inside: Callable[[fx.Node], bool]
) -> Piece:
    """The calls above ``output``, itself among them, up to the live tensors that are not inside:
    its sources."""
    inside: set[fx.Node] = set()
    sources: dict[fx.Node, None] = {}
    left = [output]
    while left:
        node = left.pop()
        if node in inside or not is_live(node):
            continue
        if node.op == "call_function" and is_inside(node):
            inside.add(node)
            left += tensor_inputs(node)
        else:
            sources[node] = None
    return Piece(tuple(sources), output, tuple(sorted(inside)), constants)
