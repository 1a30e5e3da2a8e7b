"""Linear maps and products that were cut by their outputs, into parts side by side: one."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import groupby

from torch import fx

from relprop.operations import is_call, operand
from relprop.tracer.editing import arguments, aten, emit, is_live, joined, rank, shape_of, swap, val


def join_outputs(graph: fx.Graph) -> None:
    """Linear maps or products of one tensor whose results are laid beside each other → one map or
    product."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.cat) or arguments(node)[1] != rank(node) - 1:
            continue
        made: list[fx.Node] = []
        for read, group in groupby(joined(node), _read):
            run = list(group)
            made += run if read is None or len(run) == 1 else [_stacked(node, run)]
        if len(made) < len(joined(node)):
            last = rank(node) - 1
            swap(node, made[0] if len(made) == 1 else emit(node, aten.cat.default, made, last))


def _read(part: fx.Node) -> tuple[Hashable, ...] | None:
    """What a linear map or a product that nobody else reads is one of, and what others that are
    joined with it have in common."""
    if is_map(part):
        return operand(part), val(part).dtype
    if not is_call(part, aten.matmul) or len(part.users) != 1 or not is_live(part):
        return None
    first, second = arguments(part)
    columns = rank(second) > 1 and (is_live(second) or not is_live(first))
    return (part.target, first, *shape_of(second)[:-1]) if columns else None


def is_map(node: fx.Node) -> bool:
    """Whether a call is a linear map, by parameters, that one other call reads."""
    if not is_call(node, aten.linear) or len(node.users) != 1:
        return False
    return is_live(operand(node)) and not any(is_live(n) for n in arguments(node)[1:])


def _stacked(at: fx.Node, parts: list[fx.Node]) -> fx.Node:
    if is_call(parts[0], aten.matmul):
        seconds = [operand(p, 1) for p in parts]
        beside = emit(at, aten.cat.default, seconds, rank(seconds[0]) - 1)
        return emit(at, aten.matmul.default, operand(parts[0]), beside)
    weight = emit(at, aten.cat.default, [arguments(p)[1] for p in parts], 0)
    biases = [arguments(p)[2] if len(p.args) > 2 else None for p in parts]
    if all(b is None for b in biases):
        return emit(at, aten.linear.default, operand(parts[0]), weight)
    given = [
        emit(at, aten.new_zeros.default, arguments(p)[1], shape_of(arguments(p)[1])[:1])
        if b is None
        else b
        for p, b in zip(parts, biases, strict=True)
    ]
    bias = emit(at, aten.cat.default, given, 0)
    return emit(at, aten.linear.default, operand(parts[0]), weight, bias)
