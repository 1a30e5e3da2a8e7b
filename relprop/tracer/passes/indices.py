"""Writes and sums by index, in few forms: what is picked changes place, what is brought to one
place is added there."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_number,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.sums import added, is_top, terms_of
from relprop.tracer.passes.writes import put, put_slice


def summed_by_index(node: fx.Node) -> fx.Node | None:
    """``index_add`` and ``scatter_add``: what was there plus a sum by index onto zeros."""
    base, alpha, args = node.args[0], argument(node, "alpha"), list(node.args)
    if is_call(node, aten.scatter_add) and (rows := _rows_of(node)) is not None:
        return emit(node, aten.index_add.default, base, args[1], rows, args[3])
    if is_number(base, 0) and alpha in (None, 1):
        return None
    if alpha not in (None, 1):
        args[3] = emit(node, aten.mul.Tensor, args[3], alpha)
    added = emit(node, node.target, emit(node, aten.zeros_like.default, base), *args[1:])
    return added if is_number(base, 0) else emit(node, aten.add.Tensor, base, added)


def _rows_of(node: fx.Node) -> fx.Node | None:
    """The places to which ``scatter_add`` brings whole rows: one index, repeated along all other
    axes."""
    base, dim, index, source = node.args[:4]
    axis = dim % max(rank(node), 1)  # type: ignore[operator]
    if kind(index) is not Kind.EXPAND or shape_of(index) != shape_of(source):
        return None
    one = index.args[0]  # type: ignore[union-attr]
    lengths = [1] * (rank(index) - rank(one)) + shape_of(one)
    if math.prod(lengths) != lengths[axis] or lengths[axis] != shape_of(source)[axis]:
        return None
    shapes = [[s for i, s in enumerate(shape_of(x)) if i != axis] for x in (base, source)]
    return reshaped(node, one, [-1]) if shapes[0] == shapes[1] else None


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
            alike = summed and len({n.args[1] for n in parts}) == 1
            one = _written_apart(node, parts) or (_summed_at_once(node, parts) if alike else None)
            if one is not None:
                rest = [(sign, n) for sign, n in terms if n not in parts]
                swap(node, added(node, [*rest, (1, one)]))
    graph.eliminate_dead_code()


def _summed_at_once(at: fx.Node, parts: list[fx.Node]) -> fx.Node:
    zeros, dim = parts[0].args[:2]
    places = [reshaped(at, n.args[2], [-1]) for n in parts]  # type: ignore[arg-type]
    where = emit(at, aten.cat.default, places, 0)
    values = emit(at, aten.cat.default, [n.args[3] for n in parts], dim)
    return emit(at, aten.index_add.default, zeros, dim, where, values)


def _written_apart(at: fx.Node, parts: list[fx.Node]) -> fx.Node | None:
    """One write after another, if each is where the same whole numbers are another number."""
    writes = [_write_of(at, n) for n in parts]
    cases = [_case_of(_mask_of(indices)) for indices, _ in writes]
    if None in cases or len(set(cases)) < len(cases) or len({c[0] for c in cases if c}) > 1:
        return None
    made = parts[0].args[0]
    for indices, values in writes:
        made = emit(at, aten.index_put.default, made, indices, values)
    return made  # type: ignore[return-value]


def _write_of(at: fx.Node, n: fx.Node) -> tuple[list[Any], Any]:
    """The indices of a write or a sum by index, and the values."""
    if is_call(n, aten.index_put):
        return list(n.args[1]), n.args[2]  # type: ignore[arg-type]
    where = reshaped(at, n.args[2], [-1])  # type: ignore[arg-type]
    return [*[None] * (n.args[1] % rank(n)), where], n.args[3]  # type: ignore[operator]


def _case_of(mask: Any) -> tuple[fx.Node, int] | None:
    """The tensor and the number to which a mask compares it."""
    if is_call(mask, aten.eq) and isinstance(mask.args[1], int):
        return mask.args[0], mask.args[1]
    if not is_call(mask, aten.select) or not isinstance(mask.args[2], int):
        return None
    x, axis, number = mask.args
    number %= shape_of(x)[axis]
    while kind(x) is Kind.PERMUTE:
        x, axis = x.args[0], x.args[1][axis]
    return (x, number) if is_call(x, aten.one_hot) and axis == rank(x) - 1 else None


def _mask_of(indices: list[Any]) -> fx.Node | None:
    """The mask of neighbouring axes that is true at the places that indices say, each once."""
    found = [_column_of(i) for i in indices if i is not None]
    mask = found[0][0] if found and found[0] is not None else None
    return mask if mask is not None and found == [(mask, i) for i in range(rank(mask))] else None


def _column_of(places: Any) -> tuple[fx.Node, int] | None:
    """The mask at whose true places an index counts, and along which of its axes."""
    axis, length = 0, None
    while True:
        if kind(places) is Kind.OUTPUT:
            axis = places.args[1]
        elif kind(places) is Kind.SELECT:
            axis = places.args[2]
        elif is_call(places, aten.remainder):
            length = places.args[1]
        elif kind(places) is not Kind.RESHAPE:
            break
        places = places.args[0]
    if not is_call(places, aten.nonzero, aten.nonzero_numpy, aten.where) or len(places.args) > 1:
        return None
    mask = places.args[0]
    axis = 0 if rank(mask) == 1 else axis
    sized = isinstance(axis, int) and length in (None, *shape_of(mask)[axis : axis + 1])
    return (mask, axis) if sized else None


def _onto_zeros(node: fx.Node) -> bool:
    """Whether a call that nothing else reads brings values to places of zeros, by an index."""
    if not is_call(node, aten.index_add, aten.index_put) or len(node.users) != 1 or node.kwargs:
        return False
    accumulates = is_call(node, aten.index_put) and len(node.args) > 3
    return is_number(node.args[0], 0) and not accumulates


def picked_once(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A sum by index onto zeros that brings one value to every place → those values, in order."""
    base, dim, index, source = node.args[:4]
    axis, size = dim % rank(node), shape_of(node)[dim]  # type: ignore[operator, index]
    places = constants.value(index)  # type: ignore[arg-type]
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


