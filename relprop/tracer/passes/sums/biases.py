"""Biases: what is added to a layer and is the same at every position is the layer's own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx

from relprop.operations import Kind, argument, is_call, kind, operand
from relprop.operations.vocabulary import WrittenNorm, grouped_linear
from relprop.tracer.editing import (
    arguments,
    aten,
    drop_above,
    emit,
    expanded,
    is_live,
    is_picked,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.sums.parts import bias_of_some
from relprop.tracer.passes.sums.terms import (
    Terms,
    added,
    is_scaled,
    is_sum,
    is_top,
    scale_of,
    terms_of,
)


class _Varies(Exception):
    """A bias is not the same where positions are picked."""


def join_biases(graph: fx.Graph) -> None:
    """What is added to a linear map, a convolution or a norm and is the same at every position is
    its bias, wherever in the sum it stands; that of a layer without one to which it is added before
    all else, and to some of its features, which are cut from it."""
    for node in list(graph.nodes):
        if not node._erased and is_sum(node) and (new := _of_two(node)) is not None:
            above = node.all_input_nodes
            swap(node, new)
            drop_above(above)
    for node in list(graph.nodes):
        while not node._erased and is_top(node):
            terms = terms_of(node)
            found = next(_pairs_with_bias(terms), None)
            if found is None:
                break
            new = _with_bias(node, terms, *found)
            if new is None:
                break
            above = node.all_input_nodes
            swap(node, new)
            drop_above(above)
            node = new
            if kind(new) is not Kind.SUM:
                break


def _of_two(node: fx.Node) -> fx.Node | None:
    """A sum of a layer without a bias and of one, which is the layer's now."""
    args = arguments(node)
    if len(args) != 2 or node.kwargs or is_call(node, aten.sub) or sum(map(is_live, args)) != 1:
        return None
    live = int(is_live(args[1]))
    found = _bias_for(args[live], args[1 - live])
    if found is None:
        return bias_of_some(args[live], args[1 - live])
    return None if _has_bias(found[0]) else _with_bias(node, [(1, n) for n in args], live, 1 - live)


def _pairs_with_bias(terms: Terms) -> Iterator[tuple[int, int]]:
    """Which term has a layer that another is the bias of. A layer that has one takes no part of
    what is added to every position, if that is a sum of tensors."""
    fixed = [n for _, n in terms if not is_live(n)]
    for b, (_, bias) in enumerate(terms):
        if is_live(bias) and not is_picked(bias):
            continue
        layers = {t: found for t, (_, n) in enumerate(terms) if (found := _bias_for(n, bias))}
        for t in sorted(layers, key=lambda t: (_has_bias(layers[t][0]), t > b, abs(t - b))):
            found = layers[t]
            others = [n for n in fixed if _bias_for(terms[t][1], n) is None]
            if not (others and _has_bias(found[0])):
                yield t, b


def _has_bias(layer: fx.Node) -> bool:
    """Whether a layer adds a bias of its own."""
    position = 3 if is_call(layer, aten.layer_norm) else 2
    return len(layer.args) > position and arguments(layer)[position] is not None


