"""Writes at places that do not depend on any input: those that fill an axis are joined, others are
runs of it, one after another."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import argument, is_call, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.simplify.joins import MOST_RUNS
from relprop.tracer.passes.writes.places import put_slice


def join_writes(graph: fx.Graph, constants: Constants) -> None:
    """Writes by constants along one axis that come, one after another, to every place once → what
    is written, joined, each in its place."""
    for node in reversed(list(graph.nodes)):
        if not node._erased and is_live(node) and (new := _filled(node, constants)) is not None:
            swap(node, new)


def _filled(node: fx.Node, constants: Constants) -> fx.Node | None:
    parts: list[fx.Node] = []
    order: list[int] = []
    whole, dim = node, -1
    while is_call(whole, aten.index_put) and (whole is node or len(whole.users) == 1):
        found = _places(whole, constants)
        if found is None or (parts and found[0] != dim) or not set(order).isdisjoint(found[1]):
            return None
        dim, places = found
        parts.insert(0, _at_all(node, whole, dim, len(places)))
        order, whole = [*places, *order], operand(whole)
        if len(order) == shape_of(node)[dim]:
            break
    if len(parts) < 2 or len(order) < shape_of(node)[dim]:
        return None
    beside = emit(node, aten.cat.default, parts, dim)
    back = emit(node, Held(torch.tensor(order).argsort()))
    return emit(node, aten.index.Tensor, beside, [*[None] * dim, back])


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
