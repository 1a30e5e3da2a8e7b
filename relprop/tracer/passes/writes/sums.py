"""Sums by index that are added, or that bring one value to every place: one sum, one write after
another, or the values in order."""

from __future__ import annotations

import torch
from torch import fx

from relprop.operations import is_call, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_number,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.sums.terms import added, is_top, terms_of
from relprop.tracer.passes.writes.masks import case_of, mask_of


def join_sums_by_index(graph: fx.Graph) -> None:
    """Sums by index onto zeros, added (the tokens of one expert after those of another) → one sum
    by all their indices; writes, where no two values come to one place."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        parts = [n for sign, n in terms if sign > 0 and _onto_zeros(n)]
        if len(parts) > 1 and len({tuple(shape_of(n)) for n in parts}) == 1:
            summed = all(is_call(n, aten.index_add) for n in parts)
            alike = summed and len({arguments(n)[1] for n in parts}) == 1
            one = _written_apart(node, parts) or (_summed_at_once(node, parts) if alike else None)
            if one is not None:
                rest = [(sign, n) for sign, n in terms if sign < 0 or n not in parts]
                swap(node, added(node, [*rest, (1, one)]))


def _summed_at_once(at: fx.Node, parts: list[fx.Node]) -> fx.Node:
    zeros, dim = arguments(parts[0])[:2]
    places = [reshaped(at, arguments(n)[2], [-1]) for n in parts]
    where = emit(at, aten.cat.default, places, 0)
    values = emit(at, aten.cat.default, [arguments(n)[3] for n in parts], dim)
    return emit(at, aten.index_add.default, zeros, dim, where, values)


def _written_apart(at: fx.Node, parts: list[fx.Node]) -> fx.Node | None:
    """One write after another, if each is where the same whole numbers are another number."""
    writes = [_write_of(at, n) for n in parts]
    cases = [case_of(mask_of(indices)) for indices, _ in writes]
    if None in cases or len(set(cases)) < len(cases) or len({c[0] for c in cases if c}) > 1:
        return None
    made = operand(parts[0])
    for indices, values in writes:
        made = emit(at, aten.index_put.default, made, indices, values)
    return made


def _write_of(at: fx.Node, n: fx.Node) -> tuple[list[fx.Node | None], fx.Node]:
    """The indices of a write or a sum by index, and the values."""
    if is_call(n, aten.index_put):
        return list(arguments(n)[1]), arguments(n)[2]
    where = reshaped(at, arguments(n)[2], [-1])
    return [*[None] * (arguments(n)[1] % rank(n)), where], arguments(n)[3]


def _onto_zeros(node: fx.Node) -> bool:
    """Whether a call that nothing else reads brings values to places of zeros, by an index."""
    if not is_call(node, aten.index_add, aten.index_put) or len(node.users) != 1 or node.kwargs:
        return False
    accumulates = is_call(node, aten.index_put) and len(node.args) > 3
    return is_number(operand(node), 0) and not accumulates


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
