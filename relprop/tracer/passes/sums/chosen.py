"""Choices that are written as sums: what a mask of zeros and ones leaves of one tensor, and what is
left of another where it leaves nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_live,
    is_number,
    is_tensor,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.functions.masked import is_mask
from relprop.tracer.passes.sums.terms import Terms, added, is_top, terms_of


def raise_choices(graph: fx.Graph, constants: Constants) -> None:
    """x·m → x where the mask m is not 0, else 0; x·(1 − m) + y·m and x + m·(y − x) → a choice."""
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _of_differences(node, constants)
    for node in list(graph.nodes):
        if is_call(node, aten.mul) and is_live(node) and is_float(node):
            _fill(node, constants)
    for node in list(graph.nodes):
        if not node._erased and is_top(node):
            _join(node)


def _masked(node: fx.Node, constants: Constants) -> tuple[fx.Node, fx.Node] | None:
    """The tensor that a product masks, and the mask, one that depends on an input."""
    if not is_call(node, aten.mul) or not all(is_tensor(x) for x in arguments(node)):
        return None
    for x, mask in (arguments(node), arguments(node)[::-1]):
        whole = is_float(x) and shape_of(x) == shape_of(node) and val(x).dtype == val(node).dtype
        if whole and is_live(x) and is_live(mask) and is_mask(mask, constants):
            return x, mask
    return None


def _fill(node: fx.Node, constants: Constants) -> None:
    """A product with a mask as a fill by zeros."""
    if (found := _masked(node, constants)) is not None:
        x, mask = found
        hidden = emit(node, aten.eq.Scalar, mask, 0)
        swap(node, emit(node, aten.masked_fill.Scalar, x, hidden, 0.0))


def _of_differences(node: fx.Node, constants: Constants) -> None:
    """x + m·(y − x) → y where the mask m is not 0, else x."""
    terms = terms_of(node)
    for sign, product in terms:
        found = _masked(product, constants) if len(product.users) == 1 else None
        inner = [] if found is None else terms_of(found[0])
        for x in [x for s, x in terms if s > 0 and (-sign, x) in inner]:
            rest = [(sign * s, y) for s, y in inner if (s, y) != (-sign, x)]
            if found is None or not rest or shape_of(x) != shape_of(product):
                continue
            other = added(node, rest)
            if shape_of(other) == shape_of(x):
                shown = emit(node, aten.ne.Scalar, found[1], 0)
                chosen = emit(node, aten.where.self, shown, other, x)
                left = [t for t in terms if t not in ((1, x), (sign, product))]
                swap(node, added(node, [*left, (1, chosen)]))
                return


@dataclass(frozen=True)
class _Part:
    """A term that is ``x`` where a condition holds (or, ``negated``, does not), and else 0."""

    x: fx.Node
    condition: fx.Node
    negated: bool

    @property
    def literal(self) -> tuple[fx.Node, bool, tuple[tuple[int, ...], ...]]:
        """What the condition comes down to, whether its contrary, and how it is laid out."""
        node, negated, laid = self.condition, self.negated, list[tuple[int, ...]]()
        while True:
            if _is_contrary(node):
                negated = not negated
            elif kind(node) is Kind.RESHAPE or (kind(node) is Kind.EXPAND and laid):
                laid += [tuple(shape_of(node)), tuple(shape_of(operand(node)))]
            elif kind(node) not in (Kind.CAST, Kind.EXPAND) and not _compares(node, aten.ne):
                return node, negated, tuple(laid)
            node = operand(node)


def _is_contrary(node: fx.Node) -> bool:
    """Whether a call makes a mask's contrary of it."""
    if is_call(node, aten.rsub):
        return is_number(arguments(node)[1], 1)
    return is_call(node, aten.logical_not, aten.bitwise_not) or _compares(node, aten.eq)


def _compares(node: fx.Node, how: object) -> bool:
    """Whether a call asks whether a mask is 0, or is not."""
    return is_call(node, how) and is_number(arguments(node)[1], 0)  # type: ignore[arg-type]


def _part(node: fx.Node) -> _Part | None:
    if len(node.users) != 1 or not is_live(node):
        return None
    args = arguments(node)
    if is_call(node, aten.masked_fill) and is_number(args[2], 0):
        return _Part(args[0], args[1], negated=True)
    if is_call(node, aten.where) and len(args) == 3:
        if is_number(args[2], 0):
            return _Part(args[1], args[0], negated=False)
        if is_number(args[1], 0):
            return _Part(args[2], args[0], negated=True)
    return None


def _join(node: fx.Node) -> None:
    """Two terms of which each is there where the other is not → a choice; of x and of a term that
    is there in some places → a choice between x and their sum."""
    terms: Terms = terms_of(node)
    parts = [(t, part) for t in terms if t[0] > 0 and (part := _part(t[1])) is not None]
    parts = [(t, part) for t, part in parts if _is_whole(part.x, node)]
    for i, (first, one) in enumerate(parts):
        for second, other in parts[i + 1 :]:
            base, negated, laid = one.literal
            if other.literal == (base, not negated, laid):
                left = [t for t in terms if t not in (first, second)]
                swap(node, added(node, [*left, (1, _choice(node, one, other.x))]))
                return
    if len(terms) == 2 and len(parts) == 1:
        ((first, one),) = parts
        ((sign, x),) = (t for t in terms if t is not first)
        if sign > 0 and is_live(x) and shape_of(x) == shape_of(node):
            whole = added(node, [(1, x), (1, one.x)])
            swap(node, _choice(node, _Part(whole, one.condition, one.negated), x))


def _is_whole(x: object, node: fx.Node) -> bool:
    """Whether it is a tensor as large as a node's value, no number."""
    return isinstance(x, fx.Node) and shape_of(x) == shape_of(node)


def _choice(node: fx.Node, one: _Part, other: fx.Node) -> fx.Node:
    """A part where it is there, and another tensor where it is not."""
    both = (other, one.x) if one.negated else (one.x, other)
    return emit(node, aten.where.self, one.condition, *both)
