"""Matrices that are stored as whole numbers, and scaled when they are used (torchao, int8)."""

from __future__ import annotations

import math

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    reshaped,
    shape_of,
    swap,
)


def scale_stored(graph: fx.Graph) -> None:
    """A linear map whose matrix is stored as whole numbers, then one factor for each output → the
    linear map with the scaled matrix, which is the one that was meant."""
    for node in list(graph.nodes):
        if kind(node) in (Kind.PRODUCT, Kind.QUOTIENT) and is_live(node):
            found = _stored(node)
            if found is not None and (new := _scaled(node, *found)) is not None:
                swap(node, reshaped(node, new, shape_of(node)))


def _stored(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The linear map that a product or a quotient scales, and the factor for each output."""
    x, factor = arguments(node)[:2]
    if kind(node) is Kind.PRODUCT and not is_live(x):
        x, factor = factor, x
    layer = x
    while kind(layer) is Kind.RESHAPE and shape_of(layer)[-1:] == shape_of(node)[-1:]:
        if len(layer.users) != 1:
            break
        layer = operand(layer)
    if not _is_of_whole_numbers(layer) or len(layer.users) != 1 or is_live(factor):
        return None
    if not is_float(factor) or math.prod(shape_of(factor)[:-1]) != 1:
        return None
    if shape_of(layer)[-1:] != shape_of(node)[-1:] or shape_of(x) != shape_of(node):
        return None
    return layer, factor


def _scaled(node: fx.Node, layer: fx.Node, factor: fx.Node) -> fx.Node | None:
    """The linear map with its matrix and its bias scaled."""
    factor = reshaped(node, factor, [-1])
    if shape_of(factor)[0] not in (1, shape_of(node)[-1]):
        return None
    weight, *bias = arguments(layer)[1:]
    column = emit(node, aten.unsqueeze.default, factor, -1)
    given = [emit(node, node.target, weight, column)]
    given += [emit(node, node.target, b, factor) for b in bias if b is not None]
    return emit(node, aten.linear.default, operand(layer), *given)


def _is_of_whole_numbers(layer: fx.Node) -> bool:
    """Whether a node is a linear map whose matrix is an integer one, cast."""
    if not is_call(layer, aten.linear) or is_live(arguments(layer)[1]):
        return False
    weight = operand(layer, 1)
    while is_float(weight) and weight.op == "call_function" and len(weight.all_input_nodes) == 1:
        weight = weight.all_input_nodes[0]
    return not is_float(weight)
