"""Tensors with zeros around them that are added and nowhere meet: the same side by side; and what
some positions of a tensor get: added to all of it, with zeros around."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

from torch import fx

from relprop.operations import is_call
from relprop.tracer.editing import (
    arguments,
    aten,
    drop_unused,
    emit,
    is_live,
    is_number,
    joined,
    rank,
    shape_of,
    swap,
)
from relprop.tracer.passes.simplify.joins import shown
from relprop.tracer.passes.sums.terms import Terms, added, is_sum, is_top, terms_of


@dataclass(frozen=True)
class _Padded:
    """A term of a sum with zeros before it and behind it along one axis, and with them of some
    ``shape``."""

    x: fx.Node
    sign: int
    shape: tuple[int, ...]
    axis: int
    begin: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.begin + shape_of(self.x)[self.axis]


def lay_side_by_side(graph: fx.Graph) -> None:
    """pad(a, (0, n)) + pad(b, (m, 0)) where a has m places and b has n → cat(a, b); what is between
    them and around them stays zero."""
    for node in list(graph.nodes):  # two by two, so that what is added to them stays apart
        if not node._erased and is_sum(node) and len(arguments(node)) == 2 and not node.kwargs:
            one, other = arguments(node)
            _join(node, [(1, one), (-1 if is_call(node, aten.sub) else 1, other)])
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _join(node, terms_of(node))
    drop_unused(graph)


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


def _join(node: fx.Node, terms: Terms) -> None:
    """A sum with those of its terms side by side that do not meet."""
    along = defaultdict[tuple[int, tuple[int, ...]], list[int]](list)
    padded = [_padded(n, sign) for sign, n in terms]
    for i, p in enumerate(padded):
        if p is not None:
            along[p.axis, p.shape].append(i)
    for mine in along.values():
        parts = sorted((p for i in mine if (p := padded[i])), key=lambda p: (p.begin, p.end))
        apart = all(a.end <= b.begin for a, b in itertools.pairwise(parts))
        if len(parts) > 1 and apart:
            rest: Terms = [t for i, t in enumerate(terms) if i not in mine]
            swap(node, added(node, [*rest, (1, _beside(node, parts))]))
            return


def _padded(node: fx.Node, sign: int) -> _Padded | None:
    """What a term is, if it is padded with zeros along one axis."""
    shape = tuple(shape_of(node))
    if is_call(node, aten.constant_pad_nd):
        x, amounts, *value = arguments(node)
        pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
        where = [i for i, pair in enumerate(pairs) if any(pair)]
        if any(value) or len(where) != 1 or min(amounts) < 0:
            return None
        return _Padded(x, sign, shape, rank(x) - 1 - where[0], pairs[where[0]][0])
    if is_call(node, aten.cat):
        parts, axis = joined(node), (arguments(node)[1] if len(node.args) > 1 else 0) % rank(node)
        full = [i for i, p in enumerate(parts) if not is_number(p, 0)]
        if len(full) == 1 < len(parts):
            before = sum(shape_of(p)[axis] for p in parts[: full[0]])
            return _Padded(parts[full[0]], sign, shape, axis, before)
    return None


def _beside(at: fx.Node, parts: list[_Padded]) -> fx.Node:
    """The parts one behind the other, with the zeros that were between and around them."""
    axis, whole = parts[0].axis, parts[0].shape[parts[0].axis]
    ends = [p.begin for p in parts[1:]] + [parts[-1].end]
    pieces = []
    for part, end in zip(parts, ends, strict=True):
        x = part.x if part.sign > 0 else emit(at, aten.neg.default, part.x)
        pieces.append(_surrounded(at, x, axis, 0, end - part.end))
    joint = emit(at, aten.cat.default, pieces, axis)
    return _surrounded(at, joint, axis, parts[0].begin, whole - parts[-1].end)


def _surrounded(at: fx.Node, x: fx.Node, axis: int, before: int, behind: int) -> fx.Node:
    if not before and not behind:
        return x
    amounts = [0] * (2 * (rank(x) - 1 - axis)) + [before, behind]
    return emit(at, aten.constant_pad_nd.default, x, amounts, 0)
