"""Biases: what is added to a layer and is the same at every position is the layer's own, also where
it is added to some of its features, which are cut from it (to queries and values, not to keys, of
one map that gives all three)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import Held, grouped_linear
from relprop.tracer.editing import (
    applied,
    arguments,
    aten,
    emit,
    is_live,
    is_picked,
    made_after,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.sums.terms import (
    Terms,
    added,
    is_scaled,
    is_sum,
    is_top,
    scale_of,
    terms_of,
    without,
)

_CUTS = frozenset({Kind.RESHAPE, Kind.PERMUTE, Kind.SELECT, Kind.SLICE})


@dataclass(frozen=True)
class _Layer:
    """The layer that a tensor is the bias of: the sum adds ``scale`` times the layer's result, and
    ``places`` says which number of the bias each of its features gets, counted from 1; 0: none."""

    node: fx.Node
    scale: float
    places: Tensor


def join_biases(graph: fx.Graph) -> None:
    """What is added to a linear map or a convolution and is the same at every position is its bias,
    wherever in the sum it stands; that of a layer without one to which it is added before all
    else."""
    for node in list(graph.nodes):
        if not node._erased and is_sum(node) and (layer := _of_two(node)) is not None:
            live = is_live(arguments(node)[1])
            _give_bias(layer, arguments(node)[1 - live], 1)
            swap(node, arguments(node)[live])
    for node in list(graph.nodes):
        while not node._erased and is_top(node):
            terms = terms_of(node)
            found = next(_layers_with_bias(terms), None)
            if found is None:
                break
            layer, sign, bias = found
            _give_bias(layer, bias[1], sign * bias[0])
            new = added(node, without(terms_of(node), bias))
            swap(node, new)
            node = new


def _of_two(node: fx.Node) -> _Layer | None:
    """The layer without a bias that a sum of two adds one to."""
    args = arguments(node)
    if len(args) != 2 or node.kwargs or is_call(node, aten.sub) or sum(map(is_live, args)) != 1:
        return None
    layer = _layer_for(*sorted(args, key=is_live, reverse=True))
    return None if layer is None or _has_bias(layer) else layer


def _layers_with_bias(terms: Terms) -> Iterator[tuple[_Layer, int, tuple[int, fx.Node]]]:
    """Which term has a layer that another is the bias of, and the signs of both. A layer that has
    one takes no part of what is added to every position, if that is a sum of tensors."""
    fixed = [n for _, n in terms if not is_live(n)]
    for b, (_, bias) in enumerate(terms):
        if is_live(bias) and not is_picked(bias):
            continue
        layers = {t: found for t, (_, n) in enumerate(terms) if (found := _layer_for(n, bias))}
        for t in sorted(layers, key=lambda t: (_has_bias(layers[t]), t > b, abs(t - b))):
            others = [n for n in fixed if _layer_for(terms[t][1], n) is None]
            if not (others and _has_bias(layers[t])):
                yield layers[t], terms[t][0], terms[b]


def _has_bias(layer: _Layer) -> bool:
    """Whether a layer adds a bias of its own."""
    return len(layer.node.args) > 2 and arguments(layer.node)[2] is not None


def _is_move(node: fx.Node) -> bool:
    return kind(node) in _CUTS or is_call(node, aten.flip, aten.roll) or is_scaled(node)


def _layer_for(term: fx.Node, bias: fx.Node) -> _Layer | None:
    """The layer that ``bias`` could be the bias of, behind the moves and numbers that lead to a
    term."""
    if not is_live(term) or len(term.users) != 1 or val(bias).dtype != val(term).dtype:
        return None
    layer, way = term, list[fx.Node]()
    while _is_move(layer):
        way.append(layer)
        layer = operand(layer)
    layers = is_call(layer, aten.linear, grouped_linear) or kind(layer) is Kind.CONVOLUTION
    if not layers or not is_live(operand(layer)):
        return None
    if any(layer in n.all_input_nodes for n in made_after(layer, bias)):
        return None
    features = _features(layer, term)
    places = None if features is None else _places(features, _bias_shape(layer), bias)
    return None if places is None else _Layer(layer, scale_of(way), places)


def _bias_shape(layer: fx.Node) -> list[int]:
    """The shape of a layer's result with 1 for the axes along which its bias is repeated."""
    last = rank(layer) - 1
    own = (0, last) if is_call(layer, grouped_linear) else (last,)
    own = (1,) if kind(layer) is Kind.CONVOLUTION else own
    return [size if i in own else 1 for i, size in enumerate(shape_of(layer))]


