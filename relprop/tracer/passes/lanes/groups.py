"""Linear maps of groups whose results are added, made one of all groups."""

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
    is_live,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.products.letters import Product
from relprop.tracer.passes.products.operators import as_linear


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
