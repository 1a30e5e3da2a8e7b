"""Sums by index that bring one value to every place: the values in order."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import is_call
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_number,
    rank,
    shape_of,
)


def picked_once(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A sum by index onto zeros that brings one value to every place → those values, in order."""
    base, dim, index, source = arguments(node)[:4]
    axis, size = dim % rank(node), shape_of(node)[dim]
    places = constants.value(index)
    if not is_number(base, 0) or shape_of(source) != shape_of(node) or places is None:
        return None
    if is_call(node, aten.scatter_add):
        line = places.movedim(axis, -1).reshape(-1, places.shape[axis])
        if shape_of(index) != shape_of(node) or not bool((line == line[:1]).all()):
            return None
        places = line[0]
    if not torch.equal(places.flatten().sort().values.long(), torch.arange(size)):
        return None
    order = emit(node, Held(places.flatten().argsort().to(constants.device)))
    return emit(node, aten.index.Tensor, source, [*[None] * axis, order])