def put_by_index(node: fx.Node) -> fx.Node | None:
    """Writes by index: one value at a mask → ``where``; accumulated → a sum by index, or a write
    onto zeros, and what was there added."""
    base, indices, values = node.args[:3]
    used = [i for i, index in enumerate(indices) if index is not None]  # type: ignore[arg-type]
    masks = [val(indices[i]).dtype == torch.bool for i in used]  # type: ignore[index]
    if not argument(node, "accumulate"):
        alone = len(used) == len(indices) == 1 and masks[0]  # type: ignore[arg-type]
        return _put_where(node, base, indices[0], values) if alone else None  # type: ignore[index]
    if any(masks) or _mask_of(list(indices)) is not None:  # type: ignore[arg-type]
        # which brings no two values to one place: a write, onto zeros
        zeros = emit(node, aten.zeros_like.default, base)
        added = emit(node, node.target, zeros, indices, values)
    else:
        added = _accumulated(node, base, indices, used, values)  # type: ignore[arg-type]
    return added if is_number(base, 0) else emit(node, aten.add.Tensor, base, added)


def put_flat(node: fx.Node) -> fx.Node:
    """``put``: a write by index into the elements one after another."""
    x, index, values = (reshaped(node, a, [val(a).numel()]) for a in node.args[:3])  # type: ignore[arg-type]
    adds = bool(argument(node, "accumulate"))
    return reshaped(
        node, emit(node, aten.index_put.default, x, [index], values, adds), shape_of(node)
    )


