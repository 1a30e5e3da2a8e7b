"""Moves that undo each other, and pieces of one tensor that are joined again."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)

MOST_RUNS = 16


def simpler_reshape(node: fx.Node) -> fx.Node | None:
    """Of a reshape; of one position, which is a selection; of rows that are treated one by one."""
    x, shape = node.args[0], shape_of(node)
    if shape_of(x) == shape:
        return x  # type: ignore[return-value]
    if kind(x) is Kind.RESHAPE:
        return reshaped(node, x.args[0], shape)  # type: ignore[union-attr, arg-type]
    if is_call(x, aten.slice) and isinstance(x.args[2], int):  # type: ignore[union-attr]
        dim, left = x.args[1], shape_of(x)  # type: ignore[union-attr]
        if left[dim] == 1 and shape == [*left[:dim], *left[dim + 1 :]]:  # type: ignore[index, misc, operator]
            return emit(node, aten.select.int, x.args[0], dim, x.args[2])  # type: ignore[union-attr]
    return _of_sum(node) or _of_rows(node, x, shape)  # type: ignore[arg-type]


def _of_sum(node: fx.Node) -> fx.Node | None:
    """Tensors that were laid out otherwise, added and laid back → added as they lay."""
    total: Any = node.args[0]
    if kind(total) is not Kind.SUM or len(total.users) != 1 or total.kwargs:
        return None
    if not all(is_float(a) and shape_of(a) == shape_of(total) for a in total.args):
        return None
    back = any(
        kind(a) is kind(node) and shape_of(a.args[0]) == shape_of(node) and is_live(a)
        for a in total.args
    )
    if not back:
        return None
    laid = [emit(node, node.target, a, *node.args[1:]) for a in total.args]
    return emit(node, total.target, *laid)


def _of_rows(node: fx.Node, x: fx.Node, shape: list[int]) -> fx.Node | None:
    """What is done to each row makes no difference to how the rows lie: laid out, treated and laid
    back is treated."""
    before = x.args[0] if x.args else None
    of_each = kind(x) in (Kind.FUNCTION, Kind.AFFINE)
    if not of_each and not is_call(x, aten.layer_norm, aten.rms_norm, aten.linear):
        return None
    if len(x.users) != 1:
        return None
    if not isinstance(before, fx.Node) or kind(before) is not Kind.RESHAPE:
        return None
    y: Any = before.args[0]
    if shape_of(y)[-1:] != shape_of(before)[-1:] or shape_of(y)[:-1] != shape[:-1]:
        return None
    along = argument(x, "normalized_shape")
    if any(is_live(n) for n in x.all_input_nodes[1:]) or (along and len(along) > 1):
        return None
    others = [n for n in x.all_input_nodes[1:] if rank(n) > (2 if kind(x) is Kind.LINEAR else 1)]
    plain = isinstance(x.target, torch._ops.OpOverload)
    made = emit(node, x.target, y, *x.args[1:], **x.kwargs) if plain and not others else None
    return made if made is not None and shape_of(made) == shape else None


def simpler_permute(node: fx.Node) -> fx.Node | None:
    """Of an order that was changed before; of axes of length 1 alone."""
    x, dims = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    if dims == sorted(dims):
        return x  # type: ignore[return-value]
    if is_call(x, aten.permute):
        return permuted(node, x.args[0], [x.args[1][d] for d in dims])  # type: ignore[union-attr, index]
    long = [d for d in dims if shape_of(x)[d] != 1]
    return reshaped(node, x, shape_of(node)) if long == sorted(long) else _of_sum(node)  # type: ignore[arg-type]


def simpler_expand(node: fx.Node) -> fx.Node | None:
    """Of nothing, or of what was expanded before."""
    x = node.args[0]
    if shape_of(x) == shape_of(node):
        return x  # type: ignore[return-value]
    return expanded(node, x.args[0], shape_of(node)) if kind(x) is Kind.EXPAND else None  # type: ignore[union-attr, arg-type]


def simpler_select(node: fx.Node) -> fx.Node | None:
    """Of the one position there is, of a run, of tensors that were joined; the last of the running
    sums."""
    x, dim, index = node.args[:3]
    if not isinstance(index, int) or not isinstance(dim, int):
        return None
    if shape_of(x)[dim] == 1:
        return reshaped(node, x, shape_of(node))  # type: ignore[arg-type]
    if kind(x) is Kind.SLICE and x.args[1] == dim and is_call(x, aten.slice):  # type: ignore[union-attr]
        return emit(node, aten.select.int, x.args[0], dim, x.args[2] + index * x.args[4])  # type: ignore[union-attr, operator]
    if is_call(x, aten.cumsum) and len(x.users) == 1 and not x.kwargs:  # type: ignore[union-attr]
        along, last = x.args[1] % rank(x), shape_of(x)[dim] - 1  # type: ignore[union-attr, operator]
        return (
            emit(node, aten.sum.dim_IntList, x.args[0], [dim])
            if (along, last) == (dim, index)
            else None
        )  # type: ignore[union-attr]
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


def simpler_slice(node: fx.Node) -> fx.Node | None:
    """Of everything, of a run, of tensors that were joined, of axes that were merged."""
    if not is_call(node, aten.slice) or not all(isinstance(a, int) for a in node.args[1:]):
        return None
    x, dim, start, end, step = node.args
    length = shape_of(x)[dim]  # type: ignore[index]
    if (start, end, step) == (0, length, 1):
        return x  # type: ignore[return-value]
    if is_call(x, aten.slice) and x.args[1] == dim and step == 1 and x.args[4] == 1:  # type: ignore[union-attr]
        offset = x.args[2]  # type: ignore[union-attr]
        return emit(node, aten.slice.Tensor, x.args[0], dim, offset + start, offset + end, 1)  # type: ignore[union-attr, operator]
    if is_call(x, aten.cat) and x.args[1] == dim and step == 1:  # type: ignore[union-attr]
        return _slice_of_cat(node, x, dim, start, end)  # type: ignore[arg-type]
    if is_call(x, aten.constant_pad_nd) and step == 1:
        return _slice_of_padded(node, x, dim, start, end)  # type: ignore[arg-type]
    return _slice_of_merged(node, x, dim, start, end) if step == 1 else None  # type: ignore[arg-type]


def _slice_of_padded(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> fx.Node | None:
    """A run inside of what was padded, along the only axis that was."""
    around, place = list(x.args[1]), 2 * (rank(x) - 1 - dim)  # type: ignore[arg-type]
    before, others = sum(around[place : place + 1]), around[:place] + around[place + 2 :]
    inside = before <= start and end <= before + shape_of(x.args[0])[dim]
    if not inside or any(others) or min(around) < 0:
        return None
    return emit(node, aten.slice.Tensor, x.args[0], dim, start - before, end - before, 1)


def _slice_of_merged(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> fx.Node | None:
    """A run of an axis that several were merged into, where it is a run of the first of them."""
    if kind(x) is not Kind.RESHAPE:
        return None
    y: Any = x.args[0]
    long, before = shape_of(y), math.prod(shape_of(x)[:dim])
    first = next((i for i in range(len(long)) if math.prod(long[:i]) == before), None)
    while first is not None and first < len(long) - 1 and long[first] == 1:
        first += 1
    after = math.prod(shape_of(x)[dim + 1 :])
    if first is None or math.prod(long[first:]) != shape_of(x)[dim] * after:
        return None
    step, rest = divmod(math.prod(long[first + 1 :]), after)
    if rest or step < 2 or start % step or end % step or long[first] * step != shape_of(x)[dim]:
        return None
    run = emit(node, aten.slice.Tensor, y, first, start // step, end // step, 1)
    return reshaped(node, run, shape_of(node))


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


def simpler_index(node: fx.Node, constants: Constants) -> fx.Node | None:
    """Positions picked by constants that follow one another → a run of them."""
    x, indices = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) != 1 or rank(indices[used[0]]) != 1 or is_live(indices[used[0]]):
        return None
    where, dim = constants.value(indices[used[0]]), used[0]
    if not isinstance(where, Tensor) or where.dtype == torch.bool or not len(where):
        return None
    places = [int(w) % shape_of(x)[dim] for w in where]
    whole, known = positions_joined(x, dim)  # type: ignore[arg-type]
    places = [known[p] for p in places]
    if places != list(range(places[0], places[0] + len(places))):
        return None
    return _run(node, (whole, places[0], places[-1] + 1), dim)


def positions_joined(x: fx.Node, dim: int) -> tuple[fx.Node, list[int]]:
    """The tensor whose pieces ``x`` joins along an axis, and the places that they had in it."""
    parts = list(x.args[0]) if is_call(x, aten.cat) and x.args[1] == dim else []  # type: ignore[arg-type]
    cuts = [p.args for p in parts if is_call(p, aten.slice) and p.args[1] == dim]
    if not parts or len(cuts) < len(parts) or len({c[0] for c in cuts}) > 1:
        return x, list(range(shape_of(x)[dim]))
    return cuts[0][0], [p for c in cuts for p in range(*c[2:5])]


def simpler_pad(node: fx.Node) -> fx.Node | None:
    """Of nothing; what is put on at one end and taken off at the other moves the rest."""
    return None if any(node.args[1]) else node.args[0]  # type: ignore[arg-type, return-value]


def simpler_cat(node: fx.Node) -> fx.Node | None:
    """Of one tensor, of joined ones, of the pieces of one."""
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


def chosen_runs(node: fx.Node, constants: Constants) -> fx.Node | None:
    """One tensor in some positions of an axis, which do not depend on any input, and another in the
    rest → their runs, one after another."""
    if not is_call(node, aten.where) or not all(is_float(v) for v in node.args[1:]):
        return None
    sides, mask = node.args[1:], constants.value(node.args[0])  # type: ignore[arg-type]
    wrong = any(val(v).dtype != val(node).dtype or constants.number(v) is not None for v in sides)
    if wrong or not isinstance(mask, Tensor) or not is_live(node):
        return None
    mask = mask.reshape([1] * (rank(node) - mask.dim()) + list(mask.shape))
    dim = max(range(rank(node)), key=lambda d: mask.shape[d])
    lines = mask.movedim(dim, -1).reshape(-1, mask.shape[dim])
    runs = [(first, len(list(run))) for first, run in groupby(lines[0].tolist())]
    if len(runs) > MOST_RUNS or lines.shape[1] == 1 or not bool((lines == lines[:1]).all()):
        return None
    parts, at = [], 0
    for first, length in runs:
        parts.append(_run_across(node, sides[not first], dim, at, at + length))
        at += length
    return parts[0] if len(parts) == 1 else emit(node, aten.cat.default, parts, dim)


def _run_across(node: fx.Node, x: Any, dim: int, start: int, end: int) -> fx.Node:
    """A run of positions of what is broadcast to ``node``."""
    x = reshaped(node, x, [1] * (rank(node) - rank(x)) + shape_of(x))
    x = x if shape_of(x)[dim] == 1 else _run(node, (x, start, end), dim)
    shape = shape_of(node)
    return expanded(node, x, [*shape[:dim], end - start, *shape[dim + 1 :]])
