"""Several attention maps over the same values, whose results are added or subtracted: one map."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from torch import fx

from relprop.operations import MOVES, Kind, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, emit, is_live, rank, shape_of, swap
from relprop.tracer.follow import depending
from relprop.tracer.passes.products.factors import Factors, factors_of, is_product, multiplied
from relprop.tracer.passes.sums.terms import Terms, added, is_top, terms_of

#: What a map may go through between its softmax and the values.
KEEPS = MOVES | {Kind.IDENTITY, Kind.CAST, Kind.AFFINE, Kind.PRODUCT, Kind.QUOTIENT, Kind.SUM}


@dataclass(frozen=True)
class _Attended:
    """One term: a map, the values, on which side of them it stands, and what scales the result."""

    term: fx.Node
    weights: fx.Node
    values: fx.Node
    side: int
    factors: Factors
    number: float

    def scaled(self, at: fx.Node) -> fx.Node:
        """The map with what scales the result."""
        return multiplied(at, [(1, self.weights), *self.factors], self.number)


def cut_maps(graph: fx.Graph) -> None:
    """Heads of one product of maps and values, of which some are taken from others: a product for
    each part, as if the heads had been apart."""
    maps = _maps(graph)
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        parts = defaultdict[fx.Node, list[fx.Node]](list)
        for _, n in terms_of(node):
            live = [f for _, f in _factors(n)[0] if is_live(f)]
            if len(live) == 1 and (product := _cut_by_heads(live[0], maps)) is not None:
                parts[product].append(live[0])
        for product, cuts in parts.items():
            if 1 < len(cuts) == len(product.users):
                for cut in cuts:
                    swap(cut, _of_part(cut, product))


def _cut_by_heads(cut: fx.Node, maps: set[fx.Node]) -> fx.Node | None:
    """The product of a map and values of which a call takes some heads."""
    if kind(cut) not in (Kind.SLICE, Kind.SELECT) or len(cut.users) != 1:
        return None
    product = operand(cut)
    if not is_call(product, aten.matmul) or not any(x in maps for x in arguments(product)):
        return None
    return product if arguments(cut)[1] < rank(product) - 2 else None


def _of_part(cut: fx.Node, product: fx.Node) -> fx.Node:
    axis, wide = arguments(cut)[1], rank(product)
    parts = []
    for x in arguments(product):
        own = axis - (wide - rank(x))
        whole = own < 0 or (shape_of(x)[own] == 1 and kind(cut) is Kind.SLICE)
        rest = arguments(cut)[2:]
        parts.append(x if whole else emit(cut, cut.target, x, own, *rest))
    return emit(cut, product.target, *parts)


def _maps(graph: fx.Graph) -> set[fx.Node]:
    softmaxes = [n for n in graph.nodes if kind(n) is Kind.SOFTMAX]
    return depending(graph.nodes, softmaxes, lambda n: kind(n) in KEEPS)


def _factors(term: fx.Node) -> tuple[Factors, float]:
    return factors_of(term) if is_product(term) else ([(1, term)], 1.0)


def join_maps(graph: fx.Graph) -> None:
    """(a @ v)·s ± (b @ v)·t → (a·s ± b·t) @ v, where a and b come from softmaxes, s and t from
    parameters: differential attention, whichever is subtracted."""
    maps = _maps(graph)
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms, groups = terms_of(node), defaultdict[object, list[tuple[int, _Attended]]](list)
        for sign, n in terms:
            if (found := _attended(n, maps)) is not None:
                key = found.values, found.side, tuple(shape_of(found.weights))
                groups[key].append((sign, found))
        several = [group for group in groups.values() if len(group) > 1]
        if several:
            gone = {found.term for group in several for _, found in group}
            left: Terms = [(sign, n) for sign, n in terms if n not in gone]
            swap(node, added(node, [*left, *((1, _joined(node, group)) for group in several)]))


def _joined(at: fx.Node, group: list[tuple[int, _Attended]]) -> fx.Node:
    one = added(at, [(sign, found.scaled(at)) for sign, found in group])
    _, first = group[0]
    operands = (one, first.values) if first.side == 0 else (first.values, one)
    return emit(at, aten.matmul.default, *operands)


def _attended(term: fx.Node, maps: set[fx.Node]) -> _Attended | None:
    """A term that is a map times values, scaled by what is one number for each row of the map."""
    factors, number = _factors(term)
    live = [f for f in factors if is_live(f[1])]
    if len(live) != 1 or live[0][0] < 0 or not is_call(live[0][1], aten.matmul):
        return None
    product = live[0][1]
    sides = [side for side, x in enumerate(arguments(product)) if x in maps]
    alone = len(product.users) == 1 and len(term.users) == 1
    if not alone or len(sides) != 1 or shape_of(product) != shape_of(term):
        return None
    along = -1 - sides[0]  # the features of the result
    rest = [f for f in factors if f is not live[0]]
    if any(shape_of(n)[along:][:1] not in ([], [1]) for _, n in rest):
        return None
    both = arguments(product)
    return _Attended(term, both[sides[0]], both[1 - sides[0]], sides[0], rest, number)
