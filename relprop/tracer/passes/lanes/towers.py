"""One tower for several inputs that are laid one after another as its samples (a Siamese network,
two views of a picture): the tower once for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, fx

from relprop.operations import Kind, Value, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    joined,
    rank,
    reshaped,
    shape_of,
    swap,
)
from relprop.tracer.passes.lookups.axes import labels_of

#: What treats what lies along the first axis apart, if the result has as many axes.
PER_SAMPLE = frozenset(
    {
        Kind.CONVOLUTION,
        Kind.AVERAGE_POOL,
        Kind.MAX_POOL,
        Kind.RESAMPLE,
        Kind.BATCH_NORM,
        Kind.NORM,
        Kind.WINDOWS,
    }
)


def part_towers(graph: fx.Graph) -> None:
    """Piece what is computed of every ``cat`` whose parts attend each to itself, are mixed nowhere,
    and are taken apart again."""
    for node in list(graph.nodes):
        if is_call(node, aten.cat) and is_live(node) and (tower := _Tower(node)).stands_apart():
            tower.part()


class _Along(NamedTuple):
    """Where samples lie in a tensor: along an axis, each of them in stretches of so many places."""

    axis: int
    stretch: int


class _Tower:
    """What lies below a ``cat`` of samples: ``along`` its nodes, and ``ends``, calls that take
    places of one sample, and which it is."""

    def __init__(self, whole: fx.Node) -> None:
        self.joined, self.parts = whole, tuple(joined(whole))
        self.count = len(self.parts)
        axis: int = arguments(whole)[1] % rank(whole)
        self.along = {whole: _Along(axis, shape_of(self.parts[0])[axis])}
        self.ends: dict[fx.Node, int] = {}

    def stands_apart(self) -> bool:
        """Whether each part has an attention of its own, and nothing else meets another's."""
        axis, length = self.along[self.joined]
        alike = all(shape_of(p)[axis] == length for p in self.parts)
        if not alike or not 1 < self.count == len(set(self.parts)):
            return False
        node = self.joined
        while node.op != "output":
            node = node.next
            if any(x in self.along for x in node.all_input_nodes) and not self._follows(node):
                return False
        attends = any(kind(n) is Kind.SOFTMAX for n in self.along)
        return attends and set(self.ends.values()) == set(range(self.count))

    def _follows(self, node: fx.Node) -> bool:
        """Whether a call treats the samples apart, or takes one of them: it is noted."""
        if node.op != "call_function" or not is_tensor(node):
            return False
        if (places := self._taken(node)) is not None:
            which = set((places // self.along[operand(node)].stretch % self.count).tolist())
            self.ends[node] = which.pop()
            return not which
        if kind(node) is Kind.RESHAPE:
            found = self._reshaped(node)
        else:
            outs = {o for x, axis, o in _labels(node) if x in self.along and self._is_at(x, axis)}
            found = self._kept(node, outs.pop()) if len(outs) == 1 else None
        if found is not None:
            self.along[node] = found
        return found is not None

    def _is_at(self, x: fx.Node, axis: int) -> bool:
        return self.along[x].axis == axis

    def _taken(self, node: fx.Node) -> Tensor | None:
        """Which places a call takes of the axis of samples, if it does that."""
        x, *at = arguments(node)
        if not is_call(node, aten.select, aten.slice) or not self._is_at(x, at[0]):
            return None
        places = torch.arange(shape_of(x)[at[0]])
        one = is_call(node, aten.select)
        return places[at[1]].reshape(1) if one else places[slice(*at[1:])]

    def _kept(self, node: fx.Node, out: int) -> _Along | None:
        """Where samples lie in the result of a call that all of them enter alike."""
        own = [x for x in node.all_input_nodes if x in self.along]
        stretches = {self.along[x].stretch for x in own}
        met = all((x, self.along[x].axis, out) in set(_labels(node)) for x in own)
        mixed = is_call(node, aten.matmul) and any(
            is_live(x) and x not in own for x in node.all_input_nodes
        )
        whole = out >= 0 and met and not mixed and len(stretches) == 1
        whole = whole and not (
            kind(node) is Kind.SOFTMAX and arguments(node)[1] % rank(node) == out
        )
        return _Along(out, stretches.pop()) if whole else None

    def _reshaped(self, node: fx.Node) -> _Along | None:
        """Where samples lie in another shape."""
        x = operand(node)
        which = self._which(x, self.along[x]).expand(shape_of(x)).reshape(shape_of(node))
        for axis, size in enumerate(shape_of(node)):
            for stretch in range(1, size // self.count + 1):
                at = _Along(axis, stretch)
                if size % (self.count * stretch) == 0 and bool(
                    (self._which(node, at) == which).all()
                ):
                    return at
        return None

    def _which(self, x: fx.Node, at: _Along) -> Tensor:
        """To which sample each place belongs."""
        which = torch.arange(shape_of(x)[at.axis]) // at.stretch % self.count
        return which.reshape([-1] + [1] * (rank(x) - at.axis - 1))

    def part(self) -> None:
        """The tower for each sample."""
        below = [n for n in self.joined.graph.nodes if n in self.along or n in self.ends][1:]
        for i, part in enumerate(self.parts):
            made = {self.joined: part}
            for node in below:
                if node in self.along:
                    made[node] = self._one(node, made, i)
                elif self.ends[node] == i:
                    self._take(node, made[operand(node)])

    def _one(self, node: fx.Node, made: dict[fx.Node, fx.Node], i: int) -> fx.Node:
        """A call for one sample; what others say of each sample is cut."""
        if kind(node) in (Kind.RESHAPE, Kind.EXPAND):
            shape = shape_of(node)
            shape[self.along[node].axis] //= self.count
            return emit(node, node.target, made.get(operand(node), operand(node)), shape)
        given, (at, stretch) = dict(made), self.along[node]
        for x, axis, out in _labels(node):
            if x not in made and out == at and shape_of(x)[axis] > 1:
                given[x] = self._cut(node, x, _Along(axis, stretch), i)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: given.get(n, n))
        return emit(node, node.target, *args, **kwargs)

    def _cut(self, at: fx.Node, x: fx.Node, along: _Along, i: int) -> fx.Node:
        """What belongs to sample ``i``."""
        axis, stretch = along
        shape = shape_of(x)
        ahead, behind = shape[:axis], shape[axis + 1 :]
        laid = reshaped(at, x, [*ahead, -1, self.count, stretch, *behind])
        one = emit(at, aten.select.int, laid, axis + 1, i)
        return reshaped(at, one, [*ahead, shape[axis] // self.count, *behind])

    def _take(self, node: fx.Node, one: fx.Node) -> None:
        """The same places of the sample alone."""
        x, dim, *at = arguments(node)
        stretch = self.along[x].stretch
        places = self._taken(node)
        assert places is not None
        own = places // (stretch * self.count) * stretch + places % stretch
        first, last = int(own[0]), int(own[-1])
        if is_call(node, aten.select):
            swap(node, emit(node, node.target, one, dim, first))
        else:
            step = at[2] if len(at) > 2 else 1
            swap(node, emit(node, node.target, one, dim, first, last + 1, step))


def _labels(node: fx.Node) -> Iterator[tuple[fx.Node, int, int]]:
    """An operand, an axis of it along which a call treats all positions alike, and the axis of the
    result that it becomes; below 0 if it is summed."""
    x: Value = arguments(node)[0] if node.args else None
    if kind(node) is Kind.EMBEDDING:
        ids = operand(node, 1)
        yield from ((ids, i, i) for i in range(rank(ids)))
    elif kind(node) in PER_SAMPLE and rank(x) == rank(node):
        yield x, 0, 0
    yield from labels_of(node)
