"""Convolutions whose windows are the rows of one tensor: linear maps of its last axis, however the
rows were laid out for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, fx

from relprop.operations import FILLS, MOVES, Kind, argument, function_of, is_call, kind, of, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    operands_first,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.products.letters import letters_of
from relprop.tracer.passes.trials.parts import MOST_NUMBERS, Piece

_LAID_OUT = frozenset({Kind.RESHAPE, Kind.PERMUTE, Kind.PAD})


_FIXED = MOVES | FILLS | {Kind.PRODUCT}


def raise_convolutions(graph: fx.Graph, constants: Constants) -> None:
    """Every such convolution of which its letters alone do not tell."""
    for node in list(graph.nodes):
        if kind(node) is Kind.CONVOLUTION and (folded := _without_whole_axes(node)) is not None:
            swap(node, folded)
    for node in list(graph.nodes):
        if kind(node) is not Kind.CONVOLUTION or not is_live(node) or letters_of(node) is not None:
            continue
        whole = not of(node).transposed and argument(node, "groups") == 1
        if whole and rank(node) == of(node).axes + 2 and not is_live(arguments(node)[1]):
            new = _of_rows(node, constants)
            if new is not None:
                swap(node, new)


def _without_whole_axes(node: fx.Node) -> fx.Node | None:
    """A convolution along some axes whose kernel has the length of others (the features of words,
    taken as an image): these are channels."""
    x, kernel, padding = operand(node), arguments(node)[1], argument(node, "padding")
    plain = not of(node).transposed and argument(node, "groups") == 1 and is_live(node)
    padding = [0] if padding == "valid" else padding
    axes = range(of(node).axes)
    if not plain or is_live(kernel) or rank(x) != len(axes) + 2 or not isinstance(padding, list):
        return None
    stride, padding, dilation = (
        [*a * len(axes)][: len(axes)]
        for a in (argument(node, "stride"), padding, argument(node, "dilation"))
    )
    whole = [
        i
        for i in axes
        if shape_of(kernel)[2 + i] == shape_of(x)[2 + i] > 1 and (padding[i], dilation[i]) == (0, 1)
    ]
    left = [i for i in axes if i not in whole]
    if not whole or not left:
        return None
    folded = []
    for tensor in (x, kernel):
        sizes = shape_of(tensor)
        turned = permuted(node, tensor, [0, 1, *(2 + i for i in (*whole, *left))])
        channels = sizes[1] * math.prod(sizes[2 + i] for i in whole)
        folded.append(reshaped(node, turned, [sizes[0], channels, *(sizes[2 + i] for i in left)]))
    op = getattr(aten, f"conv{len(left)}d").default
    options = ([given[i] for i in left] for given in (stride, padding, dilation))
    made = emit(node, op, *folded, argument(node, "bias"), *options)
    return reshaped(node, made, shape_of(node))


def join_windows(graph: fx.Graph) -> None:
    """A linear map of overlapping windows that are laid out as columns (``unfold``) → the
    convolution that it is."""
    for node in list(graph.nodes):
        if not is_call(node, aten.linear):
            continue
        turned = operand(node)
        if kind(turned) is not Kind.PERMUTE or arguments(turned)[1] != [0, 2, 1]:
            continue
        columns = operand(turned)
        if kind(columns) is Kind.WINDOWS and len(columns.users) == len(turned.users) == 1:
            swap(node, _convolved(node, columns))


def _convolved(node: fx.Node, columns: fx.Node) -> fx.Node:
    x, size, dilation, padding, stride = arguments(columns)[:5]
    batch, channels = shape_of(x)[:2]
    weight, bias = arguments(node)[1], argument(node, "bias")
    kernel = reshaped(node, weight, [shape_of(weight)[0], channels, *size])
    made = emit(node, aten.conv2d.default, x, kernel, bias, stride, padding, dilation)
    made = reshaped(node, made, [batch, shape_of(weight)[0], shape_of(node)[1]])
    return permuted(node, made, [0, 2, 1])


def _of_rows(node: fx.Node, constants: Constants) -> fx.Node | None:
    """The linear map of the tensor whose rows the windows are."""
    kernel = arguments(node)[1]
    seen = _seen(kernel, constants).flatten(1).any(0).nonzero()[:, 0]
    count = val(node).numel() // shape_of(kernel)[0]
    for source, way in _laid_out(node):
        width, laid = len(seen), _in_rows(shape_of(source), len(seen))
        if not laid or val(source).numel() != count * width:
            continue
        rows = torch.arange(count * width, dtype=torch.float64).reshape(count, width)
        given = (1 + rows).reshape(shape_of(source))
        given = Piece((source,), operand(node), way, constants)(given)
        found = _windows(node, given, seen) - 1
        order = found[0].argsort()
        if torch.equal(found[:, order], rows):
            source = reshaped(node, source, laid)
            return _linear(node, source, seen[order].to(constants.device))
    return None


def _laid_out(node: fx.Node) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """What enters a convolution, as it was before each of the moves that lay it out for it."""
    x = operand(node)
    way: tuple[fx.Node, ...] = ()
    while val(x).numel() <= MOST_NUMBERS:
        yield x, way
        if kind(x) not in _LAID_OUT:
            return
        x, way = operand(x), (x, *way)


def _in_rows(shape: list[int], width: int) -> list[int]:
    """A shape whose last axes are one of this width; nothing if they make none."""
    first = next((i for i in range(len(shape)) if math.prod(shape[i:]) == width), None)
    return [] if first is None else [*shape[:first], width]


def _seen(kernel: fx.Node, constants: Constants) -> Tensor:
    """Where a kernel may hold other numbers than 0."""
    found: dict[fx.Node, Tensor] = {}
    for n in operands_first(kernel, found.__contains__):
        known = constants.value(n)
        if known is None and kind(n) in _FIXED:
            args = fx.node.map_arg(n.args, found.__getitem__)
            known = function_of(n)(*args)
        found[n] = torch.ones(shape_of(n)) if known is None else known
    filled: Tensor = found[kernel] != 0
    return filled


def _windows(node: fx.Node, given: Tensor, seen: Tensor) -> Tensor:
    """What stands at each position (first axis) where a kernel sees it (second)."""
    channels, *sizes = shape_of(arguments(node)[1])[1:]
    picks = torch.eye(channels * math.prod(sizes), dtype=given.dtype)[seen]
    picks = picks.reshape(len(seen), channels, *sizes)
    found: Tensor = function_of(node)(given, picks, None, *arguments(node)[3:], **node.kwargs)
    return found.movedim(1, -1).flatten(0, -2)


def _linear(node: fx.Node, source: fx.Node, order: Tensor) -> fx.Node:
    """The linear map of ``source``, its weights those places of the kernel, laid out as the
    convolution's result."""
    kernel, bias = arguments(node)[1], argument(node, "bias")
    outputs, *sizes = shape_of(kernel)
    weight = reshaped(node, kernel, [outputs, math.prod(sizes)])
    if order.tolist() != list(range(shape_of(weight)[1])):
        weight = emit(node, aten.index.Tensor, weight, [None, emit(node, Held(order))])
    made = emit(node, aten.linear.default, source, weight, *([] if bias is None else [bias]))
    batch, channels, *space = shape_of(node)
    made = reshaped(node, made, [batch, *space, channels])
    return permuted(node, made, [0, len(space) + 1, *range(1, len(space) + 1)])
