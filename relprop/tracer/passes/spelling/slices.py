"""Positions and runs of an axis: select, slice, and everything that makes several tensors of
one."""

from __future__ import annotations

import operator

from torch import fx
from torch.fx.node import Argument

from relprop.errors import CaptureError
from relprop.operations import Args, Kind, argument, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.facts import refusal


def as_select(node: fx.Node) -> fx.Node | None:
    """One position, its axis and its index counted from 0. An index that is a tensor picks."""
    x, dim, index = operand(node), argument(node, "dim"), argument(node, "index")
    dim %= rank(x)
    if isinstance(index, fx.Node):
        picked = emit(node, aten.index_select.default, x, dim, emit_scalar(node, index, x, dim))
        return reshaped(node, picked, shape_of(node))
    index %= shape_of(x)[dim]
    if arguments(node)[1:] == (dim, index):
        return None
    return emit(node, aten.select.int, x, dim, index)


def emit_scalar(node: fx.Node, index: fx.Node, x: fx.Node, dim: int) -> fx.Node:
    """An index computed by the model as a tensor of one, counted from 0."""
    one = emit(node, aten.reshape.default, _as_tensor(node, index), [1])
    return emit(node, aten.remainder.Scalar, one, shape_of(x)[dim])


#: What Python does with whole numbers.
ARITHMETIC = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.floordiv: aten.floor_divide.default,
    operator.mod: aten.remainder.Tensor,
    operator.neg: aten.neg.default,
}


def _as_tensor(node: fx.Node, number: Argument) -> Argument:
    """A number that Python read from a tensor, and reckoned with, as that tensor."""
    if not isinstance(number, fx.Node) or is_tensor(number):
        return number
    if kind(number) is Kind.READ:
        return operand(number)
    if number.target not in ARITHMETIC:
        raise _refused(node, number)
    operands = [_as_tensor(node, a) for a in arguments(number)]
    op = ARITHMETIC[number.target]
    if not is_tensor(operands[0]):  # a number less a tensor
        operands[0] = emit(node, aten.full_like.default, operands[1], operands[0])
    return emit(node, op, *operands)


def _refused(node: fx.Node, number: fx.Node) -> CaptureError:
    fact = f"a position is worked out by Python ({number.format_node()}) from values"
    return refusal(node, fact, "pick it by a tensor: x[torch.arange(len(x)), index]")


def as_slice(node: fx.Node) -> fx.Node | None:
    """A run of positions, its bounds inside the axis and counted from 0."""
    x, dim = operand(node), argument(node, "dim") % rank(operand(node))
    bounds: Args
    if is_call(node, aten.narrow):
        start, length = argument(node, "start"), argument(node, "length")
        if isinstance(start, fx.Node) or isinstance(length, fx.Node):
            return None
        start += shape_of(x)[dim] if start < 0 else 0
        bounds = (start, start + length, 1)
    else:
        bounds = (argument(node, "start"), argument(node, "end"), argument(node, "step"))
    if any(isinstance(b, fx.Node) for b in bounds):
        return None
    bounds = slice(*bounds).indices(shape_of(x)[dim])
    if bounds == (0, shape_of(x)[dim], 1):
        return x
    if is_call(node, aten.slice) and arguments(node)[1:] == (dim, *bounds):
        return None
    return emit(node, aten.slice.Tensor, x, dim, *bounds)


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
