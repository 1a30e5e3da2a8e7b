"""Moves of one tensor, by what they do and not by their name: reshape, permute, expand, select and
slice are all that is left of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import CaptureError, message
from relprop.operations import Kind, argument, is_call, kind
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.facts import place

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def order_of(node: fx.Node) -> list[int]:
    """Which axis of its operand each axis of a permutation's result is."""
    sizes = PRIMES[: rank(node.args[0])]
    with torch.device("meta"):
        made = node.target(torch.empty(sizes), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return [sizes.index(size) for size in made.shape]


def as_reshape(node: fx.Node) -> fx.Node | None:
    """Whatever keeps the elements in their order → ``reshape``."""
    shape = shape_of(node)
    if is_call(node, aten.reshape) and list(node.args[1]) == shape:  # type: ignore[arg-type]
        return None
    return reshaped(node, node.args[0], shape)  # type: ignore[arg-type]


def as_permute(node: fx.Node) -> fx.Node | None:
    """Whatever changes the order of axes → ``permute``."""
    dims = order_of(node)
    if is_call(node, aten.permute) and list(node.args[1]) == dims:  # type: ignore[arg-type]
        return None
    x = node.args[0]
    if is_call(node, aten.mH, aten.adjoint, aten.matrix_H) and val(x).is_complex():
        x = emit(node, aten.conj_physical.default, x)
    return permuted(node, x, dims)  # type: ignore[arg-type]


def as_expand(node: fx.Node) -> fx.Node | None:
    """Whatever repeats axes of length 1 → ``expand`` to a shape that is written out."""
    shape = shape_of(node)
    if is_call(node, aten.expand) and list(node.args[1]) == shape:  # type: ignore[arg-type]
        return None
    return expanded(node, node.args[0], shape)  # type: ignore[arg-type]


def as_select(node: fx.Node) -> fx.Node | None:
    """One position, its axis and its index counted from 0. An index that is a tensor picks."""
    x, dim, index = node.args[0], argument(node, "dim"), argument(node, "index")
    dim %= rank(x)
    if isinstance(index, fx.Node):
        picked = emit(node, aten.index_select.default, x, dim, emit_scalar(node, index, x, dim))
        return reshaped(node, picked, shape_of(node))
    index %= shape_of(x)[dim]
    if node.args[1:] == (dim, index):
        return None
    return emit(node, aten.select.int, x, dim, index)


def emit_scalar(node: fx.Node, index: fx.Node, x: Any, dim: int) -> fx.Node:
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


def _as_tensor(node: fx.Node, number: Any) -> Any:
    """A number that Python read from a tensor, and reckoned with, as that tensor."""
    if not isinstance(number, fx.Node) or is_tensor(number):
        return number
    if kind(number) is Kind.READ:
        return number.args[0]
    if number.target not in ARITHMETIC:
        return _refused(node, number)
    operands = [_as_tensor(node, a) for a in number.args]
    op = ARITHMETIC[number.target]  # type: ignore[index]
    if not is_tensor(operands[0]):  # a number less a tensor
        operands[0] = emit(node, aten.full_like.default, operands[1], operands[0])
    return emit(node, op, *operands)


def _refused(node: fx.Node, number: fx.Node) -> None:
    raise CaptureError(
        message(
            f"a position is worked out by Python ({number.format_node()}) from values",
            at=str(place(node)),
            then=["pick it by a tensor: x[torch.arange(len(x)), index]"],
        )
    )


def as_slice(node: fx.Node) -> fx.Node | None:
    """A run of positions, its bounds inside the axis and counted from 0."""
    x, dim = node.args[0], argument(node, "dim") % rank(node.args[0])
    bounds: tuple[Any, ...]
    if is_call(node, aten.narrow):
        start, length = argument(node, "start"), argument(node, "length")
        if isinstance(start, fx.Node) or isinstance(length, fx.Node):
            return None
        start %= shape_of(x)[dim] + 1
        bounds = (start, start + length, 1)
    else:
        bounds = (argument(node, "start"), argument(node, "end"), argument(node, "step"))
    if any(isinstance(b, fx.Node) for b in bounds):
        return None
    bounds = slice(*bounds).indices(shape_of(x)[dim])
    if bounds == (0, shape_of(x)[dim], 1):
        return x  # type: ignore[return-value]
    if is_call(node, aten.slice) and node.args[1:] == (dim, *bounds):
        return None
    return emit(node, aten.slice.Tensor, x, dim, *bounds)


def as_pieces(node: fx.Node) -> None:
    """Everything that makes several tensors of one → one slice or select for each that is used."""
    users = list(node.users)
    if any(kind(user) is not Kind.OUTPUT for user in users):
        return
    x = node.args[0]
    if is_call(node, aten.broadcast_tensors):
        for user in users:
            swap(user, expanded(user, x[user.args[1]], shape_of(user)))  # type: ignore[index]
        return
    for user in users:
        swap(user, piece(user, user, x))  # type: ignore[arg-type]


def piece(at: fx.Node, one: fx.Node, x: fx.Node) -> fx.Node:
    """The piece of ``x`` that ``one`` is of its own tensor, made at ``at``."""
    dim, start, length = extent(one)
    if length is None:
        return emit(at, aten.select.int, x, dim, start)
    return emit(at, aten.slice.Tensor, x, dim, start, start + length, 1)


def extent(one: fx.Node) -> tuple[int, int, int | None]:
    """Axis, start and length (``None``: the axis is gone) of one of several pieces."""
    pieces = one.args[0]
    assert isinstance(pieces, fx.Node)
    whole, parts = shape_of(pieces.args[0]), val(pieces)
    index = one.args[1] % len(parts)  # type: ignore[operator]
    if len(parts[0].shape) < len(whole):
        return argument(pieces, "dim") % len(whole), index, None
    others = [
        i
        for i, s in enumerate(whole)
        if len({p.shape[i] for p in (*parts, val(pieces.args[0]))}) > 1
    ]
    dim = others[0] if others else _axis(pieces) % len(whole)
    return dim, sum(p.shape[dim] for p in parts[:index]), parts[index].shape[dim]


def _axis(pieces: fx.Node) -> int:
    dim = argument(pieces, "dim")
    return dim if isinstance(dim, int) else 0


def as_cat(node: fx.Node) -> fx.Node | None:
    """``stack`` and ``cat``, without empty tensors of one axis, which ``cat`` skips (caches that
    are still empty)."""
    given, dim = node.args[0], argument(node, "dim")
    if is_call(node, aten.stack):
        dim %= rank(node)
        shape = shape_of(node)
        shape[dim] = 1
        parts = [reshaped(node, t, shape) for t in given]  # type: ignore[union-attr, arg-type]
        return parts[0] if len(parts) == 1 else emit(node, aten.cat.default, parts, dim)
    dim %= rank(node)
    some = [t for t in given if shape_of(t) != [0]] or list(given)  # type: ignore[union-attr, arg-type]
    if len(some) == 1 and val(some[0]).dtype == val(node).dtype:
        return some[0]  # type: ignore[return-value]
    if is_call(node, aten.cat) and len(some) == len(given) and node.args[1:] == (dim,):  # type: ignore[arg-type]
        return None
    return emit(node, aten.cat.default, some, dim)


def as_index(node: fx.Node) -> fx.Node | None:
    """``index_select`` and ``take`` → ``index``; positions of several axes, picked by one mask, are
    positions of one."""
    x = node.args[0]
    if is_call(node, aten.index_select):
        dim = argument(node, "dim") % max(rank(x), 1)
        where = reshaped(node, argument(node, "index"), [-1])
        return emit(node, aten.index.Tensor, x, [*[None] * dim, where])
    if is_call(node, aten.take):
        return emit(node, aten.index.Tensor, reshaped(node, x, [-1]), [argument(node, "index")])  # type: ignore[arg-type]
    *ahead, mask = argument(node, "indices")
    if any(ahead) or val(mask).dtype != torch.bool or rank(mask) < 2:
        return None
    first, shape = len(ahead), shape_of(x)
    folded = [*shape[:first], math.prod(shape_of(mask)), *shape[first + rank(mask) :]]
    picked = reshaped(node, mask, [math.prod(shape_of(mask))])
    node.args = (reshaped(node, x, folded), [*ahead, picked])  # type: ignore[arg-type]
    return None


def as_gather(node: fx.Node) -> fx.Node | None:
    """``take_along_dim`` → ``gather``, its operands broadcast against each other."""
    if not is_call(node, aten.take_along_dim):
        return None
    x, index, dim = node.args[0], argument(node, "indices"), argument(node, "dim")
    if dim is None:
        return emit(
            node, aten.gather.default, reshaped(node, x, [-1]), 0, reshaped(node, index, [-1])
        )  # type: ignore[arg-type]
    dim %= rank(x)
    wide = torch.broadcast_shapes(
        *([1 if i == dim else s for i, s in enumerate(shape_of(t))] for t in (x, index))
    )
    shapes = ([shape_of(t)[dim] if i == dim else s for i, s in enumerate(wide)] for t in (x, index))
    x, index = (expanded(node, t, s) for t, s in zip((x, index), shapes, strict=True))  # type: ignore[assignment]
    return emit(node, aten.gather.default, x, dim, index)


def as_repeat(node: fx.Node) -> fx.Node | None:
    """Repeats of axes of length 1 → ``expand``."""
    if is_call(node, aten.repeat_interleave):
        return None
    x, repeats = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    missing = len(repeats) - rank(x)
    shape = [1] * max(missing, 0) + shape_of(x)
    if any(k > 1 and s > 1 for k, s in zip(repeats[::-1], shape[::-1], strict=False)):
        return None
    return expanded(node, reshaped(node, x, shape), shape_of(node))  # type: ignore[arg-type]


def as_strided(node: fx.Node) -> fx.Node | None:
    """A view through strides of a tensor without gaps → an index into its elements, which does not
    depend on how values lie in memory."""
    if not is_call(node, aten.as_strided):
        return None
    x = node.args[0]
    if not val(x).is_contiguous():
        strides = val(x).stride()
        x = permuted(node, x, sorted(range(len(strides)), key=lambda i: -strides[i]))  # type: ignore[arg-type]
        if not val(x).is_contiguous():
            return None
    size, stride = argument(node, "size"), argument(node, "stride")
    where = emit(
        node,
        aten.full.default,
        [1] * len(size),
        argument(node, "storage_offset") or 0,
        dtype=torch.long,
    )
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        steps = emit(
            node,
            aten.arange.start_step,
            0,
            length * step if step else length,
            step or 1,
            dtype=torch.long,
        )
        steps = steps if step else emit(node, aten.mul.Tensor, steps, 0)
        shape = [length if i == axis else 1 for i in range(len(size))]
        where = emit(node, aten.add.Tensor, where, reshaped(node, steps, shape))
    return emit(node, aten.index.Tensor, reshaped(node, x, [math.prod(shape_of(x))]), [where])  # type: ignore[arg-type]


VIEWS: dict[Kind, Callable[[fx.Node], fx.Node | None]] = {
    Kind.RESHAPE: as_reshape,
    Kind.PERMUTE: as_permute,
    Kind.EXPAND: as_expand,
    Kind.SELECT: as_select,
    Kind.SLICE: as_slice,
    Kind.SPLIT: as_pieces,
    Kind.JOIN: as_cat,
    Kind.INDEX: as_index,
    Kind.GATHER: as_gather,
    Kind.REPEAT: as_repeat,
    Kind.VIEW: as_strided,
}


def is_view(node: fx.Node) -> bool:
    """Whether a call's result shows the memory of its first operand, as far as its layout tells."""
    source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    what = kind(node)
    if source is None or val(source) is None:
        return False
    if what in (
        Kind.SPLIT,
        Kind.PERMUTE,
        Kind.SELECT,
        Kind.SLICE,
        Kind.EXPAND,
        Kind.DETACH,
        Kind.VIEW,
    ):
        return True
    if what is Kind.OUTPUT:
        return kind(source) is Kind.SPLIT
    if not is_tensor(source):
        return False
    if what is Kind.IDENTITY:
        return not is_call(node, aten.clone) and _same_layout(val(source), val(node))
    if what is Kind.CAST:
        return val(source).dtype == val(node).dtype
    if what is Kind.COMPLEX:
        return bool(getattr(node.target, "is_view", False))
    return what is Kind.RESHAPE and _views(val(source), tuple(shape_of(node)))


def _same_layout(source: Tensor, made: Tensor) -> bool:
    return (
        source.dtype == made.dtype
        and source.shape == made.shape
        and source.stride() == made.stride()
    )


def _views(source: Tensor, shape: tuple[int, ...]) -> bool:
    try:
        source.view(shape)
    except RuntimeError:
        return False
    return True
