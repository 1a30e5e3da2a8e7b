"""Which lanes are worth merging: they do something of their own that a rule would see apart, and
none reads another."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import arguments, aten, is_live, is_tensor
from relprop.tracer.passes.lanes.alike import Lanes
from relprop.tracer.passes.sums.terms import is_scaled, position

#: What makes lanes worth merging: rules or methods see the pieces apart.
WORTH_MERGING = frozenset({Kind.SOFTMAX, Kind.LINEAR, Kind.MATMUL, Kind.NORM, Kind.SUM, Kind.TOTAL})


def should_merge(parts: Lanes) -> bool:
    """Whether the lanes do something of their own that a rule would see apart, and none of them
    reads another.

    What is above them is looked at from the last call to the first, each with the lanes that need
    it; what all of them need is none's own, nor is anything above it.
    """
    needed_by = {part: 1 << i for i, part in enumerate(parts)}
    if len(needed_by) < len(parts):
        return False
    every, node, waiting = (1 << len(parts)) - 1, max(parts), set(parts)
    found = _multiply_in_turn(parts)
    while needed_by and not (found and not waiting):
        lanes = needed_by.pop(node, 0)
        if node in waiting and lanes & (lanes - 1):
            return False
        if node in waiting or lanes not in (0, every):
            found = found or (kind(node) in WORTH_MERGING and len(node.all_input_nodes) > 0)
            for above in filter(is_live, node.all_input_nodes):
                needed_by[above] = needed_by.get(above, 0) | lanes
        waiting.discard(node)
        node = node.prev
    return found


def _multiply_in_turn(parts: Lanes) -> bool:
    """Whether the lanes are products of one tensor's positions along an axis with another's, one
    after another."""
    products = list(parts)
    while all(kind(p) is Kind.RESHAPE for p in products):
        products = [operand(p) for p in products]
    if not all(multiplies(p) for p in products):
        return False
    for factors in ([arguments(p)[i] for p in products] for i in (0, 1)):
        places = [_place_of(f) for f in factors]
        first = places[0]
        if first is None or places != [(*first[:2], first[2] + i) for i in range(len(places))]:
            return False
    return True


def multiplies(node: fx.Node) -> bool:
    """Whether a call that no two others read multiplies two activations."""
    if not is_call(node, aten.mul) or len(node.users) > 1:
        return False
    return all(is_tensor(f) and is_live(f) for f in arguments(node)[:2])


def _place_of(factor: fx.Node) -> tuple[fx.Node, int, int] | None:
    """Of which tensor a factor is a position, in whatever shape and times whatever number."""
    while kind(factor) in (Kind.RESHAPE, Kind.PERMUTE) or is_scaled(factor):
        factor = operand(factor)
    return position(factor)
