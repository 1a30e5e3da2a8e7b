"""Where the numbers of a tensor lie: pieces that are put together again are the tensor, its axes in
another order."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    expanded,
    is_live,
    joined,
    permuted,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.sums.terms import is_top, terms_of
from relprop.tracer.passes.trials.parts import Piece

#: What may stand between a tensor and the same numbers laid out in another way.
LAYING = frozenset({Kind.JOIN, Kind.WINDOWS, Kind.FOLD, Kind.INDEXED_SUM, Kind.RESAMPLE})


LAID = MOVES | LAYING | {Kind.PAD, Kind.FILL}


def put_together(node: fx.Node, constants: Constants) -> fx.Node | None:
    """What writes, joins, picks or pads and adds until every number of one tensor stands somewhere
    once, or is joined or resampled until all do equally often → that tensor with its axes cut,
    repeated, put in another order and merged, if that is what it does. What only orders the
    positions of one axis stays as it is."""
    if not _lays_out(node):
        return None
    kinds = LAID | {Kind.SUM} if kind(node) is Kind.SUM else LAID
    inner, sources = cuts(node, kinds)
    made = _from_source(node, inner, sources, constants)
    if made is None and any(kind(n) is Kind.SHIFT for n in inner):
        made = _from_source(node, *cuts(node, kinds - {Kind.SHIFT}), constants)
    return made


def _from_source(
    node: fx.Node, inner: list[fx.Node], sources: set[fx.Node], constants: Constants
) -> fx.Node | None:
    """The one tensor that ``inner`` lays out, so laid out."""
    live = [n for n in sources if is_live(n)]
    if len(live) != 1 or val(source := live[0]).dtype != val(node).dtype:
        return None
    repeats = val(node).numel() // max(val(source).numel(), 1)
    if repeats != 1 and not _repeats(node, constants):
        return None
    part = Piece((source,), node, tuple(inner), constants)
    places = _places(part) if part.is_small else None
    if places is None or _orders_one_axis(places.reshape(shape_of(node)), shape_of(source)):
        return None
    return reordered(node, source, places.reshape(shape_of(node)))


def _repeats(node: fx.Node, constants: Constants) -> bool:
    """Whether a call may lay numbers beside themselves one by one, not the whole tensor."""
    if kind(node) is Kind.INDEX:
        used = [index for index in arguments(node)[1] if index is not None]
        where = constants.value(used[0]) if len(used) == 1 and not is_live(used[0]) else None
        if not isinstance(where, Tensor) or where.dim() != 1 or where.dtype == torch.bool:
            return False
        return len(where) > 1 and bool(where[0] == where[1])
    joins = kind(node) is Kind.JOIN and len(set(joined(node))) > 1
    return joins or kind(node) is Kind.RESAMPLE


def _lays_out(node: fx.Node) -> bool:
    """Whether a call may be the last of those that lay the numbers of one tensor out."""
    what = kind(node)
    if what is Kind.WRITE:
        return all(kind(u) is not Kind.WRITE for u in node.users)
    if what is Kind.SUM:
        return is_top(node) and all(kind(n) in LAID - MOVES for _, n in terms_of(node))
    if what in (Kind.INDEX, Kind.GATHER):
        x = operand(node)
        return shape_of(node) != shape_of(x) or kind(x) is Kind.RESHAPE
    return what in LAYING or (what is Kind.RESHAPE and kind(operand(node)) is Kind.JOIN)


def _places(part: Piece) -> Tensor | None:
    """Where in the source each number of a part's output stood, counted along its rows: whole
    numbers that all differ tell it, others that it is no sum of several."""
    count, generator = val(part.source).numel(), torch.Generator().manual_seed(0)
    names = 1 + torch.randperm(count, generator=generator)
    others = torch.randint(1, 1 << 30, (count,), generator=generator).double()
    try:
        found, same = (
            part(t.double().reshape(shape_of(part.source))).flatten().double()
            for t in (names, others)
        )
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    wanted = torch.arange(1, count + 1).repeat_interleave(len(found) // count).double()
    if not torch.equal(found.sort().values, wanted):
        return None
    places = names.argsort()[found.long() - 1]
    return places if torch.equal(others[places], same) else None


def _orders_one_axis(places: Tensor, shape: list[int]) -> bool:
    """Whether numbers have changed their position along one axis and along no other."""
    if list(places.shape) != shape:
        return False
    own = torch.arange(places.numel()).reshape(shape)
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    changed = [
        not torch.equal(places // step % size, own // step % size)
        for step, size in zip(steps, shape, strict=True)
    ]
    return sum(changed) == 1


def reordered(at: fx.Node, source: fx.Node, places: Tensor) -> fx.Node | None:
    """The source with its axes cut, repeated, in another order and merged, if its numbers, counted
    along its rows, then stand in ``places``, whose shape it gets."""
    shape, places = list(places.shape), places.flatten()
    runs = _runs(places)
    laid = sorted(range(len(runs)), key=lambda i: -runs[i][0])
    order = [laid.index(i) for i in range(len(runs))]
    sizes = [runs[i][1] for i in laid]
    once = [runs[i][1] if runs[i][0] else 1 for i in laid]
    if math.prod(once) != val(source).numel():
        return None
    whole = torch.arange(math.prod(once)).reshape(once).expand(sizes).permute(order)
    if not torch.equal(whole.flatten(), places):
        return None
    ones = [1] * (shape_of(source)[:1] == [1])
    cut = expanded(at, reshaped(at, source, [*ones, *once]), [*ones, *sizes])
    made = permuted(at, cut, [*range(len(ones)), *(i + len(ones) for i in order)])
    return reshaped(at, made, shape)


def _runs(places: Tensor) -> list[tuple[int, int]]:
    """Step and size of the runs of which places are made, each repeated by the one before it."""
    found: list[tuple[int, int]] = []
    while len(places) > 1:
        step = int(places[1] - places[0])
        steady = places == places[0] + step * torch.arange(len(places))
        size = len(places) if bool(steady.all()) else int(steady.int().argmin())
        if len(places) % size:
            return []
        found.insert(0, (step, size))
        places = places[::size]
    return found


def cuts(node: fx.Node, kinds: frozenset[Kind]) -> tuple[list[fx.Node], set[fx.Node]]:
    """What moves numbers until they stand in ``node``, in order, and where they come from: not all
    of it where that is more than one live tensor."""
    inner: set[fx.Node] = set()
    sources: set[fx.Node] = set()
    left, live = [node], 0
    while left and live < 2:
        here = left.pop()
        if here.op == "call_function" and kind(here) in kinds and is_live(here):
            inner.add(here)
            left += [i for i in tensor_inputs(here) if i not in inner]
        elif here not in sources:
            sources.add(here)
            live += is_live(here)
    return sorted(inner), sources
