"""What lies between two tensors, by a share that is a tensor, too: x + g⊙(y − x) and what ``lerp``
gives, x⊙(1 − g) + y⊙g, are one; where y is x and something more, x + g⊙(that). What is left of a
tensor, x − x⊙g, is x⊙(1 − g)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_number,
    shape_of,
    swap,
)
from relprop.tracer.passes.products.raising import is_mask
from relprop.tracer.passes.sums.terms import Terms, added, is_top, terms_of, without


def raise_between(graph: fx.Graph) -> None:
    """Every form of what lies between two tensors → one."""
    for rule in (_of_difference, _of_more):
        for node in list(graph.nodes):
            if not node._erased and is_top(node) and (new := rule(node, terms_of(node))):
                swap(node, new)


def _of_difference(at: fx.Node, terms: Terms) -> fx.Node | None:
    """x + g⊙(y − x) → x⊙(1 − g) + y⊙g; x − x⊙g → x⊙(1 − g)."""
    for sign, product in terms:
        for share, inner in _factors(product):
            for found in ([(1, inner)], terms_of(inner)):
                for x in [x for s, x in terms if s > 0 and (-sign, x) in found]:
                    if not shape_of(x) == shape_of(inner) == shape_of(product):
                        continue
                    rest = [(sign * s, y) for s, y in without(found, (-sign, x))]
                    made = [(1, emit(at, aten.mul.Tensor, x, _contrary(at, share)))]
                    if rest:
                        made.append((1, emit(at, aten.mul.Tensor, added(at, rest), share)))
                    return added(at, made + without(terms, (1, x), (sign, product)))
    return None


def _of_more(at: fx.Node, terms: Terms) -> fx.Node | None:
    """x⊙(1 − g) + (x + z)⊙g → x + z⊙g."""
    positive = [n for sign, n in terms if sign > 0]
    shares = [(n, *factors) for n in positive for factors in _factors(n)]
    for kept, rest, x in shares:
        for new, share, inner in shares:
            found = terms_of(inner)
            if new is kept or not _are_contrary(rest, share) or (1, x) not in found:
                continue
            if len(found) > 1 and shape_of(x) == shape_of(kept) == shape_of(inner):
                more = added(at, without(found, (1, x)))
                scaled = emit(at, aten.mul.Tensor, more, share)
                return added(at, [(1, x), (1, scaled), *without(terms, (1, kept), (1, new))])
    return None


def _factors(product: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Both factors of a product that nothing else reads, each of them first; of one with a mask,
    none: it chooses."""
    if is_call(product, aten.mul) and len(product.users) == 1 and all(map(is_float, product.args)):
        a, b = arguments(product)
        if not any(is_live(n) and is_mask(n) for n in (a, b)):
            yield from ((a, b), (b, a))


def _contrary(at: fx.Node, share: fx.Node) -> fx.Node:
    """1 − g; of 1 − g, g."""
    return operand(share) if _is_rest(share) else emit(at, aten.rsub.Scalar, share, 1)


def _are_contrary(one: fx.Node, other: fx.Node) -> bool:
    """Whether two shares are 1 together, however each is repeated."""
    pairs = [(_once(a), _once(b)) for a, b in ((one, other), (other, one))]
    return any(_is_rest(a) and _once(operand(a)) is b for a, b in pairs)


def _once(share: fx.Node) -> fx.Node:
    return _once(operand(share)) if kind(share) is Kind.EXPAND else share


def _is_rest(share: fx.Node) -> bool:
    return is_call(share, aten.rsub) and is_number(arguments(share)[1], 1)
