"""Writes at places that do not depend on any input: runs of an axis, one after another."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import argument, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, expanded, is_live, shape_of, val
from relprop.tracer.passes.simplify.joins import MOST_RUNS
from relprop.tracer.passes.writes.places import put_slice


def put_in_runs(node: fx.Node, constants: Constants) -> fx.Node | None:
    """``index_put`` by constants along one axis → what is written there, between what stays."""
    indices, part = arguments(node)[1:3]
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) != 1 or argument(node, "accumulate") or is_live(indices[used[0]]):
        return None
    dim, where = used[0], constants.value(indices[used[0]])
    if not isinstance(where, Tensor) or where.dim() != 1 or where.is_floating_point():
        return None
    whole: fx.Node = operand(node)
    if where.dtype == torch.bool or val(part).dtype != val(whole).dtype:
        return None
    shape = shape_of(whole)
    places = [int(w) % shape[dim] for w in where]
    runs = _runs(places)
    if not places or len(runs) > MOST_RUNS or len(set(places)) < len(places):
        return None
    part, first = expanded(node, part, [*shape[:dim], len(places), *shape[dim + 1 :]]), 0
    for run in runs:
        cut = (first, first + len(run), 1)
        piece = part if len(runs) == 1 else emit(node, aten.slice.Tensor, part, dim, *cut)
        whole, first = put_slice(node, whole, piece, dim, run), first + len(run)
    return whole


def _runs(places: list[int]) -> list[range]:
    """Evenly spaced places, as few runs of them as follow one another."""
    found: list[range] = []
    for place in places:
        last = found[-1] if found else range(0)
        step = place - last[-1] if len(last) else 0
        if len(last) and step > 0 and (len(last) == 1 or step == last.step):
            found[-1] = range(last[0], place + 1, step)
        else:
            found.append(range(place, place + 1))
    return found
