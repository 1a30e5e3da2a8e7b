"""What some positions of a tensor get is added to all of it, with zeros around."""

from __future__ import annotations

import itertools
from collections import defaultdict

from torch import fx

from relprop.operations import is_call
from relprop.tracer.editing import (
    arguments,
    aten,
    drop_unused,
    emit,
    is_live,
    joined,
    rank,
    shape_of,
    swap,
)
from relprop.tracer.passes.simplify.joins import shown
from relprop.tracer.passes.sums.terms import Terms, added, is_sum, terms_of


def add_to_all(graph: fx.Graph) -> None:
    """cat(x[:n], x[n:] + y) → x + pad(y, (n, 0)): what only some positions of a tensor get."""
    for node in list(graph.nodes):
        if not node._erased and is_call(node, aten.cat) and is_live(node):
            parts, dim = joined(node), arguments(node)[1]
            positions = len(parts) > 1 and dim < rank(node) - 1
            if positions and (new := _added_to_one(node, parts, dim)) is not None:
                swap(node, new)
    drop_unused(graph)


def _added_to_one(node: fx.Node, parts: list[fx.Node], dim: int) -> fx.Node | None:
    """The tensor that some parts show as it is and others with something added."""
    plain = [found[0] for p in parts if (found := shown(p, dim)) is not None]
    if not plain or len(plain) == len(parts):
        return None
    source, at = plain[0], 0
    if shape_of(source) != shape_of(node):
        return None
    runs = defaultdict[tuple[int, fx.Node, int], list[tuple[int, int]]](list)
    for part in parts:
        size = shape_of(part)[dim]
        for sign, n, start in _terms_at(part, dim, source):
            if rank(n) != rank(node) or _beside_axis(n, dim) != _beside_axis(node, dim):
                return None
            runs[sign, n, at - start].append((at, at + size))
        at += size
    if len(runs.pop((1, source, 0), [])) != len(parts):
        return None
    terms: Terms = [(1, source)]
    for (sign, n, ahead), there in runs.items():
        if any(one[1] != other[0] for one, other in itertools.pairwise(there)):
            return None
        first, last = there[0][0], there[-1][1]
        if (first, last) != (ahead, ahead + shape_of(n)[dim]):
            n = emit(node, aten.slice.Tensor, n, dim, first - ahead, last - ahead, 1)
        terms.append((sign, _surrounded(node, n, dim, first, shape_of(node)[dim] - last)))
    return added(node, terms)


def _beside_axis(node: fx.Node, dim: int) -> list[int]:
    """The lengths of all axes but one."""
    return [size for i, size in enumerate(shape_of(node)) if i != dim]


def _terms_at(
    part: fx.Node, dim: int, source: fx.Node, sign: int = 1, start: int = 0
) -> list[tuple[int, fx.Node, int]]:
    """What a part is the sum of, by the tensors and where in them it starts: sums of which only
    runs are read are taken apart, too."""
    run = shown(part, dim)
    if run is not None and run[0] is source:
        return [(sign, source, start + run[1])]
    if run is not None and run[0] is not part:
        whole = run[0]
        cut = is_sum(whole) and all(is_call(u, aten.slice) for u in whole.users)
        return _apart(whole, dim, source, sign, start + run[1]) if cut else [(sign, part, start)]
    alone = is_sum(part) and len(part.users) == 1
    return _apart(part, dim, source, sign, start) if alone else [(sign, part, start)]


def _apart(
    total: fx.Node, dim: int, source: fx.Node, sign: int, start: int
) -> list[tuple[int, fx.Node, int]]:
    """The same of a sum, term by term."""
    terms = terms_of(total)
    if any(shape_of(n) != shape_of(total) for _, n in terms):
        return [(sign, total, start)]
    return [t for s, n in terms for t in _terms_at(n, dim, source, sign * s, start)]


def _surrounded(at: fx.Node, x: fx.Node, axis: int, before: int, behind: int) -> fx.Node:
    if not before and not behind:
        return x
    amounts = [0] * (2 * (rank(x) - 1 - axis)) + [before, behind]
    return emit(at, aten.constant_pad_nd.default, x, amounts, 0)
