"""Positions at which only constants stand (a class token that was joined to an input's tokens):
what is made of them alone is a constant, be they cut out before or afterwards."""

from __future__ import annotations

from torch import fx

from relprop.operations import ELEMENTWISE, Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    is_tensor,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.softmax_rows import after_reshape

#: Some positions of a tensor: which, along which axis, from where, to where.
Run = tuple[fx.Node, int, int, int]


def cut_constants(graph: fx.Graph) -> None:
    """A run of positions that depend on no input → what is made of constants alone."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.slice, aten.select) or not is_live(node):
            continue
        x, dim, start = arguments(node)[:3]
        one = is_call(node, aten.select)
        if not isinstance(start, int) or start < 0 or not (one or arguments(node)[4] == 1):
            continue
        run = (x, dim, start, start + 1 if one else arguments(node)[3])
        if (found := _reads(run)) is not None:
            new = _made(node, found)[run]
            swap(node, reshaped(node, new, shape_of(node)))


def _reads(run: Run) -> dict[Run, list[Run]] | None:
    """What a run is made of, down to constants, and what each of that is made of; ``None`` where
    an input has a part in it."""
    found: dict[Run, list[Run]] = {}
    left = [run]
    while left:
        here = left.pop()
        if here in found:
            continue
        above = [] if not is_live(here[0]) else _above(*here)
        if above is None:
            return None
        found[here] = above
        left += above
    return found


def _above(node: fx.Node, dim: int, start: int, end: int) -> list[Run] | None:
    """The runs of which a call makes one of its result, position by position."""
    what = kind(node)
    if is_call(node, aten.cat):
        if arguments(node)[1] != dim:
            return [(part, dim, start, end) for part in joined(node)]
        found, at = list[Run](), 0
        for part in joined(node):
            length = shape_of(part)[dim]
            first, last = max(start - at, 0), min(end - at, length)
            found += [(part, dim, first, last)] if first < last else []
            at += length
        return found
    if what is Kind.PERMUTE:
        return [(operand(node), arguments(node)[1][dim], start, end)]
    if what is Kind.RESHAPE:
        below = after_reshape(tuple(shape_of(node)), tuple(shape_of(operand(node))), dim)
        same = below is not None and shape_of(operand(node))[below] == shape_of(node)[dim]
        return [(operand(node), below, start, end)] if same else None  # type: ignore[list-item]
    if is_call(node, aten.slice) and arguments(node)[1] != dim:
        return [(operand(node), dim, start, end)]
    if is_call(node, aten.select):
        return [(operand(node), dim + (arguments(node)[1] <= dim), start, end)]
    if what in ELEMENTWISE or what is Kind.EXPAND:
        return [_of_operand(node, x, dim, start, end) for x in node.args if is_tensor(x)]
    normed = len(arguments(node)[1]) if is_call(node, aten.layer_norm, aten.rms_norm) else 1
    if is_call(node, aten.linear, aten.layer_norm, aten.rms_norm) and dim < rank(node) - normed:
        return [(operand(node), dim, start, end)]
    return None


def _of_operand(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> Run:
    """Of an operand that may be repeated along the axis."""
    axis = dim - rank(node) + rank(x)
    if axis < 0:
        return x, 0, 0, shape_of(x)[0] if rank(x) else 1
    return (x, axis, start, end) if shape_of(x)[axis] > 1 else (x, axis, 0, 1)


def _made(at: fx.Node, found: dict[Run, list[Run]]) -> dict[Run, fx.Node]:
    """Each run, made of those above it."""
    made: dict[Run, fx.Node] = {}
    for run in sorted(found, key=lambda r: r[0]):
        node, dim, start, end = run
        if not found[run]:
            whole = rank(node) == 0 or (start, end) == (0, shape_of(node)[dim])
            made[run] = node if whole else emit(at, aten.slice.Tensor, node, dim, start, end, 1)
            continue
        made[run] = _again(at, run, [made[above] for above in found[run]])
    return made


def _again(at: fx.Node, run: Run, parts: list[fx.Node]) -> fx.Node:
    """The call of some positions alone."""
    node, dim, start, end = run
    shape = shape_of(node)
    shape[dim] = end - start
    if is_call(node, aten.cat):
        return (
            parts[0] if len(parts) == 1 else emit(at, aten.cat.default, parts, arguments(node)[1])
        )
    if kind(node) is Kind.PERMUTE:
        return permuted(at, parts[0], arguments(node)[1])
    if kind(node) is Kind.RESHAPE:
        return reshaped(at, parts[0], shape)
    if kind(node) is Kind.EXPAND:
        return expanded(at, parts[0], shape)
    rest = iter(parts)
    if kind(node) in ELEMENTWISE:
        args = [next(rest) if is_tensor(a) else a for a in node.args]
    else:
        args = [parts[0], *arguments(node)[1:]]
    return emit(at, node.target, *args, **node.kwargs)
