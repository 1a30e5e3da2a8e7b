"""One sum: three terms and more are one operation, positions added one by one a sum along their
axis."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from torch import fx

from relprop.operations import Kind, kind, operand
from relprop.tracer.editing import aten, drop_unused, emit, is_live, reshaped, shape_of, swap
from relprop.tracer.passes.simplify.shapes import terms_laid
from relprop.tracer.passes.sums.terms import (
    Terms,
    added,
    folded,
    is_scaled,
    is_sum,
    is_top,
    position,
    scale_of,
    terms_of,
)

_Counted = Counter[tuple[int, fx.Node]]


def join_sums(graph: fx.Graph) -> None:
    """Sums of three and more terms are one operation, whichever two were added first; what depends
    on no input is one of its terms. Positions of one tensor, added one by one, are a sum along
    their axis. A number that scales all terms scales their sum."""
    _lay_terms(graph)
    join_scaled(graph)
    _reuse_sums(graph)
    for node in reversed(list(graph.nodes)):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        run = _run_of_positions(node, terms)
        if run is not None:
            swap(node, reshaped(node, run, shape_of(node)))
            continue
        fixed = [(s, n) for s, n in terms if not is_live(n)]
        if len(fixed) > 1:
            terms = [(s, n) for s, n in terms if is_live(n)] + [(1, folded(node, fixed))]
        if len(terms) > 2 or len(fixed) > 1:
            swap(node, added(node, terms))


def _lay_terms(graph: fx.Graph) -> None:
    """What was added in rows of all samples and is laid out as what it is added to → its terms."""
    left = list(graph.nodes)
    while left:
        node = left.pop()
        if kind(node) not in (Kind.RESHAPE, Kind.PERMUTE) or not is_sum(total := operand(node)):
            continue
        term = len(node.users) == 1 and is_sum(next(iter(node.users)))
        if term and (new := terms_laid(node)) is not None:
            swap(node, new)
            graph.erase_node(total)
            left += new.all_input_nodes


def join_scaled(graph: fx.Graph) -> None:
    """c·x + c·y → c·(x + y), whatever else is added."""
    for node in list(graph.nodes):
        if not node._erased and is_top(node) and (made := _scaled_as_one(node)) is not None:
            swap(node, made)
    drop_unused(graph)


def _scaled_as_one(node: fx.Node) -> fx.Node | None:
    terms, groups = terms_of(node), defaultdict[float, Terms](list)
    for term in terms:
        n = term[1]
        if is_live(n) and is_scaled(n) and len(n.users) == 1:
            scale = scale_of([n])
            near = (c for c in groups if math.isclose(scale, c, rel_tol=1e-12))
            groups[next(near, scale)].append(term)
    several = {scale: own for scale, own in groups.items() if len(own) > 1}
    made = [t for t in terms if not any(t in own for own in several.values())]
    for scale, own in several.items():
        whole = added(node, [(sign, operand(n)) for sign, n in own])
        made.append((1, emit(node, aten.mul.Tensor, whole, scale)))
    return added(node, made) if several else None


def _reuse_sums(graph: fx.Graph) -> None:
    """x + (a + b) where x + a is there already, since b depends on it, or is beside it → (x + a) +
    b: the stream that both belong to. Of x − x nothing is left."""
    known = defaultdict[tuple[int, fx.Node], list[tuple[fx.Node, _Counted]]](list)
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = Counter(terms_of(node))
        gone = Counter({(s, n): min(terms[s, n], terms[-s, n]) for s, n in terms})
        if gone.total() and (left := terms - gone):  # x − x is nothing
            new = added(node, list(left.elements()))
            swap(node, new)
            node, terms = new, left
        beside = [found for term in terms for found in known[term] if found[1] < terms]
        within = [found for found in beside if shape_of(found[0]) == shape_of(node)]
        if within:
            larger, own = max(within, key=lambda found: found[1].total())
            new = added(node, [(1, larger), *(terms - own).elements()])
            swap(node, new)
            node = new
        known[next(iter(terms))].append((node, terms))


def _run_of_positions(at: fx.Node, terms: Terms) -> fx.Node | None:
    """Σ of evenly spaced positions of one axis of one tensor."""
    if len(terms) < 2 or any(sign < 0 for sign, _ in terms):
        return None
    chosen = [c for _, n in terms if (c := position(n)) is not None]
    if len(chosen) < len(terms):
        return None
    (x, axis, _), shapes = chosen[0], {tuple(shape_of(n)) for _, n in terms}
    if any(c[:2] != (x, axis) for c in chosen) or len(shapes) > 1:
        return None
    places = sorted(c[2] for c in chosen)
    first, last = places[0], places[-1]
    step = max(places[1] - first, 1)
    if places != list(range(first, last + 1, step)):
        return None
    whole = (first, last + 1, step) == (0, shape_of(x)[axis], 1)
    part = x if whole else emit(at, aten.slice.Tensor, x, axis, first, last + 1, step)
    return emit(at, aten.sum.dim_IntList, part, [axis])
