"""Lanes that are each times a weight of their own, and added: mixtures of experts that run all of
them (MMoE's; decoders whose routers leave zeros)."""

from __future__ import annotations

from torch import fx

from relprop.operations import is_call
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.labels import Labels
from relprop.tracer.passes.lanes.alike import Apart, Lanes, undo
from relprop.tracer.passes.lanes.lifted import on_an_axis
from relprop.tracer.passes.lanes.should_merge import multiplies, should_merge
from relprop.tracer.passes.products.letters import letters_of
from relprop.tracer.passes.products.operators import product_of
from relprop.tracer.passes.sums.terms import added, is_top, terms_of


def merge_weighted(graph: fx.Graph, constants: Constants) -> None:
    """Σ_i g_i·f_i(x), lanes each times a weight of its own → the product of the lanes side by side
    with their weights."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        parts = [n for sign, n in terms if sign > 0 and multiplies(n)]
        made = _weighted(node, tuple(parts), Labels(constants)) if len(parts) > 1 else None
        if made is not None:
            rest = [(sign, n) for sign, n in terms if sign < 0 or n not in parts]
            swap(node, added(node, [*rest, (1, made)]))


def _weighted(at: fx.Node, parts: Lanes, labels: Labels) -> fx.Node | None:
    """The sum of products as one product; ``None`` where they are not lanes of one computation."""
    if not should_merge(parts):
        return None
    mark = at.prev
    try:
        product = on_an_axis(at, parts, {}, labels)
    except Apart:
        undo(at, mark)
        return None
    total = emit(at, aten.sum.dim_IntList, _of_two(at, product, rank(parts[0])), [0])
    p = letters_of(total)
    if p is None:
        undo(at, mark)
        return None
    return reshaped(at, product_of(at, p), shape_of(total))


def _of_two(at: fx.Node, product: fx.Node, width: int) -> fx.Node:
    """A product of lanes on a first axis as one of two lanes' tensors: factors that are the same
    for all lanes, which have ``width`` axes or fewer, go with the smaller of the two."""
    factors: list[fx.Node] = []
    while is_call(product, aten.mul) and all(is_tensor(x) for x in arguments(product)[:2]):
        one = [x for x in arguments(product)[:2] if rank(x) <= width]
        if len(one) != 1:
            break
        (product,) = (x for x in arguments(product)[:2] if x is not one[0])
        factors += one
    if not factors or not is_call(product, aten.mul):
        return product
    small, large = sorted(arguments(product)[:2], key=lambda x: val(x).numel())
    for factor in factors:
        small = emit(at, aten.mul.Tensor, small, factor)
    return emit(at, aten.mul.Tensor, small, large)
