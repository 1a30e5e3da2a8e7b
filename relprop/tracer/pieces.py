"""Neighbouring pieces of one tensor, cut in one call: the gradient at that tensor is then put
together in one, too, where each piece by itself would have one of its own, zeros for the most
part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import fx

from relprop.operations import Kind, argument, kind, operand
from relprop.tracer.calls import Reads, Values
from relprop.tracer.editing import rank, shape_of

#: Pieces of one tensor, in their order along the axis that they are of.
Pieces = tuple[fx.Node, ...]


def pieces(calls: Sequence[fx.Node]) -> Mapping[fx.Node, Pieces]:
    """The pieces that are, side by side, all of one tensor, by each of them."""
    found: dict[tuple[fx.Node, int, Kind], list[fx.Node]] = {}
    for node in calls:
        what = kind(node)
        if what in (Kind.SELECT, Kind.SLICE) and len(node.all_input_nodes) == 1:
            source = operand(node)
            axis = argument(node, "dim") % rank(source)
            found.setdefault((source, axis, what), []).append(node)
    whole = dict[fx.Node, Pieces]()
    for (source, axis, _), nodes in found.items():
        nodes.sort(key=_reach)
        ends = [(0, 0), *map(_reach, nodes), (shape_of(source)[axis],) * 2]
        if len(nodes) > 1 and all(a[1] == b[0] for a, b in pairwise(ends)):
            whole.update(dict.fromkeys(nodes, tuple(nodes)))
    return whole


def at_once(nodes: Pieces, values: Reads) -> Values:
    """The values of all pieces of one tensor, from that of the tensor."""
    value = values[operand(nodes[0])]
    axis = argument(nodes[0], "dim") % rank(operand(nodes[0]))
    if kind(nodes[0]) is Kind.SELECT:
        made = torch.unbind(value, axis)
    else:
        made = torch.split(value, [end - start for start, end in map(_reach, nodes)], axis)
    return dict(zip(nodes, made, strict=True))


def _reach(node: fx.Node) -> tuple[int, int]:
    """Where a piece begins and ends; a slice with steps is none."""
    source = operand(node)
    size = shape_of(source)[argument(node, "dim") % rank(source)]
    if kind(node) is Kind.SELECT:
        place = argument(node, "index") % size
        return place, place + 1
    start, end, step = slice(*(argument(node, a) for a in ("start", "end", "step"))).indices(size)
    return (start, end) if step == 1 else (-1, -1)
