"""The largest and the smallest: of two tensors, along axes, of stretches, or with their places."""

from __future__ import annotations

import operator

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand, packet
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
from relprop.tracer.facts import Facts, know, place


def picked_values(node: fx.Node) -> None:
    """The values of sort, topk and their like → ``gather`` at their indices: picked values only
    change place. Those of max and min are the largest and the smallest."""
    x, indices = operand(node), [u for u in node.users if kind(u) is Kind.OUTPUT]
    if not indices or len(indices) != len(node.users):
        return
    ends = {aten.max: aten.amax.default, aten.min: aten.amin.default}
    if (op := ends.get(packet(node))) is not None:
        for user in [u for u in indices if arguments(u)[1] == 0]:
            dim, keepdim = argument(node, "dim"), bool(argument(node, "keepdim"))
            swap(user, emit(user, op, x, [dim], keepdim))
        return
    dim = argument(node, "dim")
    dim = -1 if dim is None else dim
    dropped = rank(indices[0]) < rank(x)
    for user in [u for u in indices if arguments(u)[1] == 0]:
        with node.graph.inserting_before(user):
            where = node.graph.call_function(operator.getitem, (node, 1))
        know(where, Facts(val(node)[1], place(node)))
        if dropped:
            where = emit(user, aten.unsqueeze.default, where, dim)
        picked = emit(user, aten.gather.default, x, dim % max(rank(x), 1), where)
        swap(user, reshaped(user, picked, shape_of(user)))


def of_all_axes(node: fx.Node) -> fx.Node | None:
    """The largest of all elements → along all axes."""
    if packet(node) not in (aten.max, aten.min):
        return None
    op = aten.amax.default if is_call(node, aten.max) else aten.amin.default
    return emit(node, op, operand(node), list(range(rank(operand(node)))))


def of_two(node: fx.Node) -> fx.Node | None:
    """``max(a, b)`` → ``maximum``."""
    if packet(node) not in (aten.max, aten.min):
        return None
    op = aten.maximum.default if is_call(node, aten.max) else aten.minimum.default
    return emit(node, op, *arguments(node))


def clamped(node: fx.Node) -> fx.Node | None:
    """``clamp(x, low, high)`` by tensors → ``minimum(maximum(x, low), high)``: PyTorch's own
    definition chooses by what is NaN, too, which DeepLIFT has no rule for."""
    bounds = {op: argument(node, n) for n, op in (("min", aten.maximum), ("max", aten.minimum))}
    if not any(is_tensor(bound) for bound in bounds.values()):
        return None
    x = operand(node)
    for op, bound in bounds.items():
        x = x if bound is None else emit(node, op.default, x, bound)
    return x


def largest_of_stretches(node: fx.Node) -> None:
    """The values of adaptive max pools: the largest of so many stretches of each axis, one axis
    after the other."""
    x, counts = operand(node), list(arguments(node)[1])
    if not all(kind(u) is Kind.OUTPUT and arguments(u)[1] == 0 for u in node.users):
        return
    for dim, count in enumerate(counts, rank(x) - len(counts)):
        length = shape_of(x)[dim]
        bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
        parts = [x if count == 1 else emit(node, aten.slice.Tensor, x, dim, *b, 1) for b in bounds]
        tops = [emit(node, aten.amax.default, p, [dim], True) for p in parts]
        x = tops[0] if count == 1 else emit(node, aten.cat.default, tops, dim)
    for user in list(node.users):
        swap(user, x)