def _features(layer: fx.Node, term: fx.Node) -> Tensor | None:
    """Which feature of the layer each number of the term is; ``None`` where something else reads
    these features."""
    shape, others = _bias_shape(layer), set[int]()
    known = {layer: torch.arange(math.prod(shape)).reshape(shape).expand(shape_of(layer))}
    left = [layer]
    while left:
        node = left.pop()
        for user in node.users if node is not term else ():
            if _is_move(user):
                known[user] = known[node] if is_scaled(user) else applied(user, known[node])
                left.append(user)
            else:
                others |= set(_once(known[node]).unique().tolist())
    own = known[term]
    return own if not others or others.isdisjoint(_once(own).unique().tolist()) else None


def _once(x: Tensor) -> Tensor:
    """A tensor without its repeats along axes."""
    for axis, step in enumerate(x.stride()):
        x = x.narrow(axis, 0, 1) if step == 0 else x
    return x


def _places(features: Tensor, shape: list[int], bias: fx.Node) -> Tensor | None:
    """For each feature of a layer which number of the bias is added to it, counted from 1, or 0;
    ``None`` where that is not the same at all positions."""
    once = _shape_once(bias)
    numbers = torch.arange(1, math.prod(once) + 1).reshape(once)
    try:
        numbers = numbers.expand(features.shape)
    except RuntimeError:
        return None
    for axis, size in enumerate(features.shape):
        if features.stride(axis) == 0 and size > 1:
            if numbers.stride(axis) != 0:
                return None
            features, numbers = (x.narrow(axis, 0, 1) for x in (features, numbers))
    found = torch.zeros(math.prod(shape), dtype=torch.long)
    found[features.flatten()] = numbers.flatten()
    return found if torch.equal(found[features], numbers) else None


def _shape_once(bias: fx.Node) -> list[int]:
    """The shape of a tensor without its repeats."""
    steps = zip(shape_of(bias), val(bias).stride(), strict=True)
    return [1 if step == 0 else size for size, step in steps]


def _give_bias(layer: _Layer, bias: fx.Node, sign: int) -> None:
    """Add to a layer's bias what the sum adds to its result."""
    at = layer.node
    for one in sorted(made_after(at, bias)):
        at.prepend(one)
    for axis, size in enumerate(_shape_once(bias)):
        if size < shape_of(bias)[axis]:
            bias = emit(at, aten.slice.Tensor, bias, axis, 0, 1, 1)
    own = reshaped(at, bias, [val(bias).numel()])
    if not torch.equal(layer.places, torch.arange(1, val(own).numel() + 1)):
        zero = emit(at, aten.new_zeros.default, own, [1])
        own = emit(at, aten.cat.default, [zero, own], 0)
        own = emit(at, aten.index.Tensor, own, [emit(at, Held(layer.places))])
    if (factor := sign / layer.scale) != 1:
        own = emit(at, aten.mul.Tensor, own, factor)
    grouped = is_call(at, grouped_linear)
    own = reshaped(at, own, _bias_shape(at)) if grouped else own
    x, weight, old, *others = (*arguments(at), None)[: max(3, len(at.args))]
    own = own if old is None else emit(at, aten.add.Tensor, old, own)
    swap(at, emit(at, at.target, x, weight, own, *others, **at.kwargs))
