"""A graph cut into segments that run one after another: between two of them nothing is held but
what was made before the cut and is read after it. Cuts are chosen by how many bytes that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched
from relprop.tracer.program import Program

#: Operations that make no tensor of their own.
VIEWS = frozenset({Kind.RESHAPE, Kind.PERMUTE, Kind.EXPAND, Kind.SLICE, Kind.SELECT})
#: By how much the least size of a segment grows from one try to the next.
COARSER = 1.25


@dataclass(frozen=True)
class Segment:
    """Some nodes, one after another in the graph. ``entering``: what was made before them and is
    read by them or after them."""

    nodes: frozenset[fx.Node]
    entering: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Cuts:
    """Where to cut, and the bytes that one sample then needs: ``held`` between segments, and
    ``largest``, the values of one segment."""

    at: tuple[int, ...]
    held: int
    largest: int

    @property
    def peak(self) -> int:
        """Both together."""
        return self.held + self.largest


@dataclass(frozen=True)
class Lives:
    """When each value of a program is made and last read: by ``reads`` of each node that runs."""

    program: Program
    reads: Callable[[fx.Node], Iterable[fx.Node]]

    @cached_property
    def order(self) -> tuple[fx.Node, ...]:
        """All nodes in order."""
        return tuple(self.program.graph.nodes)

    @cached_property
    def last_read(self) -> dict[fx.Node, int]:
        """The place of the last node that reads each node which runs at all."""
        last: dict[fx.Node, int] = {}
        for i in range(len(self.order) - 1, -1, -1):
            node = self.order[i]
            if node.op == "output" or node in last:
                last.setdefault(node, i)
                for read in self.reads(node):
                    last.setdefault(read, i)
        return last

    def bytes_of(self, node: fx.Node) -> int:
        """The size of one sample's value; 0 of what is the same for all samples."""
        value = val(node)
        if not is_batched(node) or not isinstance(value, Tensor):
            return 0
        dtype = self.program.dtype if value.is_floating_point() else None
        return int(value.numel() * (dtype or value.dtype).itemsize)

    def alive(self, place: int) -> tuple[fx.Node, ...]:
        """What is made before a place and read there or later, of what depends on an input."""
        before = self.order[:place]
        return tuple(n for n in before if is_batched(n) and self.last_read.get(n, -1) >= place)

    @cached_property
    def crossing(self) -> list[int]:
        """How many bytes are alive at each place; -1 where there can be no cut, since one of the
        values is no tensor."""
        change, barred = [0] * (len(self.order) + 1), [0] * (len(self.order) + 1)
        for i, node in enumerate(self.order):
            last = self.last_read.get(node, i)
            if last == i or not is_batched(node):
                continue
            several = int(not isinstance(val(node), Tensor))
            for counts, amount in ((change, self.bytes_of(node)), (barred, several)):
                counts[i + 1] += amount
                counts[last + 1] -= amount
        alive = zip(accumulate(change), accumulate(barred), strict=True)
        return [-1 if no else size for size, no in alive]

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes that each node takes which runs: a view none."""
        own = (n in self.last_read and kind(n) not in VIEWS for n in self.order)
        return [self.bytes_of(n) if runs else 0 for n, runs in zip(self.order, own, strict=True)]

    def cuts(self, least: int) -> Cuts:
        """Segments of at least so many bytes, cut where least is alive: between that and twice as
        many."""
        at, size, best = [0], 0, None
        for place, own in enumerate(self.sizes):
            allowed = size >= least and self.crossing[place] >= 0
            if allowed and (best is None or self.crossing[place] <= self.crossing[best[0]]):
                best = (place, 0)
            size += own
            if best is not None:
                best = (best[0], best[1] + own)
                if size >= 2 * least:
                    at.append(best[0])
                    size, best = best[1], None
        return self._judged((*at, len(self.order)))

    def _judged(self, at: tuple[int, ...]) -> Cuts:
        held = {n for place in at[1:-1] for n in self.alive(place)}
        own = [sum(self.sizes[first:last]) for first, last in pairwise(at)]
        return Cuts(at, sum(map(self.bytes_of, held)), max(own))

    def within(self, budget: int) -> Cuts:
        """The fewest segments for which one sample needs no more than ``budget`` bytes; else those
        for which it needs least."""
        whole, found, least = sum(self.sizes), list[Cuts](), max(1.0, max(self.sizes))
        while least < whole:
            found.append(self.cuts(int(least)))
            least *= COARSER
        found.append(self._judged((0, len(self.order))))
        fitting = [c for c in found if c.peak <= budget]
        return (
            min(fitting, key=lambda c: len(c.at)) if fitting else min(found, key=lambda c: c.peak)
        )

    def segments(self, cuts: Cuts) -> Sequence[Segment]:
        """The segments, in order."""
        return tuple(
            Segment(frozenset(self.order[first:last]), self.alive(first))
            for first, last in pairwise(cuts.at)
        )
