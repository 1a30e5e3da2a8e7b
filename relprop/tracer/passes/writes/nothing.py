"""Tensors without elements, as a cut of no position leaves them (torchvision's video Swin where a
window is as long as the clip)."""

from __future__ import annotations

from torch import Tensor, fx

from relprop.operations import Kind, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, is_tensor, joined, swap, tensor_inputs, val


def drop_nothing(graph: fx.Graph, constants: Constants) -> None:
    """A tensor without elements is a constant, and a number what is summed over none; what is
    joined with none, or has none written into it, is as it was."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(val(node), Tensor):
            continue
        given = [n for n in tensor_inputs(node) if is_tensor(n)]
        if given and not val(node).numel():
            swap(node, constants.full(node, 0))
        elif all(val(n).numel() for n in given):
            continue
        elif kind(node) is Kind.JOIN:
            node.args = ([n for n in joined(node) if val(n).numel()], *arguments(node)[1:])
        elif kind(node) in (Kind.WRITE, Kind.INDEXED_SUM):
            swap(node, operand(node))
        elif (number := constants.number(node)) is not None:
            swap(node, constants.full(node, number))
