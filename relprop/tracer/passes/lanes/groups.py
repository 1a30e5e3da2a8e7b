"""Linear maps of groups and products of single rows, made one of all groups and of all rows."""

from __future__ import annotations

import math

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.editing import (
    applied,
    arguments,
    aten,
    dims_of,
    emit,
    is_live,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.products.letters import Product, letters_of
from relprop.tracer.passes.products.operators import as_linear, product_of


def join_groups(graph: fx.Graph) -> None:
    """Σ_g W_g x_g, the results of a linear map for each group summed over the groups → W x of the
    groups side by side (each head's own result)."""
    for node in list(graph.nodes):
        if is_call(node, aten.sum) and is_live(node) and (new := _of_groups(node)) is not None:
            swap(node, new)


def _of_groups(node: fx.Node) -> fx.Node | None:
    way: list[fx.Node] = []
    layer = operand(node)
    while kind(layer) in (Kind.RESHAPE, Kind.PERMUTE) and len(layer.users) == 1:
        way.insert(0, layer)
        layer = operand(layer)
    summed = [d for d in dims_of(node) if shape_of(operand(node))[d] > 1]
    if not _is_plain_layer(layer) or len(summed) != 1 or argument(node, "dtype"):
        return None
    if not _in_front(way, shape_of(layer), summed[0]):
        return None
    x, weight = arguments(layer)
    made = as_linear(node, Product(x, "gnk", weight, "gmk", "nm"))
    return None if made is None else reshaped(node, made, shape_of(node))


def _is_plain_layer(layer: fx.Node) -> bool:
    """Whether a call is a linear map for each group, without biases, that nothing else reads."""
    if not is_call(layer, grouped_linear) or len(layer.users) != 1 or rank(layer) != 3:
        return False
    return not is_live(operand(layer, 1)) and len(layer.args) == 2


def _in_front(way: list[fx.Node], shape: list[int], axis: int) -> bool:
    """Whether moves lay a tensor's first axis along an axis, and leave all else in its order."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    for move in way:
        places = applied(move, places)
    places = places.movedim(axis, 0)
    size = math.prod(shape[1:])
    own = torch.arange(size).reshape(places.shape[1:]) if places[0].numel() == size else None
    steps = torch.arange(len(places)).reshape(-1, *[1] * (places.dim() - 1)) * size
    return own is not None and torch.equal(places, own + steps)


def fold_rows(graph: fx.Graph) -> None:
    """A matrix product with one row for each place of an axis that its other operand has not → one
    with that axis as its rows (queries that were taken one by one)."""
    for node in list(graph.nodes):
        if is_call(node, aten.matmul) and (new := _apart(node)) is not None:
            swap(node, new)
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.matmul):
            continue
        p = letters_of(node)
        assert p is not None
        if _has_single_rows(p, p.trimmed(node)):
            swap(node, reshaped(node, product_of(node, p), shape_of(node)))


def _has_single_rows(p: Product, trimmed: Product) -> bool:
    """Whether one operand has a single row, and an axis that the other has not."""
    sizes, n, m = p.sizes(), p.out[-2], p.out[-1]
    ahead = [c for c in p.out[:-2] if sizes[c] > 1]
    rows = any(c in trimmed.x_axes and c not in trimmed.w_axes for c in ahead)
    columns = any(c in trimmed.w_axes and c not in trimmed.x_axes for c in ahead)
    return (rows and sizes[n] == 1) or (columns and sizes[m] == 1)


def _apart(node: fx.Node) -> fx.Node | None:
    """A product of single rows whose places were merged with its batch: its other operand was
    repeated for each of them (``vmap`` over queries)."""
    x, laid = arguments(node)[:2]
    copies = operand(laid) if kind(laid) is Kind.RESHAPE else None
    if copies is None or kind(copies) is not Kind.EXPAND or shape_of(x)[-2] != 1:
        return None
    batch, one = shape_of(copies)[:-2], operand(copies)
    first = rank(copies) - rank(one)
    if shape_of(copies)[-2:] != shape_of(laid)[-2:] or shape_of(x)[:-2] != shape_of(laid)[:-2]:
        return None
    if first != 1 or shape_of(one) != shape_of(copies)[1:]:
        return None
    made = emit(node, aten.matmul.default, reshaped(node, x, [*batch, 1, shape_of(x)[-1]]), one)
    return reshaped(node, made, shape_of(node))
