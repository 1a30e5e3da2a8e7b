"""Lanes that are each times a weight of their own (experts, each with its share), and added."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
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
from relprop.tracer.passes.lanes.worth import is_weighted, is_worth
from relprop.tracer.passes.products.letters import letters_of
from relprop.tracer.passes.products.operators import product_of
from relprop.tracer.passes.sums.terms import added, is_scaled, is_top, scale_of, terms_of


def merge_weighted(graph: fx.Graph, constants: Constants) -> None:
    """Σ_i g_i·f_i(x), lanes each times a weight of its own (experts, each with its share) → the
    product of the lanes side by side with their weights."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        parts = [(n, *_unscaled(n)) for sign, n in terms if sign > 0]
        parts = [(n, _with_mask(node, product, constants), scale) for n, product, scale in parts]
        parts = [part for part in parts if is_weighted(part[1])]
        alike = len(parts) > 1 and len({scale for *_, scale in parts}) == 1
        lanes = tuple(product for _, product, _ in parts)
        made = _weighted(node, lanes, Labels(constants)) if alike else None
        if made is not None:
            scale, gone = parts[0][2], [n for n, *_ in parts]
            made = made if scale == 1 else emit(node, aten.mul.Tensor, made, scale)
            rest = [(sign, n) for sign, n in terms if sign < 0 or n not in gone]
            swap(node, added(node, [*rest, (1, made)]))


def _unscaled(node: fx.Node) -> tuple[fx.Node, float]:
    """What a number multiplies, and that number."""
    way: list[fx.Node] = []
    while is_scaled(node) and len(node.users) == 1:
        way.append(node)
        node = operand(node)
    return node, scale_of(way)


def _with_mask(at: fx.Node, node: fx.Node, constants: Constants) -> fx.Node:
    """Rows that are 0 but where a mask says, a factor of a product maybe → times that mask, which
    goes with the smaller of two factors."""
    if len(node.users) != 1:
        return node
    if is_call(node, aten.mul) and all(is_tensor(f) for f in arguments(node)):
        factors = [_with_mask(at, f, constants) for f in arguments(node)]
        return node if factors == [*arguments(node)] else emit(at, aten.mul.Tensor, *factors)
    if kind(node) is Kind.RESHAPE:
        return _laid_out(at, node, _with_mask(at, operand(node), constants))
    if (chosen := _kept(at, node, constants)) is None:
        return node
    mask, kept = chosen
    if not is_live(mask) or shape_of(mask)[-1:] != [1] or not is_float(kept):
        return node
    small, large = emit(at, aten.to.dtype, mask, val(kept).dtype), kept
    if is_weighted(kept):
        factor, large = sorted(arguments(kept)[:2], key=lambda x: val(x).numel())
        small = emit(at, aten.mul.Tensor, small, factor)
    made = emit(at, aten.mul.Tensor, small, large)
    return made if shape_of(made) == shape_of(node) else node


def _kept(at: fx.Node, node: fx.Node, constants: Constants) -> tuple[fx.Node, fx.Node] | None:
    """Where a call that is 0 elsewhere keeps the numbers of a tensor, and that tensor."""
    if is_call(node, aten.masked_fill):
        kept, mask, other = arguments(node)
        hides = True
    elif is_call(node, aten.where) and len(node.args) == 3:
        mask, kept, other = arguments(node)
        if hides := constants.number(kept) == 0:
            kept, other = other, kept
    else:
        return None
    if constants.number(other) != 0 or not is_tensor(kept):
        return None
    return emit(at, aten.logical_not.default, mask) if hides else mask, kept


def _laid_out(at: fx.Node, node: fx.Node, product: fx.Node) -> fx.Node:
    """A product of rows with one number each, in another shape of the same rows: of its factors."""
    shape, given = shape_of(node), shape_of(product)
    if not is_weighted(product) or not given or shape[-1:] != given[-1:]:
        return node
    sizes = [[*given[:-1], 1], given]
    small, large = sorted(arguments(product)[:2], key=lambda x: val(x).numel())
    if [shape_of(small), shape_of(large)] != sizes:
        return node
    parts = reshaped(at, small, [*shape[:-1], 1]), reshaped(at, large, shape)
    return emit(at, aten.mul.Tensor, *parts)


def _weighted(at: fx.Node, parts: Lanes, labels: Labels) -> fx.Node | None:
    """The sum of products as one product; ``None`` where they are not lanes of one computation."""
    mark = at.prev
    if not is_worth(parts):
        return None
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
