"""Values that rules read and that are made again when relevance comes by, in place of being kept
from the forward pass on: norms, sums, multiples, activations, copies, and products larger than what
they are made of, as attention scores are. To make them takes little beside the layer that reads
them; kept, they would be a third of what an explanation holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import is_batched
from relprop.tracer.program import Program
from relprop.tracer.weights import LARGE

#: Values of fewer bytes in each sample are kept: to make them again takes Python longer.
SMALL = 2**18
MOVED = frozenset({Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SELECT, Kind.SLICE})
CHEAP = MOVED | {
    *(Kind.NORM, Kind.SUM, Kind.AFFINE, Kind.FUNCTION),
    *(Kind.CAST, Kind.IDENTITY),
}

#: For each value that is made again, what must be kept for it.
Again = Mapping[fx.Node, frozenset[fx.Node]]


def made_again(program: Program, keep: Collection[fx.Node]) -> Again:
    """Those of the values to ``keep`` that can be made of others of them by a cheap operation."""
    kept, again = set(keep), dict[fx.Node, frozenset[fx.Node]]()
    for node in program.graph.nodes:
        if node not in kept or not is_batched(node) or _bytes(node) < SMALL:
            continue
        if _is_cheap(node) and (sources := _sources(node, kept, again)) is not None:
            again[node] = sources
            kept.remove(node)
            kept |= sources
    return again


def _is_cheap(node: fx.Node) -> bool:
    if kind(node) is Kind.MATMUL:
        return _bytes(node) > sum(map(_bytes, tensor_inputs(node)))
    return kind(node) in CHEAP


def _sources(node: fx.Node, kept: set[fx.Node], again: Again) -> frozenset[fx.Node] | None:
    """What a value is made of, of what is kept: its operands, or what these are made of by changes
    of place and the like; ``None`` where more would have to be kept for it. A sum is made of what
    is kept alone: a stream of them would be made from its beginning."""
    found = set[fx.Node]()
    for read in tensor_inputs(node):
        if read in kept or _is_small_weight(read):
            found.add(read)
        elif kind(node) is Kind.SUM:
            return None
        elif read in again:
            found |= again[read]
        elif kind(read) in CHEAP and (above := _sources(read, kept, again)) is not None:
            found |= above
        else:
            return None
    return frozenset(found)


def _is_small_weight(node: fx.Node) -> bool:
    """Whether it is the same for all samples, and read once and kept, whatever weights are."""
    value = val(node)
    return not is_batched(node) and isinstance(value, Tensor) and value.numel() < LARGE


def _bytes(node: fx.Node) -> int:
    value = val(node)
    return value.numel() * value.dtype.itemsize if isinstance(value, Tensor) else 0


def settled(keep: frozenset[fx.Node], again: Again) -> frozenset[fx.Node]:
    """What is kept where some of it is made again."""
    return (keep - again.keys()).union(*(again[n] for n in keep if n in again))
