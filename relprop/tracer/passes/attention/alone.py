"""Attention to a single key, which is its value."""

from __future__ import annotations

from torch import fx

from relprop.operations import ELEMENTWISE, MOVES, Kind, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, is_live, shape_of, swap


def drop_lone_keys(graph: fx.Graph, constants: Constants) -> None:
    """A softmax with one element in each row is 1, unless others attend to the same key (as in the
    first step of a cache)."""
    for node in list(graph.nodes):
        if kind(node) is Kind.SOFTMAX and is_live(node) and _is_over_one(node):
            swap(node, constants.full(node, 1.0))


def _is_over_one(softmax: fx.Node) -> bool:
    if shape_of(softmax)[arguments(softmax)[1]] > 1:
        return False
    scores = operand(softmax)
    while kind(scores) in ELEMENTWISE | MOVES and is_live(scores):
        scores = next(n for n in scores.all_input_nodes if is_live(n))
    return all(_is_read_once(n) for n in scores.all_input_nodes if kind(scores) is Kind.MATMUL)


def _is_read_once(node: fx.Node) -> bool:
    """Whether a tensor, or what it is another form of, has no other reader."""
    cut = {Kind.SELECT, Kind.SLICE, Kind.OUTPUT}
    while kind(node) in MOVES - cut and len(node.users) == 1:
        node = operand(node)
    return len(node.users) == 1
