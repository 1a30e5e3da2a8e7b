"""Which lanes are worth merging: they do something of their own that a rule would see apart, and
none reads another."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

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
    reads another.

    What is above them is looked at from the last call to the first, each with the lanes that need
    it; what all of them need is none's own, nor is anything above it.
    """
    needed_by = {part: 1 << i for i, part in enumerate(parts)}
    if len(needed_by) < len(parts):
        return False
    every, waiting = (1 << len(parts)) - 1, set(parts)
    left = [_Last(part) for part in parts]
    heapq.heapify(left)
    found = _multiply_in_turn(parts)
    while left:
        node = heapq.heappop(left).node
        lanes = needed_by.pop(node)
        if node in waiting:
            waiting.remove(node)
            if lanes & (lanes - 1):
                return False
        elif lanes == every:
            continue
        found = found or (kind(node) in WORTH and len(node.all_input_nodes) > 0)
        if found and not waiting:
            return True
        for above in filter(is_live, node.all_input_nodes):
            if above not in needed_by:
                heapq.heappush(left, _Last(above))
            needed_by[above] = needed_by.get(above, 0) | lanes
    return found


@dataclass(frozen=True)
class _Last:
    """A node that is less than those before it in the graph."""

    node: fx.Node

    def __lt__(self, other: _Last) -> bool:
        return other.node < self.node


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
