"""Lanes: the same computation several times side by side, for each head, query, key or chunk, then
put together. Merged, it is one computation with one more axis, or with a longer one.

Two ways, tried at every ``cat``. *Longer*: cat(f(x_1), ..., f(x_n)) = f(cat(x_1, ..., x_n)) where f
treats the positions of that axis apart; pieces may be unequal. *Lifted*: each lane is a place on a
new first axis, parallel linear maps become one. What enters the lanes must be the same tensor for
all, pieces of one tensor, or parameters: towers that only look alike are left alone."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from itertools import groupby

from torch import fx

from relprop.operations import is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    joined,
    rank,
    swap,
)
from relprop.tracer.labels import Labels
from relprop.tracer.passes.lanes.alike import Apart, undo
from relprop.tracer.passes.lanes.lifted import Known, lifted
from relprop.tracer.passes.lanes.longer import longer
from relprop.tracer.passes.lanes.should_merge import WORTH_MERGING, should_merge
from relprop.tracer.passes.products.splits import joined_linear
from relprop.tracer.passes.sums.terms import join_terms


def merge_lanes(graph: fx.Graph, constants: Constants | None = None) -> None:
    """Merge the lanes at every ``cat`` whose parts do more than move."""
    known, labels = Known(), Labels(constants)
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.cat) or not is_live(node):
            continue
        ways = (_merged, _in_runs)
        new = next((m for way in ways if (m := way(node, known, labels)) is not None), None)
        if new is not None:
            swap(node, new)


def _merged(node: fx.Node, known: Known, labels: Labels) -> fx.Node | None:
    """The lanes at a ``cat`` as one; ``known``: those that are one already."""
    parts = tuple(joined(node))
    if len(parts) < 2 or any(not is_live(p) for p in parts) or not should_merge(parts):
        return None
    for attempt in (longer, partial(lifted, known=known)):
        mark = node.prev
        try:
            return attempt(node, parts, arguments(node)[1], labels=labels)
        except Apart:
            undo(node, mark)
    return None


def _in_runs(node: fx.Node, known: Known, labels: Labels) -> fx.Node | None:
    """A ``cat`` in which some neighbours are lanes (tokens made one by one, beside others)."""
    parts, dim = arguments(node)[:2]
    made: list[fx.Node] = []
    for how, run in groupby(parts, lambda p: (p.op, kind(p), _made_by(p)) if is_live(p) else None):
        lanes = list(run)
        if how is not None and 1 < len(lanes) < len(parts):
            beside = emit(node, aten.cat.default, lanes, dim)
            merged = _merged(beside, known, labels)
            node.graph.erase_node(beside)
            lanes = lanes if merged is None else [merged]
        made += lanes
    return emit(node, aten.cat.default, made, dim) if len(made) < len(parts) else None


def merge_projections(graph: fx.Graph, constants: Constants) -> None:
    """Σ W_i x_i of lanes x_i that are merged (heads, each with its own part of the output
    projection) → W x of the lanes side by side."""

    def made_by(n: fx.Node) -> tuple[Hashable, ...] | None:
        return _made_by(n) if is_call(n, aten.linear) and len(n.users) == 1 else None

    join_terms(graph, made_by, partial(_projected, labels=Labels(constants)))


def _made_by(node: fx.Node) -> tuple[Hashable, ...]:
    """How what a layer reads is made, down to the first call that is worth merging: other lanes
    than a sum's other terms (an MLP, a shortcut) are made otherwise."""
    way: list[Hashable] = []
    while node.args and isinstance(arguments(node)[0], fx.Node):
        node = operand(node)
        way.append((node.op, kind(node)))
        if kind(node) in WORTH_MERGING:
            break
    return tuple(way)


def _projected(at: fx.Node, parts: list[fx.Node], labels: Labels) -> fx.Node | None:
    """The sum of some layers as one layer of their lanes side by side."""
    xs = [operand(p) for p in parts]
    beside = emit(at, aten.cat.default, xs, rank(xs[0]) - 1)
    merged = _merged(beside, {}, labels)
    if merged is None:
        at.graph.erase_node(beside)
        return None
    return joined_linear(at, merged, parts)