def _accumulated(
    node: fx.Node, base: fx.Node, indices: list[Any], used: list[int], values: fx.Node
) -> fx.Node:
    """Zeros of the shape of ``base``, and at every place the sum of what the indices bring there:
    the indexed axes folded to one, and one index into it."""
    shape = shape_of(base)
    rest = [i for i in range(len(shape)) if i not in used]
    sizes = [shape[i] for i in used]
    picked = torch.broadcast_shapes(*(tuple(shape_of(indices[i])) for i in used))
    where: Any = 0
    for i in used:
        one = emit(node, aten.remainder.Scalar, expanded(node, indices[i], picked), shape[i])
        where = (
            one
            if where == 0
            else emit(node, aten.add.Tensor, emit(node, aten.mul.Tensor, where, shape[i]), one)
        )
    together = used == list(range(used[0], used[-1] + 1))
    first = used[0] if together else 0
    before, after = rest[:first], rest[first:]
    full = [shape[i] for i in before] + list(picked) + [shape[i] for i in after]
    wide = expanded(node, values, full)
    order = [
        *range(len(before), len(before) + len(picked)),
        *range(len(before)),
        *range(len(before) + len(picked), len(full)),
    ]
    source = reshaped(
        node, permuted(node, wide, order), [math.prod(picked), *(shape[i] for i in rest)]
    )
    start = [math.prod(sizes), *(shape[i] for i in rest)]
    zeros = emit(node, aten.new_zeros.default, base, start)
    summed = emit(node, aten.index_add.default, zeros, 0, reshaped(node, where, [-1]), source)
    unfolded = reshaped(node, summed, [*sizes, *(shape[i] for i in rest)])
    axes = [*used, *rest]
    return permuted(node, unfolded, [axes.index(i) for i in range(len(shape))])


def _put_where(node: fx.Node, base: Any, mask: Any, values: Any) -> fx.Node | None:
    """``x[mask] = v`` with one value for all chosen places → ``where``."""
    behind = rank(base) - rank(mask)
    ahead = max(rank(values) - behind, 0)
    if any(s != 1 for s in shape_of(values)[:ahead]):
        return None
    one = reshaped(node, values, shape_of(values)[ahead:])
    return emit(
        node, aten.where.self, reshaped(node, mask, [*shape_of(mask), *[1] * behind]), one, base
    )


def scatter_reduced(node: fx.Node) -> fx.Node | None:
    """``scatter_reduce`` to a sum or a mean → ``scatter_add``, over the counts."""
    base, dim, index, source, reduce = node.args[:5]
    whole = bool(argument(node, "include_self"))
    if reduce not in ("sum", "mean") or (reduce == "mean" and whole):
        return None
    zeros = emit(node, aten.zeros_like.default, base)
    added = emit(node, aten.scatter_add.default, zeros, dim, index, source)
    if reduce == "sum" and whole:
        return emit(node, aten.add.Tensor, base, added)
    ones = emit(node, aten.ones_like.default, source)
    count = emit(node, aten.scatter_add.default, zeros, dim, index, ones)
    if reduce == "mean":
        added = emit(node, aten.div.Tensor, added, emit(node, aten.clamp_min.default, count, 1))
    return emit(node, aten.where.self, emit(node, aten.gt.Scalar, count, 0), added, base)


def written(node: fx.Node) -> fx.Node | None:
    """``select_scatter`` and ``slice_scatter`` → what is before, what is written, what is after."""
    whole, part, dim = node.args[0], node.args[1], argument(node, "dim") % rank(node)
    size = shape_of(whole)[dim]
    if is_call(node, aten.select_scatter):
        index = argument(node, "index") % size
        return put(node, whole, part, dim, index, index + 1)  # type: ignore[arg-type]
    bounds = slice(*(argument(node, n) for n in ("start", "end", "step"))).indices(size)
    evenly = bounds[2] == 1 or (size % bounds[2] == 0 and bounds[0] < bounds[2])
    if not evenly:
        wanted = (whole, part, dim, *bounds)
        return None if node.args == wanted else emit(node, node.target, *wanted)
    return put_slice(node, whole, part, dim, *bounds)  # type: ignore[arg-type]


def copied(node: fx.Node) -> fx.Node:
    """``copy(x, y)``: y, in the shape and type of x."""
    x, y = node.args[:2]
    if val(y).dtype != val(x).dtype:
        y = emit(node, aten.to.dtype, y, val(x).dtype)
    return expanded(node, y, shape_of(x))  # type: ignore[arg-type]
