"""The end of a graph that reads every number of an output off the features of one position, by one
row of a weight: a linear map, and what follows it element by element.

Whatever is asked of few elements of such an output can be asked of their positions and of their
rows of the weight alone. Found from structure: upwards from the output, by where each operation
takes its axes from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, argument, is_call, kind, operand
from relprop.tracer.calls import Values, call_node
from relprop.tracer.editing import aten, rank, shape_of, tensor_inputs
from relprop.tracer.facts import is_floating, place, role, shape

#: For every axis of one sample's value, which places of it are there; ``None``: all.
Index = tuple[Tensor | None, ...]
#: Outputs, and of each what there is of it.
Indices = Mapping[fx.Node, Index]
#: Operations that look at a whole row: parts of their values cannot be made from parts.
COMPARING = frozenset({Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.NORM})
_MOVES = {
    Kind.RESHAPE: aten.reshape,
    Kind.SELECT: aten.select,
    Kind.SLICE: aten.slice,
}


@dataclass(frozen=True)
class Readout:
    """``nodes``: the calls from an output up to the linear map, the output first."""

    nodes: tuple[fx.Node, ...]

    @property
    def below(self) -> fx.Node:
        """The features that are read."""
        return operand(self.nodes[-1])

    @cached_property
    def extra(self) -> Mapping[fx.Node, fx.Node]:
        """What else the calls read (weights, biases, scales), and which call does."""
        along = {*self.nodes, self.below}
        return {i: node for node in self.nodes for i in tensor_inputs(node) if i not in along}

    @property
    def can_be_made(self) -> bool:
        """Whether parts of the output can be made from parts of what is read."""
        return not any(kind(node) in COMPARING for node in self.nodes)

    def indices(self, index: Index) -> dict[fx.Node, Index]:
        """What is to be there of every tensor, for a part of the output."""
        found = {self.nodes[0]: index}
        for node in self.nodes:
            found |= _read_for(node, found[node])
        return found

    def made(
        self,
        node: fx.Node,
        values: Values,
        indices: Mapping[fx.Node, Index],
        dtype: torch.dtype | None,
    ) -> Tensor:
        """A part of one call's value, from those parts of ``values`` that it reads."""
        rest = own_arguments(node, indices[node])
        if rest is not None:
            moved: Tensor = node.target(values[operand(node)], *rest)  # type: ignore[operator]
            return moved
        made: Tensor = call_node(node, values, dtype)
        return made


def readout_of(output: fx.Node) -> Readout | None:
    """The end of the graph before an output; ``None`` if no linear map makes its numbers one by
    one."""
    nodes = [output]
    while (source := _source(nodes[-1])) is not None:
        if kind(nodes[-1]) is Kind.LINEAR:
            found = Readout(tuple(nodes))
            read = [i for node in nodes for i in tensor_inputs(node)]
            return found if len(read) == len(set(read)) else None
        nodes.append(source)
    return None


@dataclass(frozen=True)
class Head:
    """The module at ``path`` that reads an ``output`` off the ``features`` of single positions.
    ``index``: what is read of the output; ``places``: of which features that is."""

    output: fx.Node
    path: str
    features: fx.Node
    index: Index
    places: Index

    def of_few(self, features: Tensor) -> Tensor | None:
        """Those of the ``features`` of a batch; ``None`` if these lie otherwise than in the
        graph."""
        if tuple(features.shape[1:]) != shape(self.features)[1:]:
            return None
        return taken(self.features, features, self.places)


def heads_of(indices: Indices) -> tuple[Head, ...]:
    """The modules that make outputs of which few positions are read, one by one and in place."""
    found = []
    for output, index in indices.items():
        readout = None if all(c is None for c in index) else readout_of(output)
        if readout is None or any(kind(n) not in ELEMENTWISE for n in readout.nodes[:-1]):
            continue
        path, features = place(readout.nodes[-1]).path, readout.below
        if path and index[0] is None:
            found.append(Head(output, path, features, index, readout.indices(index)[features]))
    return tuple(found)