def _layer_of(term: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The layer whose result a term is, and the moves and numbers on the way to it, last first."""
    way: list[fx.Node] = []
    while len(term.users) == 1:
        if _takes_bias(term):
            return term, way
        moves = kind(term) in (Kind.RESHAPE, Kind.PERMUTE) or _axes_picked(term)
        if not moves and not is_scaled(term):
            return None
        way.append(term)
        term = operand(term)
    return None


def _axes_picked(node: fx.Node) -> tuple[int, ...]:
    """Along which axes a call picks or orders positions; none if it does anything else."""
    if is_call(node, aten.select, aten.slice):
        return (arguments(node)[1],)
    if is_call(node, aten.flip, aten.roll):
        return tuple(d % rank(node) for d in argument(node, "dims"))
    if is_call(node, aten.index):
        used = [(i, index) for i, index in enumerate(arguments(node)[1]) if index is not None]
        if len(used) == 1 and rank(used[0][1]) == 1 and not is_live(used[0][1]):
            return (used[0][0],)
    return ()


def _takes_bias(node: fx.Node) -> bool:
    if kind(node) is Kind.CONVOLUTION:
        return True
    if isinstance(node.target, WrittenNorm):
        return node.target.centred is not None
    return is_call(node, aten.linear, grouped_linear, aten.layer_norm) and is_live(operand(node))


def _bias_for(term: fx.Node, bias: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The layer that ``bias`` could be the bias of, and the way to it."""
    found = _layer_of(term) if is_live(term) else None
    if found is None or val(bias).dtype != val(term).dtype:
        return None
    layer, way = found
    others = [i for i in range(rank(layer)) if i not in _bias_axes(layer)]
    lies = torch.empty_strided(shape_of(bias), val(bias).stride(), device="meta")
    try:
        lies = lies.expand(shape_of(term))
    except RuntimeError:
        return None
    try:
        fits = _is_along(way, lies, others)
    except RuntimeError:  # no view of it lies along the layer's axes: its numbers tell
        numbers = torch.arange(val(bias).numel(), dtype=torch.int32).reshape(shape_of(bias))
        fits = _is_along(way, numbers.expand(shape_of(term)), others)
    return (layer, way) if fits else None


def _is_along(way: list[fx.Node], lies: Tensor, others: list[int]) -> bool:
    """Whether a tensor is the same at all positions of a layer's ``others`` axes, and at those that
    are picked on the ``way``."""
    try:
        for node in way:
            lies = _undone(node, lies)
    except _Varies:
        return False
    return all(_is_same(lies, i) for i in others)


def _bias_axes(layer: fx.Node) -> tuple[int, ...]:
    """The axes of a layer's result along which its bias may vary."""
    last = rank(layer) - 1
    if kind(layer) is Kind.CONVOLUTION:
        return (1,)
    if is_call(layer, grouped_linear):
        return (0, last)
    if is_call(layer, aten.layer_norm):
        return tuple(range(rank(layer) - len(arguments(layer)[1]), rank(layer)))
    return tuple(range(rank(layer))) if isinstance(layer.target, WrittenNorm) else (last,)


def _undone(node: fx.Node, lies: Tensor) -> Tensor:
    """A tensor of a move's result as it lies in the move's operand; one without values: as a
    view."""
    if kind(node) is Kind.RESHAPE:
        shape = shape_of(operand(node))
        return lies.view(shape) if lies.is_meta else lies.reshape(shape)
    if kind(node) is Kind.PERMUTE:
        order = list(arguments(node)[1])
        return lies.permute([order.index(i) for i in range(len(order))])
    for axis in _axes_picked(node):
        lies = lies.unsqueeze(axis) if is_call(node, aten.select) else lies
        if not _is_same(lies, axis):
            raise _Varies
        lies = lies.narrow(axis, 0, 1).expand(
            *_with_axis(lies, axis, shape_of(operand(node))[axis])
        )
    return lies


def _with_axis(lies: Tensor, axis: int, size: int) -> list[int]:
    """A tensor's shape with an axis of another length."""
    return [*lies.shape[:axis], size, *lies.shape[axis + 1 :]]


def _is_same(lies: Tensor, axis: int) -> bool:
    """Whether a tensor is the same at all positions of an axis; one without values: whether it is
    repeated."""
    if lies.shape[axis] == 1 or lies.is_meta:
        return lies.shape[axis] == 1 or lies.stride(axis) == 0
    return bool((lies == lies.narrow(axis, 0, 1)).all())


def _with_bias(node: fx.Node, terms: Terms, t: int, b: int) -> fx.Node | None:
    """The sum without its term ``b``, which is now the bias of the layer behind term ``t``."""
    (sign, term), (minus, bias) = terms[t], terms[b]
    found = _bias_for(term, bias)
    assert found is not None
    layer, way = found
    if any(is_scaled(n) for n in way) and kind(layer) is Kind.NORM:
        return None
    value = bias if sign == minus else emit(node, aten.neg.default, bias)
    value = reshaped(node, value, [1] * (rank(term) - rank(bias)) + shape_of(bias))
    value = expanded(node, value, shape_of(term))
    for n in way:
        value = _back(node, n, value)
    axes = _bias_axes(layer)
    for i in reversed(range(rank(value))):
        if i not in axes:
            value = emit(node, aten.select.int, value, i, 0)
    made = _biased(node, layer, value, scale_of(way))
    for n in reversed(way):
        if not is_scaled(n):
            made = _again(node, n, made)
    rest = [(sign, made) if i == t else pair for i, pair in enumerate(terms) if i != b]
    return added(node, rest)


def _back(at: fx.Node, move: fx.Node, value: fx.Node) -> fx.Node:
    """A tensor of a move's result as it lies in the move's operand."""
    if kind(move) is Kind.RESHAPE:
        return reshaped(at, value, shape_of(operand(move)))
    if kind(move) is Kind.PERMUTE:
        order = list(arguments(move)[1])
        return permuted(at, value, [order.index(i) for i in range(len(order))])
    for axis in _axes_picked(move):
        shape = shape_of(value)
        if is_call(move, aten.select):
            shape.insert(axis, 1)
            value = reshaped(at, value, shape)
        shape[axis] = shape_of(operand(move))[axis]
        one = emit(at, aten.slice.Tensor, value, axis, 0, 1, 1)
        value = expanded(at, one, shape)
    return value


def _again(at: fx.Node, move: fx.Node, value: fx.Node) -> fx.Node:
    """The same move of another tensor."""
    if kind(move) is Kind.RESHAPE:
        return reshaped(at, value, shape_of(move))
    if kind(move) is Kind.PERMUTE:
        return permuted(at, value, list(arguments(move)[1]))
    return emit(at, move.target, value, *arguments(move)[1:], **move.kwargs)


def _biased(at: fx.Node, layer: fx.Node, value: fx.Node, scale: float) -> fx.Node:
    """The layer, ``scale`` times, with ``value`` added to its bias."""
    position = 3 if is_call(layer, aten.layer_norm) else 2
    args = [*arguments(layer), *[None] * (position + 1 - len(layer.args))]
    if is_call(layer, grouped_linear):
        value = reshaped(at, value, [shape_of(value)[0], 1, shape_of(value)[-1]])
    if scale != 1:
        for i in (1, 2):
            args[i] = args[i] and emit(at, aten.mul.Tensor, args[i], scale)
    old = args[position]
    args[position] = value if old is None else emit(at, aten.add.Tensor, old, value)
    return emit(at, layer.target, *args, **layer.kwargs)
