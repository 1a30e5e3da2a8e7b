"""Linear maps that were cut by what they sum over into terms of a sum. However the features were
divided, they are one."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    joined,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.labels import LARGEST, Labels
from relprop.tracer.passes.simplify.layouts import reordered
from relprop.tracer.passes.sums.terms import added, folded, join_terms


def join_split_inputs(graph: fx.Graph, constants: Constants) -> None:
    """Σ W_i x_i over parts x_i of the features of one tensor, or over parts W_i of the columns of
    one matrix → W x."""

    def first(n: fx.Node) -> fx.Node | None:
        return _ways_up(operand(n))[-1] if _is_map(n) else None

    def matrix(n: fx.Node) -> fx.Node | None:
        whole = _ways_up(arguments(n)[1])[-1] if _is_map(n) else None
        return None if whole is None or is_live(whole) or whole is arguments(n)[1] else whole

    join_terms(graph, first, lambda at, parts: _joined(at, parts, Labels(constants)))
    join_terms(graph, matrix, lambda at, parts: _of_columns(at, parts, Labels(constants)))


def joined_linear(at: fx.Node, x: fx.Node, parts: list[fx.Node]) -> fx.Node:
    """One linear map of ``x``, which holds the operands of ``parts`` one after another."""
    weight = emit(at, aten.cat.default, [arguments(p)[1] for p in parts], 1)
    return emit(at, aten.linear.default, x, weight, *_bias(at, parts))


def _bias(at: fx.Node, parts: list[fx.Node]) -> list[fx.Node]:
    biases = [arguments(p)[2] for p in parts if len(p.args) > 2 and arguments(p)[2] is not None]
    return [folded(at, [(1, b) for b in biases])] if biases else []


def _is_map(node: fx.Node) -> bool:
    """Whether a call is a linear map, by parameters, that one other call reads."""
    if not is_call(node, aten.linear) or len(node.users) != 1:
        return False
    return is_live(operand(node)) and not any(is_live(n) for n in arguments(node)[1:])


def _ways_up(x: fx.Node) -> list[fx.Node]:
    """A tensor, and what its numbers, or those of it that depend on an input, were before each
    move."""
    way = [x]
    while kind(way[-1]) in MOVES:
        above = tensor_inputs(way[-1])
        above = tuple(n for n in above if is_live(n)) or above
        if len(above) != 1:
            break
        way.append(above[0])
    return way


def _joined(at: fx.Node, parts: list[fx.Node], labels: Labels) -> fx.Node | None:
    """The sum of some linear maps as one of all that they read of one tensor, in its order: of the
    first that it was, or, where that has more positions, of the last that it was in all maps."""
    ways = [_ways_up(operand(p)) for p in parts]
    last = next(n for n in ways[0] if all(n in way for way in ways))
    for source in dict.fromkeys((ways[0][-1], last)):
        made = _joined_from(source, at, parts, labels)
        if made is not None:
            return made
    return None


def _joined_from(
    source: fx.Node, at: fx.Node, parts: list[fx.Node], labels: Labels
) -> fx.Node | None:
    xs = _all_places([operand(p) for p in parts], source, labels)
    if xs is None or len({x.shape[:-1] for x in xs}) > 1:
        return None
    beside = torch.cat(xs, -1)
    apart = beside.unique().numel() == beside.numel() > 0
    if not apart or not _are_features(beside, source):
        return None
    order = beside.flatten(0, -2)[0].argsort()
    x = placed(at, source, beside[..., order])
    if x is None:
        return None
    weight = _beside(at, [arguments(p)[1] for p in parts], order, labels)
    return emit(at, aten.linear.default, x, weight, *_bias(at, parts))


def _of_columns(at: fx.Node, parts: list[fx.Node], labels: Labels) -> fx.Node | None:
    """The sum of some linear maps by columns of one matrix as the map of their operands side by
    side; ``None`` where the columns do not lie side by side."""
    weights = [arguments(p)[1] for p in parts]
    whole, shapes = _ways_up(weights[0])[-1], {tuple(shape_of(operand(p))[:-1]) for p in parts}
    columns = _all_places(weights, whole, labels)
    if columns is None or len(shapes) > 1:
        return None
    order = sorted(range(len(parts)), key=lambda i: int(columns[i][0, 0]))
    beside = torch.cat([columns[i] for i in order], 1)
    weight = placed(at, whole, beside) if beside.unique().numel() == beside.numel() else None
    if weight is None:
        return None
    x = emit(at, aten.cat.default, [operand(parts[i]) for i in order], rank(operand(parts[0])) - 1)
    return emit(at, aten.linear.default, x, weight, *_bias(at, parts))


def _beside(at: fx.Node, weights: list[fx.Node], order: Tensor, labels: Labels) -> fx.Node:
    """Columns of matrices in their new order: of one matrix that was cut, that matrix."""
    sources = {_ways_up(w)[-1] for w in weights}
    if len(sources) == 1:
        source = sources.pop()
        columns = _all_places(weights, source, labels)
        if columns is not None:
            made = placed(at, source, torch.cat(columns, 1)[:, order])
            if made is not None:
                return made
    weight = emit(at, aten.cat.default, weights, 1)
    if torch.equal(order, torch.arange(len(order))):
        return weight
    return emit(at, aten.index.Tensor, weight, [None, emit(at, Held(order))])


def _all_places(xs: list[fx.Node], source: fx.Node, labels: Labels) -> list[Tensor] | None:
    """Where the numbers of some tensors stand in ``source``, if that can be told of all."""
    found = [_places(x, source, labels) for x in xs]
    known = [places for places in found if places is not None]
    return known if len(known) == len(xs) else None


def _places(x: fx.Node, source: fx.Node, labels: Labels) -> Tensor | None:
    """Where each number of ``x`` stands in ``source``, counted from 0."""
    if val(source).numel() > LARGEST:
        return None
    way = []
    while x is not source:
        way.append(x)
        x = next(n for n in tensor_inputs(x) if is_live(n) or not is_live(source))
    known = torch.arange(1, val(source).numel() + 1).reshape(shape_of(source))
    for node in reversed(way):
        pushed = labels.push(node, {x: known})
        if pushed is None or not bool((pushed > 0).all()):
            return None
        x, known = node, pushed
    return known - 1


def _are_features(places: Tensor, source: fx.Node) -> bool:
    """Whether numbers are some features of every position: single tokens that a head reads, each
    by a map of its own, are two."""
    along = torch.unravel_index(places.flatten(), shape_of(source))[:-1]
    return all(
        len(i.unique()) == size for i, size in zip(along, shape_of(source)[:-1], strict=True)
    )


def placed(at: fx.Node, source: fx.Node, places: Tensor) -> fx.Node | None:
    """The numbers of ``source`` that stand in ``places``, counted from 0: a box of it, its axes in
    another order; ``None`` where they lie otherwise."""
    box = torch.arange(val(source).numel()).reshape(shape_of(source))
    for axis, along in enumerate(torch.unravel_index(places.flatten(), box.shape)):
        start, end = int(along.min()), int(along.max()) + 1
        if (start, end) != (0, shape_of(source)[axis]):
            source = emit(at, aten.slice.Tensor, source, axis, start, end, 1)
            box = box.narrow(axis, start, end - start)
    if box.numel() != places.numel():
        return None
    if torch.equal(box.flatten(), places.flatten()):
        return reshaped(at, source, places.shape)
    return reordered(at, source, torch.searchsorted(box.flatten(), places))


def cut_inputs(graph: fx.Graph, constants: Constants) -> None:
    """W (x, y) where the columns for one of them are constants, no parameters → W_1 x + W_2 y: a
    shortcut that stands among the inputs of a layer."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.linear) or not is_live(node):
            continue
        x, weight, *bias = arguments(node)
        if not is_call(x, aten.cat) or arguments(x)[1] != rank(x) - 1:
            continue
        xs = joined(x)
        weights = _columns(node, weight, [shape_of(x)[-1] for x in xs])
        if not any(isinstance(constants.value(w), Tensor) for w in weights):
            continue
        terms = [
            (1, emit(node, aten.linear.default, x, w)) for x, w in zip(xs, weights, strict=True)
        ]
        given = [(1, b) for b in bias if b is not None]
        swap(node, added(node, [*terms, *given]))


def _columns(at: fx.Node, weight: fx.Node, widths: list[int]) -> list[fx.Node]:
    """The matrices that a matrix holds beside each other, if they are as wide as this."""
    turned = is_call(weight, aten.permute)
    whole = operand(weight) if turned else weight
    if not is_call(whole, aten.cat) or arguments(whole)[1] != (0 if turned else 1):
        return []
    parts = joined(whole)
    if [shape_of(p)[arguments(whole)[1]] for p in parts] != widths:
        return []
    return [permuted(at, p, [1, 0]) for p in parts] if turned else parts
