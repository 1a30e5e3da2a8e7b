"""Which lanes are worth merging: they do something of their own that a rule would see apart, and
none reads another."""

from __future__ import annotations

from relprop.operations import Kind, kind
from relprop.tracer.editing import is_live
from relprop.tracer.passes.lanes.alike import Lanes

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
    found = False
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
