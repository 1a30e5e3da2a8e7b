"""Positions and runs of an axis: select, slice, and everything that makes several tensors of
one."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    rank,
    shape_of,
    swap,
    val,
)
from relprop.tracer.facts import refusal


def as_select(node: fx.Node) -> fx.Node | None:
    """One position, its axis and its index counted from 0."""
    x, dim, index = operand(node), argument(node, "dim"), argument(node, "index")
    dim %= rank(x)
    if isinstance(index, fx.Node):
        fact = f"a position is worked out by Python ({index.format_node()}) from values"
        raise refusal(node, fact, "pick it by a tensor: x[torch.arange(len(x)), index]")
    index %= shape_of(x)[dim]
    if arguments(node)[1:] == (dim, index):
        return None
    return emit(node, aten.select.int, x, dim, index)


def as_slice(node: fx.Node) -> fx.Node | None:
    """A run of positions, its bounds inside the axis and counted from 0."""
    x, dim = operand(node), argument(node, "dim") % rank(operand(node))
    if any(isinstance(a, fx.Node) for a in arguments(node)[1:]):
        return None
    bounds = bounds_of(node, shape_of(x)[dim])
    if bounds == (0, shape_of(x)[dim], 1):
        return x
    if is_call(node, aten.slice) and arguments(node)[1:] == (dim, *bounds):
        return None
    return emit(node, aten.slice.Tensor, x, dim, *bounds)


def bounds_of(node: fx.Node, size: int) -> tuple[int, int, int]:
    """Where a run of an axis of so many positions starts and ends, and its step."""
    if is_call(node, aten.narrow):
        start = argument(node, "start") % size
        return start, start + argument(node, "length"), 1
    return slice(*(argument(node, n) for n in ("start", "end", "step"))).indices(size)


def as_pieces(node: fx.Node) -> None:
    """Everything that makes several tensors of one → one slice or select for each that is used."""
    users = list(node.users)
    if any(kind(user) is not Kind.OUTPUT for user in users):
        return
    for user in users:
        if is_call(node, aten.broadcast_tensors):
            source = arguments(node)[0][arguments(user)[1]]
            swap(user, expanded(user, source, shape_of(user)))
        else:
            swap(user, piece(user, user, operand(node)))


def piece(at: fx.Node, one: fx.Node, x: fx.Node) -> fx.Node:
    """The piece of ``x`` that ``one`` is of its own tensor, made at ``at``."""
    dim, start, length = extent(one)
    if length is None:
        return emit(at, aten.select.int, x, dim, start)
    return emit(at, aten.slice.Tensor, x, dim, start, start + length, 1)


def extent(one: fx.Node) -> tuple[int, int, int | None]:
    """Axis, start and length (``None``: the axis is gone) of one of several pieces."""
    pieces = operand(one)
    assert isinstance(pieces, fx.Node)
    whole, parts = shape_of(operand(pieces)), val(pieces)
    index = arguments(one)[1] % len(parts)
    if len(parts[0].shape) < len(whole):
        return argument(pieces, "dim") % len(whole), index, None
    others = [
        i
        for i, s in enumerate(whole)
        if len({p.shape[i] for p in (*parts, val(operand(pieces)))}) > 1
    ]
    dim = others[0] if others else _axis(pieces) % len(whole)
    return dim, sum(p.shape[dim] for p in parts[:index]), parts[index].shape[dim]


def _axis(pieces: fx.Node) -> int:
    dim = argument(pieces, "dim")
    return dim if isinstance(dim, int) else 0
