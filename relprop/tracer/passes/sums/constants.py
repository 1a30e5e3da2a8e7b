"""Linear maps by constants: sums, picks and copies of features, or a bias, by what their numbers
say."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import is_call, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    joined,
    rank,
    shape_of,
    swap,
)


def drop_constant_inputs(graph: fx.Graph, constants: Constants) -> None:
    """A linear map of a tensor beside a column of numbers → of the tensor, with a bias."""
    for node in list(graph.nodes):
        if not is_call(node, aten.linear) or not is_live(node) or len(node.args) > 2:
            continue
        found = _beside_a_number(operand(node), constants)
        if found is None:
            continue
        live, number, width = found
        weight, size = operand(node, 1), shape_of(live)[-1]
        own = emit(node, aten.slice.Tensor, weight, 1, 0, size, 1)
        rest = emit(node, aten.slice.Tensor, weight, 1, size, size + width, 1)
        bias = emit(node, aten.sum.dim_IntList, rest, [1])
        bias = bias if number == 1 else emit(node, aten.mul.Tensor, bias, number)
        swap(node, emit(node, aten.linear.default, live, own, bias))


def _beside_a_number(x: fx.Node, constants: Constants) -> tuple[fx.Node, float, int] | None:
    """The tensor beside which some columns hold one number; that number, and how many there are."""
    if is_call(x, aten.constant_pad_nd):
        live, around, *number = arguments(x)
        if len(around) != 2 or around[0] != 0:
            return None
        given, width = (number[0] if number else 0), around[1]
    elif is_call(x, aten.cat) and arguments(x)[1] == rank(x) - 1 and len(joined(x)) == 2:
        live, beside = joined(x)
        given, width = constants.number(beside), shape_of(beside)[-1]
    else:
        return None
    return (live, given, width) if given is not None and is_live(live) and width > 0 else None


def read_constants(graph: fx.Graph, constants: Constants) -> None:
    """A linear map whose matrix is constants, no parameters: sums, picks and copies of features are
    what its numbers say."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.linear) or not is_live(operand(node)):
            continue
        weight = constants.value(arguments(node)[1])
        if not isinstance(weight, Tensor) or weight.numel() > 1 << 20:
            continue
        new = _by_numbers(node, weight)
        if new is None:
            continue
        if len(node.args) > 2 and arguments(node)[2] is not None:
            new = emit(node, aten.add.Tensor, new, arguments(node)[2])
        swap(node, new)


def _by_numbers(node: fx.Node, weight: Tensor) -> fx.Node | None:
    x, last = operand(node), rank(node) - 1
    if weight.shape[1] > 1 and bool((weight == weight[:, :1]).all()):  # every row is one number
        total = emit(node, aten.sum.dim_IntList, x, [last], True)
        rows = weight[:, 0].tolist()
        if len(set(rows)) == 1:
            scaled = total if rows[0] == 1 else emit(node, aten.mul.Tensor, total, rows[0])
            return expanded(node, scaled, shape_of(node))
        return None
    size = weight.shape[0]
    if weight.shape[1] % size == 0 and weight.shape[1] > size > 1:
        blocks = weight.split(size, 1)
        scales = [b[0, 0] for b in blocks]
        eye = torch.eye(size, dtype=weight.dtype, device=weight.device)
        if all(torch.equal(b, s * eye) for b, s in zip(blocks, scales, strict=True)):
            return _sum_of_blocks(node, x, size, [float(s) for s in scales])
    if bool(((weight == 0) | (weight == 1)).all()) and bool((weight.sum(1) <= 1).all()):
        return _picked_between(node, x, weight)
    return None


def _picked_between(node: fx.Node, x: fx.Node, weight: Tensor) -> fx.Node | None:
    """Features that are picked, maybe with zeros before and behind them."""
    some = weight.sum(1).nonzero().flatten().tolist()
    if not some or some != list(range(some[0], some[-1] + 1)):
        return None
    picked = _picked(node, x, weight[some].argmax(1).tolist())
    around = [some[0], len(weight) - 1 - some[-1]]
    return emit(node, aten.constant_pad_nd.default, picked, around) if any(around) else picked


def _sum_of_blocks(node: fx.Node, x: fx.Node, size: int, scales: list[float]) -> fx.Node:
    total: fx.Node | None = None
    for i, scale in enumerate(scales):
        part = emit(node, aten.slice.Tensor, x, rank(x) - 1, i * size, (i + 1) * size, 1)
        part = part if scale == 1 else emit(node, aten.mul.Tensor, part, scale)
        total = part if total is None else emit(node, aten.add.Tensor, total, part)
    assert total is not None
    return total


def _picked(node: fx.Node, x: fx.Node, places: list[int]) -> fx.Node:
    last, first = rank(x) - 1, places[0]
    if places == list(range(shape_of(x)[-1])):
        return x
    if places == list(range(first, first + len(places))):
        return emit(node, aten.slice.Tensor, x, last, first, first + len(places), 1)
    picks = [emit(node, aten.slice.Tensor, x, last, p, p + 1, 1) for p in places]
    return emit(node, aten.cat.default, picks, last)
