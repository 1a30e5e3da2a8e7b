"""Windows of a tensor, laid beside each other one by one, are positions picked all at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.parts import Part

CUTS = frozenset({Kind.SLICE, Kind.SELECT, Kind.RESHAPE, Kind.EXPAND, Kind.JOIN})


def windows(node: fx.Node, constants: Constants) -> fx.Node | None:
    """``stack([x[..., 0:4], x[..., 2:6], ...])`` → ``x.unfold(-1, 4, 2)``, or the positions that
    stand in each window; ``None`` for anything else."""
    new = node.args[1]
    if any(shape_of(p)[new] != 1 or kind(p) is not Kind.RESHAPE for p in node.args[0]):  # type: ignore[index, union-attr]
        return None
    inner, sources = _cuts(node, CUTS)
    if len(sources) != 1 or rank(source := sources.pop()) + 1 != rank(node):
        return None
    shape, target = shape_of(source), shape_of(node)
    given = torch.arange(val(source).numel()).reshape(shape)
    found = Part((source,), node, tuple(inner), constants)(given)
    for axis in range(rank(source)):
        places = _along(found, shape, axis, new)  # type: ignore[arg-type]
        if places is None:
            continue
        count, width = places.shape
        step = int(places[1, 0] - places[0, 0])
        regular = torch.arange(count)[:, None] * step + torch.arange(width)
        if step > 0 and torch.equal(places, regular) and width > 1:
            made = emit(node, aten.unfold.default, source, axis, width, step)
            made = emit(node, aten.slice.Tensor, made, axis, 0, count, 1)
            order = [*range(axis + 1), rank(node) - 1, *range(axis + 1, rank(node) - 1)]
            made = permuted(node, made, order)
            if step == width and count * width == shape[axis]:
                made = reshaped(node, source, [*shape[:axis], count, width, *shape[axis + 1 :]])
        else:
            held = emit(node, Held(places.to(constants.device)))
            made = emit(node, aten.index.Tensor, source, [*[None] * axis, held])
        order = [i for i in range(rank(node)) if i != axis]
        made = permuted(node, made, [*order[:new], axis, *order[new:]])  # type: ignore[misc]
        return made if shape_of(made) == target else None
    return None


def put_together(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A tensor into which another is written piece by piece, until it is the other; pieces that
    are joined and laid out as they were."""
    written = kind(node) is Kind.WRITE and all(kind(u) is not Kind.WRITE for u in node.users)
    if not written and not (kind(node) is Kind.RESHAPE and kind(node.args[0]) is Kind.JOIN):
        return None
    inner, sources = _cuts(node, MOVES)
    live = [n for n in sources if is_live(n)]
    if len(live) != 1 or val(source := live[0]).numel() != val(node).numel():
        return None
    part = Part((source,), node, tuple(inner), constants)
    if not part.is_small:
        return None
    numbers = 1 + torch.arange(val(source).numel(), dtype=torch.float64)
    try:
        found = part(numbers.reshape(shape_of(source)))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    same = torch.equal(found.flatten(), numbers)
    return reshaped(node, source, shape_of(node)) if same else None


def _cuts(node: fx.Node, kinds: frozenset[Kind]) -> tuple[list[fx.Node], set[fx.Node]]:
    """What moves numbers until they stand in ``node``, in order, and where they come from."""
    inner: set[fx.Node] = set()
    sources: set[fx.Node] = set()
    left = [node]
    while left:
        here = left.pop()
        if here.op == "call_function" and kind(here) in kinds and is_live(here):
            inner.add(here)
            left += [i for i in tensor_inputs(here) if i not in inner]
        else:
            sources.add(here)
    return sorted(inner), sources


def _along(found: Tensor, shape: list[int], axis: int, new: int) -> Tensor | None:
    """The positions (windows, width) of ``axis`` that stand in windows, laid along the ``new``
    axis; ``None`` if that is not all there is to it."""
    windowed = found.movedim(new, axis)
    beside = [*windowed.shape[:axis], *windowed.shape[axis + 2 :]]
    if beside != [*shape[:axis], *shape[axis + 1 :]]:
        return None
    here: list[Any] = [0] * windowed.dim()
    here[axis : axis + 2] = [slice(None), slice(None)]
    stride = int(torch.tensor(shape[axis + 1 :]).prod()) if axis + 1 < len(shape) else 1
    places = windowed[tuple(here)] // stride % shape[axis]
    index: list[Any] = [slice(None)] * len(shape)
    index[axis] = places
    whole = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    return places if torch.equal(whole[tuple(index)], windowed) else None
