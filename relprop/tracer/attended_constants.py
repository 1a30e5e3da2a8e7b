"""Attention to learned values, which PyTorch writes as a linear map of the softmax: the matrix
product that it is."""

from __future__ import annotations

from itertools import pairwise

from torch import fx

from relprop.operations import MOVES, Kind, argument, kind, operand
from relprop.tracer.atoms import Axes
from relprop.tracer.editing import aten, emit, is_float, is_live, permuted, rank, shape_of, swap
from relprop.tracer.softmax_rows import KEEPS_ROWS, axis_after


def attend_to_constants(
    graph: fx.Graph, axes: dict[fx.Node, Axes], softmaxes: set[fx.Node]
) -> bool:
    """Write a linear map over the tokens of a softmax that ends in no site as the matrix product
    that it is: attention, of which no value depends on an input. Whether there was one."""
    found = [n for n in graph.nodes if kind(n) is Kind.LINEAR and _weighs(n, softmaxes, axes)]
    for node in found:
        x, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
        dims = [*range(rank(weight) - 2), rank(weight) - 1, rank(weight) - 2]
        made = emit(node, aten.matmul.default, x, permuted(node, weight, dims))
        swap(node, made if bias is None else emit(node, aten.add.Tensor, made, bias))
    return bool(found)


def _weighs(linear: fx.Node, softmaxes: set[fx.Node], axes: dict[fx.Node, Axes]) -> bool:
    """Whether a linear map sums over the axis of one of these softmaxes, if it is one of scores and
    no features lie along it."""
    *moved, softmax = _moved_from(operand(linear))
    if softmax not in softmaxes:
        return False
    if not _are_scores(operand(softmax)):
        return False
    axis: int | None = argument(softmax, "dim") % rank(softmax)
    if all(atom.kind == "feature" for atom in axes[softmax][axis]):  # type: ignore[index]
        return False
    for source, node in pairwise((softmax, *reversed(moved))):
        axis = None if axis is None else axis_after(node, source, axis)
    return axis == rank(linear.args[0]) - 1


def _are_scores(node: fx.Node) -> bool:
    """Whether a tensor is a matrix product or a linear map, moved, or of several one is."""
    last = _moved_from(node)[-1]
    if kind(last) in (Kind.SUM, Kind.PRODUCT):
        return any(_are_scores(n) for n in _whole_operands(last))
    return kind(last) in (Kind.MATMUL, Kind.LINEAR)


def _moved_from(node: fx.Node) -> list[fx.Node]:
    """A tensor and, one above the other, those whose rows it has, up to the first that made its
    own, or has those of several."""
    found = [node]
    while kind(node) in KEEPS_ROWS | MOVES and kind(node) is not Kind.SOFTMAX:
        below = node.args[0]
        if kind(node) in (Kind.SUM, Kind.PRODUCT):
            whole = _whole_operands(node)
            below = whole[0] if len(whole) == 1 else None
        if not isinstance(below, fx.Node):
            break
        node = below
        found.append(node)
    return found


def _whole_operands(node: fx.Node) -> list[fx.Node]:
    """The tensors as large as the result, of what depends on an input, that a call combines."""
    live = [n for n in node.all_input_nodes if is_float(n) and is_live(n)]
    return [n for n in live if shape_of(n) == shape_of(node)]
