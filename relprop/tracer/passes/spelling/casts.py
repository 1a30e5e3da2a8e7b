"""Copies, types and constants: what a call is told beside its numbers, written in one way."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, kind, operand, packet
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    is_tensor,
    rank,
    reshaped,
    swap,
    val,
)


def as_operand(node: fx.Node) -> fx.Node | None:
    """Copies, dropout in eval mode."""
    x = operand(node)
    if isinstance(val(node), (tuple, list)):
        for user in [u for u in node.users if arguments(u)[1] == 0]:
            swap(user, x)
        return None
    return x if val(x).dtype == val(node).dtype else emit(node, aten.to.dtype, x, val(node).dtype)


def as_cast(node: fx.Node) -> fx.Node | None:
    """To another type, or to none; ``type_as`` reads nothing of its second operand but its type."""
    x: fx.Node = arguments(node)[0]  # or a number, which is not cast
    dtype = val(node).dtype
    if not is_tensor(x) or val(x).dtype == dtype:
        return x
    if node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs:
        return None
    return emit(node, aten.to.dtype, x, dtype)


def as_softmax(node: fx.Node) -> fx.Node | None:
    """A softmax along an axis counted from 0, in the type of its operand; a type to compute in is a
    cast before it."""
    x, dim, dtype = operand(node), argument(node, "dim"), val(node).dtype
    dim = dim % rank(x) if rank(x) else 0
    x = x if val(x).dtype == dtype else emit(node, aten.to.dtype, x, dtype)
    op = {aten._safe_softmax: aten._safe_softmax.default}.get(packet(node))
    if op is None:
        op = aten.softmax.int if kind(node) is Kind.SOFTMAX else aten.log_softmax.int
    if node.target is op and node.args == (x, dim) and not node.kwargs:
        return None
    return emit(node, op, x, dim)


def as_full(node: fx.Node, device: torch.device) -> fx.Node | None:
    """``zeros_like(x)`` and its kin read nothing of x but its shape; where memory is taken as it is
    (``empty_like``), zeros may lie there."""
    number = dict.fromkeys((aten.zeros_like, aten.new_zeros, aten.empty_like, aten.new_empty), 0)
    number |= {aten.ones_like: 1, aten.new_ones: 1}
    value = number.get(packet(node), argument(node, "fill_value"))
    made = val(node)
    if value is None or not isinstance(arguments(node)[0], fx.Node) or not isinstance(made, Tensor):
        return None
    if isinstance(value, fx.Node):
        return expanded(node, value, list(made.shape))
    return emit(node, aten.full.default, list(made.shape), value, dtype=made.dtype, device=device)


def read_as_tensor(node: fx.Node) -> None:
    """A number that Python reads from a tensor, where an operator would take the tensor as well."""
    source = operand(node)
    if not is_float(source):
        return
    for user in list(node.users):
        if not isinstance(user.target, torch._ops.OpOverload):
            continue
        tensors = [a.name for a in user.target._schema.arguments if "Tensor" in str(a.type)]
        if any(argument(user, name) is node for name in tensors):
            held = reshaped(user, source, [])
            held = emit(user, aten.detach.default, held) if is_live(held) else held
            user.replace_input_with(node, held)
