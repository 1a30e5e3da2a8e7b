"""Writes at places that do not depend on any input are runs of an axis, one after another."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import argument, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    shape_of,
    val,
)
from relprop.tracer.passes.simplify.joins import MOST_RUNS
from relprop.tracer.passes.writes.places import put_slice


def _at_all(at: fx.Node, write: fx.Node, dim: int, count: int) -> fx.Node:
    """What is written, a number for each of ``count`` places of an axis."""
    shape = shape_of(write)
    return expanded(at, arguments(write)[2], [*shape[:dim], count, *shape[dim + 1 :]])


def _places(node: fx.Node, constants: Constants) -> tuple[int, list[int]] | None:
    """The one axis along which constants say where an ``index_put`` writes, and the places, none of
    them twice."""
    indices, part = arguments(node)[1:3]
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) != 1 or argument(node, "accumulate") or is_live(indices[used[0]]):
        return None
    dim, where = used[0], constants.value(indices[used[0]])
    if not isinstance(where, Tensor) or where.dim() != 1 or where.is_floating_point():
        return None
    if where.dtype == torch.bool or val(part).dtype != val(operand(node)).dtype:
        return None
    places = [int(w) % shape_of(node)[dim] for w in where]
    return (dim, places) if places and len(set(places)) == len(places) else None


def put_in_runs(node: fx.Node, constants: Constants) -> fx.Node | None:
    """``index_put`` by constants along one axis → what is written there, between what stays."""
    found = _places(node, constants)
    if found is None or len(runs := _runs(found[1])) > MOST_RUNS:
        return None
    dim, places = found
    whole: fx.Node = operand(node)
    part, first = _at_all(node, node, dim, len(places)), 0
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
