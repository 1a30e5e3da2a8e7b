"""Sums of whole tensors, place by place, that are recognised by their numbers alone: what is
stacked, joined, laid out or indexed, and reduced with fixed weights, until it is c·x + d·y.

Every operation in between is linear in the tensors. So one draw of numbers tells: two linear maps
that differ agree on none but a few of all numbers there are."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Hashable

import torch
from torch import fx

from relprop.operations import FILLS, MOVES, Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.sums.terms import Terms, added
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.parts import MOST_NODES, Piece, rounded

MOST_TERMS = 64


_NOTHING = 1e-12  # a weight that is only rounding


#: What makes of some numbers a sum with weights, of several or of each.
_ADDS = frozenset(
    {Kind.SUM, Kind.TOTAL, Kind.SCAN, Kind.AVERAGE_POOL, Kind.INDEXED_SUM, Kind.FOLD}
    | {Kind.LINEAR, Kind.MATMUL, Kind.CONVOLUTION}
)


_PRODUCTS = frozenset({Kind.PRODUCT, Kind.MATMUL, Kind.LINEAR, Kind.CONVOLUTION})


_SCALES = frozenset({Kind.AFFINE, Kind.PRODUCT, Kind.QUOTIENT})


_LINEAR = _ADDS | _SCALES | MOVES | FILLS


def raise_sums_by_probing(graph: fx.Graph, constants: Constants) -> None:
    """Σ c·x of whole tensors, by whatever linear operations it is made → that sum."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    linear = {n for n in order if _is_linear(n, constants)}
    within: set[fx.Node] = set()
    found = dict[Hashable, list[float] | None]()  # of one block, and all of its form
    for output in sorted(linear, key=order.__getitem__, reverse=True):
        if output in within or _is_laid_out(output, linear):
            continue
        part = _part(output, linear, order, constants)
        if part is None:
            continue
        if (form := part.form) not in found:
            found[form] = _weights(part)
        weights = found[form]
        new = None if weights is None else _plain(part, weights)
        if new is not None:
            within |= set(part.nodes)
            swap(output, new)


def _is_linear(node: fx.Node, constants: Constants) -> bool:
    """Whether a call is linear in what depends on an input, and all else in it is known."""
    if node.op != "call_function" or kind(node) not in _LINEAR or not is_float(node):
        return False
    tensors = tensor_inputs(node)
    live = [i for i in tensors if is_live(i)]
    if not live or any(not is_float(i) or val(i).dtype != val(node).dtype for i in live):
        return False
    if kind(node) in _PRODUCTS and len(live) > 1:
        return False
    if kind(node) is Kind.QUOTIENT and live != [arguments(node)[0]]:
        return False
    return all(is_live(i) or constants.value(i) is not None for i in tensors)


def _is_laid_out(node: fx.Node, linear: set[fx.Node]) -> bool:
    """Whether the only reader puts the numbers into another shape, and is asked itself."""
    reader = next(iter(node.users), None)
    return len(node.users) == 1 and kind(reader) is Kind.RESHAPE and reader in linear


def _part(
    output: fx.Node, linear: set[fx.Node], order: dict[fx.Node, int], constants: Constants
) -> Piece | None:
    """The linear calls that are there for ``output`` alone, and the whole tensors that they are of;
    ``None`` where they are a sum as it should be written."""
    inner: list[fx.Node] = []
    sources: list[fx.Node] = []
    waiting, seen = [(-order[output], output)], {output}
    while waiting:
        node = heapq.heappop(waiting)[1]
        alone = node is output or all(u in seen and u not in sources for u in node.users)
        if not (alone and node in linear):
            sources.append(node)
            if len(sources) > MOST_TERMS or val(node).numel() != val(output).numel():
                return None
            continue
        inner.append(node)
        for i in dict.fromkeys(i for i in tensor_inputs(node) if is_live(i) and i not in seen):
            seen.add(i)
            heapq.heappush(waiting, (-order[i], i))
        if len(inner) > MOST_NODES:
            return None
    part = Piece(tuple(reversed(sources)), output, tuple(reversed(inner)), constants)
    return part if _is_more_than_sum(part) and part.is_small else None


def _is_more_than_sum(part: Piece) -> bool:
    """Whether more is done than to add tensors, each once, and to lay out what is added."""
    kinds = {kind(n) for n in part.nodes}
    if not kinds & _ADDS:
        return False
    if kinds <= _SCALES | {Kind.SUM}:
        read = [i for n in part.nodes for i in tensor_inputs(n) if i in part.sources]
        return len(set(read)) < len(read)
    laid_back = all(shape_of(s) == shape_of(part.output) for s in part.sources)
    return laid_back or not kinds <= _SCALES | {Kind.SUM, Kind.RESHAPE}


def _weights(part: Piece) -> list[float] | None:
    """The number that each tensor is multiplied with in their sum that the output is, place by
    place; ``None`` where it is none."""
    drawn = part.draw(0)
    try:
        found = part(*drawn).flatten()
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    columns = torch.stack([x.flatten() for x in drawn], 1)
    if found.numel() <= 2 * len(drawn) or not bool(found.isfinite().all()):
        return None
    weights = torch.linalg.lstsq(columns, found[:, None]).solution[:, 0]
    return list(map(_cleaned, weights.tolist())) if same(columns @ weights, found) else None


def _plain(part: Piece, weights: list[float]) -> fx.Node | None:
    """The sum itself."""
    plain = all(kind(n) is Kind.SUM for n in part.nodes)
    read = Counter(i for n in part.nodes for i in tensor_inputs(n) if plain)
    weighted: list[tuple[fx.Node, float]] = []
    for x, weight in zip(part.sources, weights, strict=True):
        times = _times(weight, read[x])
        weighted += [(x, weight / times)] * times if weight else []
    return _sum(part.output, weighted)


def _times(weight: float, read: int) -> int:
    """How many terms a tensor is that is added again and again."""
    return int(abs(weight)) if abs(weight) in range(2, read + 1) else 1


def _cleaned(weight: float) -> float:
    """A weight without what rounding leaves."""
    return 0.0 if abs(weight) < _NOTHING else math.copysign(rounded(abs(weight)), weight)


def _sum(at: fx.Node, weighted: list[tuple[fx.Node, float]]) -> fx.Node | None:
    """Σ c·x, one after the other, in the shape of the tensors if they have one."""
    shapes = {tuple(shape_of(x)) for x, _ in weighted}
    shape = list(shapes.pop()) if len(shapes) == 1 else shape_of(at)
    total: Terms = []
    for x, weight in weighted:
        whole = reshaped(at, x, shape)
        factor = abs(weight)
        scaled = whole if factor == 1 else emit(at, aten.mul.Tensor, whole, factor)
        total = [(1, added(at, [*total, (1 if weight > 0 else -1, scaled)]))]
    return reshaped(at, total[0][1], shape_of(at)) if total else None
