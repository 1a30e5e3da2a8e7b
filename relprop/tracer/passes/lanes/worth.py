"""Which lanes are worth merging: they do something of their own that a rule would see apart, and
none reads another."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, is_live, is_tensor
from relprop.tracer.passes.lanes.alike import Lanes
from relprop.tracer.passes.sums.terms import is_scaled, position

#: What makes lanes worth merging: rules or methods see the pieces apart.
WORTH = frozenset({Kind.SOFTMAX, Kind.LINEAR, Kind.MATMUL, Kind.NORM, Kind.SUM, Kind.TOTAL})


def is_weighted(node: fx.Node) -> bool:
    """Whether a call that no two others read multiplies two activations."""
    factors = arguments(node)[:2]
    return (
        is_call(node, aten.mul) and len(node.users) < 2 and all(is_tensor(f) for f in factors)
    ) and all(is_live(f) for f in factors)


def is_worth(parts: Lanes) -> bool:
    """Whether the lanes do something of their own that a rule would see apart, and none of them
    reads another."""
    own = _own(parts)
    if own is None:
        return False
    return _multiply_in_turn(parts) or any(
        kind(n) in WORTH and len(n.all_input_nodes) > 0 for n in own
    )


def _multiply_in_turn(parts: Lanes) -> bool:
    """Whether the lanes are products of one tensor's positions along an axis with another's, one
    after another."""
    products = list(parts)
    while all(kind(p) is Kind.RESHAPE for p in products):
        products = [operand(p) for p in products]
    if not all(is_weighted(p) for p in products):
        return False
    for factors in ([arguments(p)[i] for p in products] for i in (0, 1)):
        places = [_place_of(f) for f in factors]
        first = places[0]
        if first is None or places != [(*first[:2], first[2] + i) for i in range(len(places))]:
            return False
    return True


def _place_of(factor: fx.Node) -> tuple[fx.Node, int, int] | None:
    """Of which tensor a factor is a position, in whatever shape and times whatever number."""
    while kind(factor) in (Kind.RESHAPE, Kind.PERMUTE) or is_scaled(factor):
        factor = operand(factor)
    return position(factor)


def _own(parts: Lanes) -> set[fx.Node] | None:
    """What only some lanes need; ``None`` where one is made from another, or they are the same."""
    if len(set(parts)) < len(parts):
        return None
    above = [_above(p) for p in parts]
    if any(p in a for i, a in enumerate(above) for j, p in enumerate(parts) if i != j):
        return None
    shared = set.intersection(*above)
    return {n for a in above for n in a if n not in shared} | set(parts)


def _above(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    left = [node]
    while left:
        for above in left.pop().all_input_nodes:
            if above not in found and is_live(above):
                found.add(above)
                left.append(above)
    return found
