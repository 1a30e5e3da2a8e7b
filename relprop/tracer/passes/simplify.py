"""What cancels, cancelled: moves that undo each other, numbers that change nothing, tensors cut and
joined again. So that a buffer written row by row is the rows one after another, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from relprop.operations import ELEMENTWISE, Kind, argument, is_call, kind
from relprop.tracer.constants import Constants
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


def simplify(graph: fx.Graph, constants: Constants) -> None:
    """Apply every rule until none applies."""
    changed = True
    while changed:
        changed = False
        for node in list(graph.nodes):
            if node.op != "call_function" or node._erased:
                continue
            new = _simpler(node, constants)
            if new is not None:
                changed = True
                if new is not node:
                    swap(node, new)
        graph.eliminate_dead_code()


def _simpler(node: fx.Node, constants: Constants) -> fx.Node | None:
    rule = RULES.get(kind(node))
    if rule is not None and (new := rule(node)) is not None:
        return new
    if kind(node) in ELEMENTWISE:
        return _as_numbers(node, constants) or _broadcast(node)
    return _broadcast(node) if is_call(node, aten.matmul) else None


# ---- moves


def _reshape(node: fx.Node) -> fx.Node | None:
    x, shape = node.args[0], shape_of(node)
    if shape_of(x) == shape:
        return x  # type: ignore[return-value]
    return reshaped(node, x.args[0], shape) if kind(x) is Kind.RESHAPE else None  # type: ignore[union-attr, arg-type]


def _permute(node: fx.Node) -> fx.Node | None:
    x, dims = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    if dims == sorted(dims):
        return x  # type: ignore[return-value]
    if is_call(x, aten.permute):
        return permuted(node, x.args[0], [x.args[1][d] for d in dims])  # type: ignore[union-attr, index]
    long = [d for d in dims if shape_of(x)[d] != 1]
    return reshaped(node, x, shape_of(node)) if long == sorted(long) else None  # type: ignore[arg-type]


def _expand(node: fx.Node) -> fx.Node | None:
    x = node.args[0]
    if shape_of(x) == shape_of(node):
        return x  # type: ignore[return-value]
    return expanded(node, x.args[0], shape_of(node)) if kind(x) is Kind.EXPAND else None  # type: ignore[union-attr, arg-type]


def _select(node: fx.Node) -> fx.Node | None:
    x, dim, index = node.args[:3]
    if not isinstance(index, int) or not isinstance(dim, int):
        return None
    if shape_of(x)[dim] == 1:
        return reshaped(node, x, shape_of(node))  # type: ignore[arg-type]
    if kind(x) is Kind.SLICE and x.args[1] == dim and is_call(x, aten.slice):  # type: ignore[union-attr]
        return emit(node, aten.select.int, x.args[0], dim, x.args[2] + index * x.args[4])  # type: ignore[union-attr, operator]
    if is_call(x, aten.cat) and x.args[1] == dim:  # type: ignore[union-attr]
        part, start = _part_at(x, index)  # type: ignore[arg-type]
        return emit(node, aten.select.int, part, dim, index - start)
    return None


def _part_at(joined: fx.Node, index: int) -> tuple[fx.Node, int]:
    """The part of a ``cat`` that holds a position, and where that part begins."""
    start = 0
    for part in joined.args[0]:  # type: ignore[union-attr]
        length = shape_of(part)[joined.args[1]]  # type: ignore[index]
        if index < start + length:
            return part, start  # type: ignore[return-value]
        start += length
    raise IndexError(index)


def _slice(node: fx.Node) -> fx.Node | None:
    if not is_call(node, aten.slice) or not all(isinstance(a, int) for a in node.args[1:]):
        return None
    x, dim, start, end, step = node.args
    length = shape_of(x)[dim]  # type: ignore[index]
    if (start, end, step) == (0, length, 1):
        return x  # type: ignore[return-value]
    if step > 1 and length % step == 0 and start < step and shape_of(node)[dim] == length // step:  # type: ignore[operator, index]
        shape = shape_of(x)
        rows = [*shape[:dim], length // step, step, *shape[dim + 1 :]]  # type: ignore[misc, operator]
        return emit(node, aten.select.int, reshaped(node, x, rows), dim + 1, start)  # type: ignore[operator, arg-type]
    if is_call(x, aten.slice) and x.args[1] == dim and step == 1 and x.args[4] == 1:  # type: ignore[union-attr]
        offset = x.args[2]  # type: ignore[union-attr]
        return emit(node, aten.slice.Tensor, x.args[0], dim, offset + start, offset + end, 1)  # type: ignore[union-attr, operator]
    if is_call(x, aten.cat) and x.args[1] == dim and step == 1:  # type: ignore[union-attr]
        return _slice_of_cat(node, x, dim, start, end)  # type: ignore[arg-type]
    return None


def _slice_of_cat(node: fx.Node, joined: fx.Node, dim: int, start: int, end: int) -> fx.Node:
    parts, at = [], 0
    for part in joined.args[0]:  # type: ignore[union-attr]
        length = shape_of(part)[dim]
        first, last = max(start - at, 0), min(end - at, length)
        if first < last:
            whole = (first, last) == (0, length)
            parts.append(
                part if whole else emit(node, aten.slice.Tensor, part, dim, first, last, 1)
            )
        at += length
    return parts[0] if len(parts) == 1 else emit(node, aten.cat.default, parts, dim)  # type: ignore[return-value]


def _cat(node: fx.Node) -> fx.Node | None:
    parts, dim = list(node.args[0]), node.args[1]  # type: ignore[arg-type]
    if len(parts) == 1:
        return parts[0]
    if any(is_call(p, aten.cat) and p.args[1] == dim for p in parts):
        flat = [
            q
            for p in parts
            for q in (p.args[0] if is_call(p, aten.cat) and p.args[1] == dim else [p])
        ]
        return emit(node, aten.cat.default, flat, dim)
    joined = _rejoined(node, parts, dim)  # type: ignore[arg-type]
    return joined if joined is not None else _gathered_axis(node, parts, dim)  # type: ignore[arg-type]


def rejoined(node: fx.Node) -> fx.Node | None:
    """What a ``cat`` of pieces of one tensor is: that tensor, a run of it, its axes in another
    order; ``None`` if it is nothing simpler."""
    return _cat(node)


def _run_of(part: fx.Node, dim: int) -> tuple[fx.Node, int, int] | None:
    """What a part shows of another tensor along ``dim``: the tensor, from where, to where."""
    if is_call(part, aten.slice) and part.args[1] == dim and part.args[4] == 1:
        return part.args[0], part.args[2], part.args[3]  # type: ignore[return-value]
    if kind(part) is Kind.RESHAPE and is_call(chosen := part.args[0], aten.select):
        x, at, index = chosen.args[:3]  # type: ignore[union-attr]
        kept = shape_of(x)
        kept[at] = 1  # type: ignore[index]
        if at == dim and isinstance(index, int) and shape_of(part) == kept:
            return x, index, index + 1  # type: ignore[return-value]
    return None


def _rejoined(node: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node | None:
    """Neighbouring runs of one tensor → one run."""
    runs = [_run_of(p, dim) for p in parts]
    made: list[Any] = []
    for part, run in zip(parts, runs, strict=True):
        last = made[-1][1] if made else None
        if run is not None and last is not None and last[0] is run[0] and last[2] == run[1]:
            made[-1] = (None, (last[0], last[1], run[2]))
        else:
            made.append((part, run))
    if len(made) == len(parts):
        return None
    new = [p if p is not None else _run(node, run, dim) for p, run in made]
    return new[0] if len(new) == 1 else emit(node, aten.cat.default, new, dim)


def _run(node: fx.Node, run: tuple[fx.Node, int, int], dim: int) -> fx.Node:
    x, start, end = run
    if (start, end) == (0, shape_of(x)[dim]):
        return x
    return emit(node, aten.slice.Tensor, x, dim, start, end, 1)


def _gathered_axis(node: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node | None:
    """All positions of another axis, one after another → that axis in its new place."""
    if shape_of(parts[0])[dim] != 1 or any(kind(p) is not Kind.RESHAPE for p in parts):
        return None
    chosen = [p.args[0] for p in parts]
    if not all(is_call(c, aten.select) and isinstance(c.args[2], int) for c in chosen):  # type: ignore[union-attr]
        return None
    x, axis = chosen[0].args[:2]  # type: ignore[union-attr]
    if any(c.args[:3] != (x, axis, i) for i, c in enumerate(chosen)):  # type: ignore[union-attr]
        return None
    rest = shape_of(parts[0])
    del rest[dim]
    if shape_of(x)[axis] != len(parts) or shape_of(chosen[0]) != rest:  # type: ignore[index]
        return None
    order = [i for i in range(rank(x)) if i != axis]
    return permuted(node, x, [*order[:dim], axis, *order[dim:]])  # type: ignore[arg-type, list-item]


# ---- softmax


def _softmax(node: fx.Node) -> fx.Node | None:
    """What is the same along the axis makes no difference to a softmax."""
    x, dim = node.args[0], node.args[1]
    if not is_call(x, aten.add, aten.sub) or not all(is_tensor(a) for a in x.args[:2]):  # type: ignore[union-attr]
        return None
    a, b = x.args[:2]  # type: ignore[union-attr]
    pairs = [(a, b)] if is_call(x, aten.sub) else [(a, b), (b, a)]
    for scores, shift in pairs:
        missing = rank(x) - rank(shift)
        same = dim < missing or shape_of(shift)[dim - missing] == 1  # type: ignore[operator, index]
        if same and shape_of(scores) == shape_of(x) and shape_of(x)[dim] > 1:  # type: ignore[index]
            return emit(node, node.target, scores, dim)
    return None


def _function(node: fx.Node) -> fx.Node | None:
    """The exponential of a logarithm of a softmax."""
    x = node.args[0]
    if is_call(node, aten.exp) and kind(x) is Kind.LOG_SOFTMAX:
        return emit(node, aten.softmax.int, *x.args)  # type: ignore[union-attr]
    if is_call(node, aten.log) and kind(x) is Kind.SOFTMAX:
        return emit(node, aten.log_softmax.int, *x.args)  # type: ignore[union-attr]
    return None


# ---- numbers


def _as_numbers(node: fx.Node, constants: Constants) -> fx.Node | None:
    """Constant tensors of one number as that number, in sums, products and quotients."""
    what = kind(node)
    if what not in (Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT) or len(node.args) != 2:
        return None
    a, b = node.args
    if is_tensor(b) and (number := _number(node, b, constants)) is not None and is_tensor(a):
        return emit(node, node.target, a, number)
    if is_tensor(a) and (number := _number(node, a, constants)) is not None and is_tensor(b):
        if is_call(node, aten.add, aten.mul):
            return emit(node, node.target, b, number)
        if is_call(node, aten.sub):
            return emit(node, aten.rsub.Scalar, b, number)
    return None


def _number(node: fx.Node, operand: Any, constants: Constants) -> float | int | None:
    other = node.args[1] if operand is node.args[0] else node.args[0]
    if operand is other or val(operand).numel() != 1 or not is_tensor(other):
        return None
    if shape_of(other) != shape_of(node) or val(other).dtype != val(node).dtype:
        return None
    return constants.number(operand)


def _sum(node: fx.Node) -> fx.Node | None:
    """x + 0; a difference of what is turned already."""
    a, b = node.args[0], node.args[1] if len(node.args) > 1 else None
    if _is_zero(b) and _keeps(node, a):
        return a  # type: ignore[return-value]
    if is_call(node, aten.add) and _is_zero(a) and is_tensor(b) and _keeps(node, b):
        return b  # type: ignore[return-value]
    if is_call(node, aten.add, aten.sub) and is_call(b, aten.neg):
        op = aten.sub.Tensor if is_call(node, aten.add) else aten.add.Tensor
        return emit(node, op, a, b.args[0])  # type: ignore[union-attr]
    if is_call(node, aten.add) and is_call(a, aten.neg) and is_tensor(b):
        return emit(node, aten.sub.Tensor, b, a.args[0])  # type: ignore[union-attr]
    return None


def _is_zero(x: Any) -> bool:
    if isinstance(x, (int, float)):
        return x == 0
    if is_call(x, aten.zeros, aten.zeros_like, aten.new_zeros):
        return True
    if is_call(x, aten.full, aten.full_like, aten.new_full):
        return argument(x, "fill_value") == 0
    return kind(x) in (Kind.EXPAND, Kind.RESHAPE, Kind.SLICE) and _is_zero(x.args[0])


def _keeps(node: fx.Node, x: Any) -> bool:
    """Whether ``x`` could stand for ``node``: its shape and its type."""
    return shape_of(x) == shape_of(node) and val(x).dtype == val(node).dtype


def _factor(node: Any) -> tuple[Any, float] | None:
    """x and c where a call is c·x for a number c."""
    if not isinstance(node, fx.Node) or len(node.args) < 2 or not is_tensor(node.args[0]):
        return None
    x, c = node.args[:2]
    if not isinstance(c, (int, float)) or val(node).dtype != val(x).dtype:
        return None
    if kind(node) is Kind.PRODUCT:
        return x, float(c)
    return (x, 1.0 / c) if kind(node) is Kind.QUOTIENT and c else None


def _scale(node: fx.Node) -> fx.Node | None:
    """Factors that are 1, and factors of factors."""
    found = _factor(node)
    if found is None or not val(node).is_floating_point():
        return None
    x, c = found
    if c == 1:
        return x  # type: ignore[no-any-return]
    inner = _factor(x)
    if inner is None or len(x.users) != 1:
        return None
    y, d = inner
    if abs(c * d - 1) < 4 * torch.finfo(torch.float64).eps:
        return y  # type: ignore[no-any-return]
    return emit(node, aten.mul.Tensor, y, c * d)


def _affine(node: fx.Node) -> fx.Node | None:
    x = node.args[0]
    if is_call(node, aten.neg) and is_call(x, aten.neg):
        return x.args[0]  # type: ignore[union-attr, return-value]
    return None


def _total(node: fx.Node) -> fx.Node | None:
    """The sum over an axis along which tensors were laid for it → the sum of those tensors; over
    axes of length 1 nothing is summed."""
    x, dims = node.args[0], argument(node, "dim")
    if not is_call(node, aten.sum, aten.mean) or val(node).dtype != val(x).dtype:
        return None
    dims = [dims] if isinstance(dims, int) else list(dims or range(rank(x)))
    dims = [d % rank(x) for d in dims]
    if all(shape_of(x)[d] == 1 for d in dims):
        return reshaped(node, x, shape_of(node))  # type: ignore[arg-type]
    if not is_call(x, aten.cat) or dims != [x.args[1]]:  # type: ignore[union-attr]
        return None
    parts = list(x.args[0])  # type: ignore[union-attr, arg-type]
    if any(shape_of(p)[dims[0]] != 1 for p in parts) or len(parts) > 64:
        return None
    total = reshaped(node, parts[0], shape_of(node))
    for part in parts[1:]:
        total = emit(node, aten.add.Tensor, total, reshaped(node, part, shape_of(node)))
    return emit(node, aten.div.Tensor, total, len(parts)) if is_call(node, aten.mean) else total


# ---- broadcasting


def _broadcast(node: fx.Node) -> fx.Node | None:
    """An operand that is repeated only to fit the others need not be."""
    for operand in node.all_input_nodes:
        if kind(operand) is not Kind.EXPAND:
            continue
        others = [o for o in node.all_input_nodes if o is not operand]
        source = operand.args[0]
        if not others or not _fits(node, operand, source, others):
            continue
        node.replace_input_with(operand, source)  # type: ignore[arg-type]
        return node
    return None


def _fits(node: fx.Node, operand: fx.Node, source: Any, others: list[fx.Node]) -> bool:
    """Whether the result is of the same shape with the operand's source in its place."""
    kept = 2 if is_call(node, aten.matmul) else 0
    if kept and shape_of(operand)[-kept:] != shape_of(source)[-kept:]:
        return False
    tensors = [source, *others]
    if not all(is_tensor(t) for t in tensors) or (kept and any(rank(t) < 2 for t in tensors)):
        return False
    cut = slice(None, -kept) if kept else slice(None)
    shapes = [shape_of(t)[cut] for t in tensors]
    return list(torch.broadcast_shapes(*map(tuple, shapes))) == shape_of(node)[cut]


RULES: dict[Kind, Callable[[fx.Node], fx.Node | None]] = {
    Kind.RESHAPE: _reshape,
    Kind.PERMUTE: _permute,
    Kind.EXPAND: _expand,
    Kind.SELECT: _select,
    Kind.SLICE: _slice,
    Kind.JOIN: _cat,
    Kind.SUM: _sum,
    Kind.PRODUCT: _scale,
    Kind.QUOTIENT: _scale,
    Kind.AFFINE: _affine,
    Kind.TOTAL: _total,
    Kind.SOFTMAX: _softmax,
    Kind.FUNCTION: _function,
}
