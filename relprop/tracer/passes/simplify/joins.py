"""Pieces of one tensor that are joined again."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)

MOST_RUNS = 16


def simpler_index(node: fx.Node, constants: Constants) -> fx.Node | None:
    """Positions picked by constants that follow one another, or evenly spaced → a run of them."""
    x, indices = operand(node), list(arguments(node)[1])
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) != 1 or rank(indices[used[0]]) != 1 or is_live(indices[used[0]]):
        return None
    where, dim = constants.value(indices[used[0]]), used[0]
    if not isinstance(where, Tensor) or where.dtype == torch.bool or not len(where):
        return None
    whole, known = positions_joined(x, dim)
    places = [known[p] for p in where.tolist()]
    step = places[1] - places[0] if len(places) > 1 else 1
    if step < 1 or places != list(range(places[0], places[-1] + 1, step)):
        return None
    if step > 1:
        return emit(node, aten.slice.Tensor, whole, dim, places[0], places[-1] + 1, step)
    return run_of(node, (whole, places[0], places[-1] + 1), dim)


def positions_joined(x: fx.Node, dim: int) -> tuple[fx.Node, list[int]]:
    """The tensor whose pieces ``x`` joins along an axis, and the places that they had in it."""
    parts = joined(x) if is_call(x, aten.cat) and arguments(x)[1] == dim else []
    cuts = [arguments(p) for p in parts if is_call(p, aten.slice) and arguments(p)[1] == dim]
    if not parts or len(cuts) < len(parts) or len({c[0] for c in cuts}) > 1:
        return x, list(range(shape_of(x)[dim]))
    return cuts[0][0], [p for c in cuts for p in range(*c[2:5])]


def simpler_cat(node: fx.Node) -> fx.Node | None:
    """Of one tensor, of joined ones, of the pieces of one."""
    parts, dim = joined(node), arguments(node)[1]
    if len(parts) == 1:
        return parts[0]
    if any(is_call(p, aten.cat) and arguments(p)[1] == dim for p in parts):
        flat = [
            q
            for p in parts
            for q in (joined(p) if is_call(p, aten.cat) and arguments(p)[1] == dim else [p])
        ]
        return emit(node, aten.cat.default, flat, dim)
    whole = _rejoined(node, parts, dim)
    return whole if whole is not None else _gathered_axis(node, parts, dim)


def shown(part: fx.Node, dim: int) -> tuple[fx.Node, int, int] | None:
    """What a part shows of another tensor along ``dim``: the tensor, from where, to where."""
    if is_call(part, aten.slice) and arguments(part)[1] == dim and arguments(part)[4] == 1:
        return operand(part), arguments(part)[2], arguments(part)[3]
    if kind(part) is Kind.RESHAPE and is_call(chosen := operand(part), aten.select):
        x, at, index = arguments(chosen)[:3]
        kept = shape_of(x)
        kept[at] = 1
        if at == dim and isinstance(index, int) and shape_of(part) == kept:
            return x, index, index + 1
    return None


def _rejoined(node: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node | None:
    """Neighbouring runs of one tensor → one run."""
    runs = [shown(p, dim) for p in parts]
    made: list[Any] = []
    for part, run in zip(parts, runs, strict=True):
        last = made[-1][1] if made else None
        if run is not None and last is not None and last[0] is run[0] and last[2] == run[1]:
            made[-1] = (None, (last[0], last[1], run[2]))
        else:
            made.append((part, run))
    if len(made) == len(parts):
        return None
    new = [p if p is not None else run_of(node, run, dim) for p, run in made]
    return new[0] if len(new) == 1 else emit(node, aten.cat.default, new, dim)


def run_of(node: fx.Node, run: tuple[fx.Node, int, int], dim: int) -> fx.Node:
    """The positions of a tensor from one to another, along an axis."""
    x, start, end = run
    if (start, end) == (0, shape_of(x)[dim]):
        return x
    return emit(node, aten.slice.Tensor, x, dim, start, end, 1)


def _gathered_axis(node: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node | None:
    """All positions of another axis, one after another → that axis in its new place."""
    if shape_of(parts[0])[dim] != 1 or any(kind(p) is not Kind.RESHAPE for p in parts):
        return None
    chosen = [operand(p) for p in parts]
    if not all(is_call(c, aten.select) and isinstance(arguments(c)[2], int) for c in chosen):
        return None
    x, axis = arguments(chosen[0])[:2]
    if any(arguments(c)[:3] != (x, axis, i) for i, c in enumerate(chosen)):
        return None
    rest = shape_of(parts[0])
    del rest[dim]
    if shape_of(x)[axis] != len(parts) or shape_of(chosen[0]) != rest:
        return None
    order = [i for i in range(rank(x)) if i != axis]
    return permuted(node, x, [*order[:dim], axis, *order[dim:]])


def chosen_runs(node: fx.Node, constants: Constants) -> fx.Node | None:
    """One tensor in some positions of an axis, which do not depend on any input, and another in the
    rest → their runs, one after another."""
    if not is_call(node, aten.where) or not all(is_float(v) for v in arguments(node)[1:]):
        return None
    sides, mask = arguments(node)[1:], constants.value(operand(node))
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


def _run_across(node: fx.Node, x: fx.Node, dim: int, start: int, end: int) -> fx.Node:
    """A run of positions of what is broadcast to ``node``."""
    x = reshaped(node, x, [1] * (rank(node) - rank(x)) + shape_of(x))
    x = x if shape_of(x)[dim] == 1 else run_of(node, (x, start, end), dim)
    shape = shape_of(node)
    return expanded(node, x, [*shape[:dim], end - start, *shape[dim + 1 :]])
