"""Windows that are laid beside each other one by one are positions picked all at once."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    joined,
    permuted,
    rank,
    shape_of,
    val,
)
from relprop.tracer.passes.simplify.layouts import cuts
from relprop.tracer.passes.trials.parts import Piece

CUTS = frozenset({Kind.SLICE, Kind.SELECT, Kind.RESHAPE, Kind.EXPAND, Kind.JOIN})


def windows(node: fx.Node, constants: Constants) -> fx.Node | None:
    """``stack([x[..., 0:4], x[..., 2:6], ...])`` → ``x[..., places]``, the positions that stand in
    each window; ``None`` for anything else."""
    parts, new = joined(node), arguments(node)[1]
    if len(parts) < 2 or any(shape_of(p)[new] != 1 or kind(p) is not Kind.RESHAPE for p in parts):
        return None
    inner, sources = cuts(node, CUTS)
    if len(sources) != 1 or rank(source := sources.pop()) + 1 != rank(node):
        return None
    shape = shape_of(source)
    given = torch.arange(val(source).numel()).reshape(shape)
    found = Piece((source,), node, tuple(inner), constants)(given)
    for axis in range(rank(source)):
        places = _along(found, shape, axis, new)
        if places is None or len(places) < 2:
            continue
        held = emit(node, Held(places.to(constants.device)))
        made = emit(node, aten.index.Tensor, source, [*[None] * axis, held])
        order = [i for i in range(rank(node)) if i != axis]
        made = permuted(node, made, [*order[:new], axis, *order[new:]])
        return made if shape_of(made) == shape_of(node) else None
    return None


def _along(found: Tensor, shape: list[int], axis: int, new: int) -> Tensor | None:
    """The positions (windows, width) of ``axis`` that stand in windows, laid along the ``new``
    axis; ``None`` if that is not all there is to it."""
    windowed = found.movedim(new, axis)
    beside = [*windowed.shape[:axis], *windowed.shape[axis + 2 :]]
    if beside != [*shape[:axis], *shape[axis + 1 :]]:
        return None
    here: list[int | slice] = [0] * windowed.dim()
    here[axis : axis + 2] = [slice(None), slice(None)]
    stride = int(torch.tensor(shape[axis + 1 :]).prod()) if axis + 1 < len(shape) else 1
    places = windowed[tuple(here)] // stride % shape[axis]
    index: list[slice | Tensor] = [slice(None)] * len(shape)
    index[axis] = places
    whole = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    return places if torch.equal(whole[tuple(index)], windowed) else None
