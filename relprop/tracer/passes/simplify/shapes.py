"""Shapes and orders of axes that are put on and taken off again."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
)


def simpler_reshape(node: fx.Node) -> fx.Node | None:
    """Of a reshape; of one position, which is a selection; of rows that are treated one by one."""
    x, shape = operand(node), shape_of(node)
    if shape_of(x) == shape:
        return x
    if kind(x) is Kind.RESHAPE:
        return reshaped(node, operand(x), shape)
    if is_call(x, aten.slice) and isinstance(arguments(x)[2], int):
        dim, left = arguments(x)[1], shape_of(x)
        if left[dim] == 1 and shape == [*left[:dim], *left[dim + 1 :]]:
            return emit(node, aten.select.int, operand(x), dim, arguments(x)[2])
    return _of_sum(node) or _of_rows(node, x, shape)


def _of_sum(node: fx.Node) -> fx.Node | None:
    """Tensors that were laid out otherwise, added and laid back → added as they lay."""
    total = operand(node)
    back = kind(total) is Kind.SUM and any(
        kind(a) is kind(node) and shape_of(operand(a)) == shape_of(node) and is_live(a)
        for a in total.all_input_nodes
    )
    return terms_laid(node) if back else None


def terms_laid(node: fx.Node) -> fx.Node | None:
    """A sum that is laid out otherwise → the sum of its terms, each laid out so."""
    total = operand(node)
    if kind(total) is not Kind.SUM or len(total.users) != 1 or total.kwargs:
        return None
    if not all(is_float(a) and shape_of(a) == shape_of(total) for a in arguments(total)):
        return None
    laid = [emit(node, node.target, a, *arguments(node)[1:]) for a in arguments(total)]
    return emit(node, total.target, *laid)


def _of_rows(node: fx.Node, x: fx.Node, shape: list[int]) -> fx.Node | None:
    """What is done to each row makes no difference to how the rows lie: laid out, treated and laid
    back is treated."""
    before = arguments(x)[0] if x.args else None
    of_each = kind(x) in (Kind.FUNCTION, Kind.AFFINE)
    if not of_each and not is_call(x, aten.layer_norm, aten.rms_norm, aten.linear):
        return None
    if len(x.users) != 1:
        return None
    if not isinstance(before, fx.Node) or kind(before) is not Kind.RESHAPE:
        return None
    y = operand(before)
    if shape_of(y)[-1:] != shape_of(before)[-1:] or shape_of(y)[:-1] != shape[:-1]:
        return None
    along = argument(x, "normalized_shape")
    if any(is_live(n) for n in x.all_input_nodes[1:]) or (along and len(along) > 1):
        return None
    others = [n for n in x.all_input_nodes[1:] if rank(n) > (2 if kind(x) is Kind.LINEAR else 1)]
    plain = isinstance(x.target, torch._ops.OpOverload)
    made = emit(node, x.target, y, *arguments(x)[1:], **x.kwargs) if plain and not others else None
    return made if made is not None and shape_of(made) == shape else None


def simpler_permute(node: fx.Node) -> fx.Node | None:
    """Of an order that was changed before; of axes of length 1 alone."""
    x, dims = operand(node), list(arguments(node)[1])
    if dims == sorted(dims):
        return x
    if is_call(x, aten.permute):
        return permuted(node, operand(x), [arguments(x)[1][d] for d in dims])
    long = [d for d in dims if shape_of(x)[d] != 1]
    return reshaped(node, x, shape_of(node)) if long == sorted(long) else _of_sum(node)


def simpler_expand(node: fx.Node) -> fx.Node | None:
    """Of nothing, or of what was expanded before."""
    x = operand(node)
    if shape_of(x) == shape_of(node):
        return x
    return expanded(node, operand(x), shape_of(node)) if kind(x) is Kind.EXPAND else None


def simpler_pad(node: fx.Node) -> fx.Node | None:
    """Of nothing; what is put on at one end and taken off at the other moves the rest."""
    return None if any(arguments(node)[1]) else operand(node)