def _source(node: fx.Node) -> fx.Node | None:
    """The activation of which a call's result has the same numbers, one by one, or sums by the rows
    of a weight; ``None`` if there is no such, or another activation beside it."""
    read = tensor_inputs(node)
    active = [i for i in read if role(i) == "activation"]
    if len(active) != 1 or not is_floating(node) or not is_floating(active[0]):
        return None
    what, source = kind(node), active[0]
    if what is Kind.LINEAR:
        plain = source is node.args[0] and rank(node.args[1]) == 2
        return source if plain else None
    if what in ELEMENTWISE | COMPARING:
        return source if shape_of(source) == shape_of(node) else None
    moves = what in _MOVES and is_call(node, _MOVES[what]) and not node.kwargs and read == (source,)
    return source if moves and (what is not Kind.RESHAPE or _only_units(node)) else None


def _only_units(node: fx.Node) -> bool:
    """Whether a reshape does nothing but add and drop axes of length 1."""
    before, after = ([n for n in shape_of(x) if n != 1] for x in (operand(node), node))
    return before == after


def _read_for(node: fx.Node, index: Index) -> dict[fx.Node, Index]:
    """What is to be there of the tensors that a call reads, for a part of its result."""
    what = kind(node)
    if what is Kind.LINEAR:
        source, weight, *bias = tensor_inputs(node)
        return {source: (*index[:-1], None), weight: (index[-1], None)} | dict.fromkeys(
            bias, (index[-1],)
        )
    if what not in _MOVES:
        return {i: _broadcast(index, i) for i in tensor_inputs(node)}
    source = operand(node)
    if what is Kind.RESHAPE:
        long = iter([c for c, n in zip(index, shape_of(node), strict=True) if n != 1])
        return {source: tuple(next(long) if n != 1 else None for n in shape_of(source))}
    dim = argument(node, "dim") % rank(source)
    if what is Kind.SELECT:
        place = torch.tensor([argument(node, "index") % shape_of(source)[dim]])
        return {source: (*index[:dim], place, *index[dim:])}
    places = torch.arange(shape_of(source)[dim])[_sliced(node)]
    kept = index[dim]
    here = places if kept is None else places[kept.to(places.device)]
    return {source: (*index[:dim], here, *index[dim + 1 :])}


def _sliced(node: fx.Node) -> slice:
    return slice(argument(node, "start"), argument(node, "end"), argument(node, "step"))


def _broadcast(index: Index, source: fx.Node) -> Index:
    """The same of an operand whose axes count from the last, and which may be repeated along
    some."""
    wide = len(index) - rank(source)
    return tuple(None if n == 1 else index[wide + i] for i, n in enumerate(shape_of(source)))


def own_arguments(node: fx.Node, index: Index) -> Sequence[object] | None:
    """What follows the tensor in the call of a move, for a part of its result: nothing is left out
    of what is there. ``None``: what the model wrote."""
    what = kind(node)
    if what is Kind.RESHAPE:
        return [sizes(node, index)]
    if what is Kind.SELECT:
        return [argument(node, "dim"), 0]
    if what is Kind.SLICE:
        return [argument(node, "dim"), 0, sys.maxsize, 1]
    return None


def sizes(node: fx.Node, index: Index) -> list[int]:
    """The shape of a part of one sample's value."""
    return [n if c is None else len(c) for n, c in zip(shape_of(node), index, strict=True)]


def taken(node: fx.Node, value: Tensor, index: Index) -> Tensor:
    """A part of a node's value, of one sample or of a batch."""
    for axis, places in enumerate(index, -rank(node)):
        if places is not None:
            value = value.index_select(axis, places.to(value.device))
    return value


def within(index: Index, kept: Index) -> Index:
    """The same places, counted among those that were ``kept``."""
    both = zip(index, kept, strict=True)
    return tuple(c if c is None or k is None else torch.searchsorted(k, c) for c, k in both)


def whole_index(node: fx.Node) -> Index:
    """Nothing is cut away of a node's value."""
    return (None,) * rank(node)


def put_back(node: fx.Node, part: Tensor, index: Index) -> Tensor:
    """A part of a node's value in its place, and 0 around it; axes before it stay."""
    for axis, (places, size) in enumerate(zip(index, shape_of(node), strict=True), -len(index)):
        if places is not None:
            shape = list(part.shape)
            shape[axis] = size
            part = part.new_zeros(shape).index_copy(axis, places.to(part.device), part)
    return part
