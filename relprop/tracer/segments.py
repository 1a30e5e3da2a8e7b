"""A graph cut into segments that run one after another: between two of them nothing is held but
what was made before the cut and is read after it. Cuts are chosen by how many bytes that is."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched
from relprop.tracer.program import Memo, Program

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


#: The places of a graph's order at which its segments begin, and its end.
Boundaries = tuple[int, ...]


@dataclass(frozen=True)
class Lives:
    """When each value of a program is made and last read: by ``reads`` of each node that runs.
    Sizes are those for ``batch`` samples of ``longer`` times as many tokens. ``weights``: those
    that are there only while what reads them runs, and how many bytes each takes."""

    program: Program
    reads: Callable[[fx.Node], Iterable[fx.Node]]
    longer: int = 1
    batch: int = 1
    weights: Mapping[fx.Node, int] = field(default_factory=dict)
    memo: Memo = field(init=False, default_factory=Memo, repr=False, compare=False)

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
        """The size of a node's value; 0 of what is the same for all samples, but for weights."""
        key = "bytes of", node, self.longer
        size = self.program.memo.cache(key, lambda: self._of_one_sample(node))
        return self.weights.get(node, 0) if size is None else self.batch * size

    def _of_one_sample(self, node: fx.Node) -> int | None:
        value = val(node)
        if not is_batched(node) or not isinstance(value, Tensor):
            return None
        dtype = self.program.dtype if value.is_floating_point() else None
        size = int(value.numel() * (dtype or value.dtype).itemsize)
        if self.longer > 1:
            for axis in self.program.axes.get(node, ()):
                size *= self.longer if is_token(axis) else 1
        return size

    @cached_property
    def spans(self) -> list[tuple[fx.Node, int, int]]:
        """What depends on an input and is read later: from which place on, and up to which."""
        made = ((n, i, self.last_read.get(n, i)) for i, n in enumerate(self.order))
        return [(n, i + 1, last) for n, i, last in made if last > i and is_batched(n)]

    @cached_property
    def crossing(self) -> list[int]:
        """How many bytes are alive at each place; -1 where there can be no cut, since one of the
        values is no tensor."""
        change, barred = [0] * (len(self.order) + 1), [0] * (len(self.order) + 1)
        for node, first, last in self.spans:
            several = int(not isinstance(val(node), Tensor))
            for counts, amount in ((change, self.bytes_of(node)), (barred, several)):
                counts[first] += amount
                counts[last + 1] -= amount
        alive = zip(accumulate(change), accumulate(barred), strict=True)
        return [-1 if no else size for size, no in alive]

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes that each node takes which runs, with the weights it reads: a view none."""
        return [self._size(n) if is_batched(n) and n in self.last_read else 0 for n in self.order]

    def _size(self, node: fx.Node) -> int:
        read = sum(self.weights.get(i, 0) for i in set(self.reads(node))) if self.weights else 0
        return read + (0 if kind(node) in VIEWS else self.bytes_of(node))

    def boundaries(self, least: int) -> Boundaries:
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
        return (*at, len(self.order))

    def peak(self, boundaries: Boundaries, times: int) -> int:
        """The bytes that are needed: what crosses a cut, and ``times`` the values of the largest
        segment."""
        inner = boundaries[1:-1]
        held = (
            n for n, first, last in self.spans if bisect(inner, last) > bisect_left(inner, first)
        )
        own = (sum(self.sizes[first:last]) for first, last in pairwise(boundaries))
        return sum(map(self.bytes_of, held)) + times * max(own)

    def within(self, budget: int, times: int) -> Boundaries:
        """The fewest segments for which the ``peak`` is no more than ``budget`` bytes; else those
        for which it is least."""
        peaks = self.memo.cache(("peaks", times), lambda: self._peaks(times))
        fitting = [c for c, peak in peaks.items() if peak <= budget]
        return min(fitting, key=len) if fitting else min(peaks, key=peaks.__getitem__)

    def _peaks(self, times: int) -> dict[Boundaries, int]:
        """The peak of every way to cut that is tried."""
        whole, found, least = sum(self.sizes), list[Boundaries](), max(1.0, max(self.sizes))
        while least < whole:
            found.append(self.boundaries(int(least)))
            least *= COARSER
        return {c: self.peak(c, times) for c in (*found, (0, len(self.order)))}

    def segments(self, boundaries: Boundaries) -> tuple[Segment, ...]:
        """The segments, in order."""

        def made() -> tuple[Segment, ...]:
            return tuple(self._segment(first, last) for first, last in pairwise(boundaries))

        return self.memo.cache(("segments", boundaries), made)

    def _segment(self, first: int, last: int) -> Segment:
        entering = tuple(n for n, made, read in self.spans if made <= first <= read)
        return Segment(frozenset(self.order[first:last]), entering)
