"""What cancels, cancelled: moves that undo each other, numbers that change nothing, tensors cut and
joined again. So that a buffer written row by row is the rows one after another, and no more."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from relprop.operations import ELEMENTWISE, STOPS, Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    drop_unused,
    emit,
    expanded,
    is_live,
    is_tensor,
    rank,
    shape_of,
    swap,
)
from relprop.tracer.passes.simplify.joins import chosen_runs, simpler_cat, simpler_index
from relprop.tracer.passes.simplify.layouts import put_together
from relprop.tracer.passes.simplify.matrices import simpler_matrix
from relprop.tracer.passes.simplify.numbers import (
    as_numbers,
    linear_of_scaled,
    simpler_affine,
    simpler_function,
    simpler_product,
    simpler_sum,
)
from relprop.tracer.passes.simplify.shapes import (
    simpler_expand,
    simpler_pad,
    simpler_permute,
    simpler_reshape,
)
from relprop.tracer.passes.simplify.shifts import unshifted_softmax
from relprop.tracer.passes.simplify.slices import simpler_select, simpler_slice
from relprop.tracer.passes.simplify.totals import simpler_total
from relprop.tracer.passes.simplify.windows import windows
from relprop.tracer.passes.writes.runs import put_in_runs


def simplify(graph: fx.Graph, constants: Constants) -> None:
    """Apply every rule until none applies."""
    changed = True
    while changed:
        changed = False
        for node in list(graph.nodes):
            if node.op != "call_function" or node._erased:
                continue
            new = _simpler(node, constants)
            if new is not None:
                changed = True
                if new is not node:
                    swap(node, new)
        drop_unused(graph)


def _simpler(node: fx.Node, constants: Constants) -> fx.Node | None:
    if is_call(node, aten.index) and (new := simpler_index(node, constants)) is not None:
        return new
    if kind(node) is Kind.CHOICE and (new := chosen_runs(node, constants)) is not None:
        return new
    if is_call(node, aten.index_put) and (new := put_in_runs(node, constants)) is not None:
        return new
    if is_call(node, aten.linear, aten.matmul):
        new = simpler_matrix(node, constants) or linear_of_scaled(node)
        return _broadcast(node) if new is None and is_call(node, aten.matmul) else new
    if is_call(node, aten.cat) and (new := windows(node, constants)) is not None:
        return new
    if (new := put_together(node, constants)) is not None:
        return new
    rule = RULES.get(kind(node))
    if rule is not None and (new := rule(node)) is not None:
        return new
    if kind(node) in ELEMENTWISE:
        return as_numbers(node, constants) or _broadcast(node) or _repeated_later(node)
    return None


def _undetached(node: fx.Node) -> fx.Node | None:
    """Where nothing but comparisons comes of it, no gradient would pass anyway."""
    seen, left = {node}, [node]
    while left:
        users = {u for u in left.pop().users if kind(u) not in STOPS} - seen
        if any(kind(u) not in ELEMENTWISE for u in users):
            return None
        seen |= users
        left += users
    return operand(node)


def _broadcast(node: fx.Node) -> fx.Node | None:
    """An operand that is repeated only to fit the others need not be."""
    for wide in node.all_input_nodes:
        if kind(wide) is not Kind.EXPAND:
            continue
        others = [o for o in node.all_input_nodes if o is not wide]
        source = operand(wide)
        if not others or not _fits(node, wide, source, others):
            continue
        node.replace_input_with(wide, source)
        return node
    return None


def _repeated_later(node: fx.Node) -> fx.Node | None:
    """A function of a tensor that is repeated → the function, repeated."""
    wide = node.all_input_nodes[0] if node.all_input_nodes else node
    if len(node.all_input_nodes) > 1 or kind(wide) is not Kind.EXPAND or not is_live(node):
        return None
    if shape_of(wide) != shape_of(node):
        return None
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), _once)  # type: ignore[misc]
    return expanded(node, emit(node, node.target, *args, **kwargs), shape_of(node))


def _once(wide: fx.Node) -> fx.Node:
    return operand(wide)


def _fits(node: fx.Node, wide: fx.Node, source: fx.Node, others: list[fx.Node]) -> bool:
    """Whether the result is of the same shape with the operand's source in its place."""
    kept = 2 if is_call(node, aten.matmul) else 0
    if kept and shape_of(wide)[-kept:] != shape_of(source)[-kept:]:
        return False
    tensors = [source, *others]
    if not all(is_tensor(t) for t in tensors) or (kept and any(rank(t) < 2 for t in tensors)):
        return False
    cut = slice(None, -kept) if kept else slice(None)
    shapes = [shape_of(t)[cut] for t in tensors]
    return list(torch.broadcast_shapes(*map(tuple, shapes))) == shape_of(node)[cut]


RULES: dict[Kind, Callable[[fx.Node], fx.Node | None]] = {
    Kind.RESHAPE: simpler_reshape,
    Kind.PERMUTE: simpler_permute,
    Kind.EXPAND: simpler_expand,
    Kind.SELECT: simpler_select,
    Kind.SLICE: simpler_slice,
    Kind.JOIN: simpler_cat,
    Kind.PAD: simpler_pad,
    Kind.SUM: simpler_sum,
    Kind.PRODUCT: simpler_product,
    Kind.QUOTIENT: simpler_product,
    Kind.AFFINE: simpler_affine,
    Kind.TOTAL: simpler_total,
    Kind.LARGEST: simpler_total,
    Kind.STATISTIC: simpler_total,
    Kind.SOFTMAX: unshifted_softmax,
    Kind.DETACH: _undetached,
    Kind.FUNCTION: simpler_function,
}
