"""Products of vectors that are divided by what each of them decides (a cosine, however late its
lengths divide): each vector is scaled before they meet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind
from relprop.tracer.editing import aten, emit, is_live, reshaped, shape_of, swap, val
from relprop.tracer.order import Flow
from relprop.tracer.passes.factors import Factors, factors_of, is_product, is_top, multiplied
from relprop.tracer.passes.region import flow_of


def scale_operands(graph: fx.Graph) -> None:
    """(u·v)·f(u)·g(v) → (u·f(u))·(v·g(v)), where f and g are one number for each vector."""
    _part_roots(graph)
    flow = flow_of(graph)
    for node in flow.nodes:
        if node._erased or not is_product(node) or not is_top(node):
            continue
        factors, number = factors_of(node)
        for power, laid in factors:
            met = laid
            while kind(met) is Kind.RESHAPE and len(met.users) == 1:
                met = met.args[0]  # type: ignore[assignment]
            if power > 0 and is_call(met, aten.matmul) and len(met.users) == 1:
                rest = [f for f in factors if f[1] is not laid]
                if (new := _scaled(flow, node, met, laid, rest, number)) is not None:
                    swap(node, new)
                break
    graph.eliminate_dead_code()


def _scaled(
    flow: Flow, node: fx.Node, met: fx.Node, laid: fx.Node, factors: Factors, number: float
) -> fx.Node | None:
    """The product with its scales in front; ``None`` where none belongs to an operand alone."""
    if shape_of(laid) != shape_of(node) or not all(is_live(x) for x in met.args[:2]):
        return None
    scales: tuple[Factors, Factors] = ([], [])
    left = []
    for power, f in factors:
        sides = [side for side in (0, 1) if _belongs(flow, f, met.args[side])]
        small = _in_front(node, met, f, sides[0]) if len(sides) == 1 else None
        if small is None:
            left.append((power, f))
        else:
            scales[sides[0]].append((power, small))
    if not any(scales):
        return None
    operands = [_laid(node, met.args[side], scales[side]) for side in (0, 1)]
    made = reshaped(node, emit(node, met.target, *operands), shape_of(node))
    return multiplied(node, [(1, made), *left], number)


def _source(operand: Any) -> tuple[Any, list[fx.Node]]:
    """The tensor that an operand lays out, and the moves that do."""
    way: list[fx.Node] = []
    while kind(operand) in (Kind.RESHAPE, Kind.PERMUTE):
        way.insert(0, operand)
        operand = operand.args[0]
    return operand, way


def _laid(at: fx.Node, operand: Any, scales: Factors) -> fx.Node:
    """An operand of which what it lays out is scaled."""
    source, way = _source(operand)
    if not scales:
        return operand  # type: ignore[no-any-return]
    made = multiplied(at, [(1, source), *scales], 1.0)
    for move in way:
        made = emit(at, move.target, made, *move.args[1:])
    return made


def _belongs(flow: Flow, f: fx.Node, operand: Any) -> bool:
    """Whether a factor is made of the tensor that an operand lays out, and of nothing else."""
    source, _ = _source(operand)
    known = f in flow.index and source in flow.index and f is not source
    return known and flow.common_dominator([source, f]) is source


def _in_front(node: fx.Node, met: fx.Node, f: fx.Node, side: int) -> fx.Node | None:
    """A factor of a product's result as one of what an operand lays out; ``None`` where it is not
    one number for each row (or column)."""
    operand: Any = met.args[side]
    source, way = _source(operand)
    which = torch.arange(val(f).numel()).reshape(shape_of(f))
    places = which.expand(shape_of(node)).reshape(shape_of(met))
    one: Tensor = places.narrow(-1 - side, 0, 1)
    if not bool((places == one).all()) or one.shape[:-2] != torch.Size(shape_of(operand)[:-2]):
        return None
    moved = torch.arange(val(source).numel()).reshape(shape_of(source))
    for move in way:
        moved = move.target(moved, *move.args[1:])  # type: ignore[operator]
    at_source = torch.empty(val(source).numel(), dtype=torch.long)
    at_source[moved.flatten()] = one.expand(shape_of(operand)).flatten()
    at_source = at_source.reshape(shape_of(source))
    for axis in range(at_source.dim()):
        first = at_source.narrow(axis, 0, 1)
        at_source = first if bool((at_source == first).all()) else at_source
    if not torch.equal(at_source.flatten(), which.flatten()):
        return None
    return reshaped(node, f, list(at_source.shape))


def _part_roots(graph: fx.Graph) -> None:
    """The root of a product of sums of squares → the product of their roots."""
    for node in list(graph.nodes):
        below: Any = node.args[0] if node.args else None
        if not _is_root(node) or not is_product(below) or kind(below) is not Kind.PRODUCT:
            continue
        if len(below.args) == 2 and all(_is_of_squares(x) for x in below.args):
            a, b = (emit(node, node.target, x, *node.args[1:]) for x in below.args)
            swap(node, emit(node, aten.mul.Tensor, a, b))


def _is_root(node: fx.Node) -> bool:
    root = is_call(node, aten.pow) and node.args[1] in (0.5, -0.5)
    return root or is_call(node, aten.sqrt, aten.rsqrt)


def _is_of_squares(x: Any) -> bool:
    """Whether a tensor is a sum or a mean of squares, which is never below 0."""
    while kind(x) is Kind.RESHAPE:
        x = x.args[0]
    if not is_live(x) or kind(x) not in (Kind.TOTAL, Kind.MATMUL):
        return False
    if kind(x) is Kind.TOTAL:
        x = x.args[0]
        return (is_call(x, aten.pow) and x.args[1] == 2) or (
            is_call(x, aten.mul, aten.square) and len({x.args[0], x.args[-1]}) == 1
        )
    a, b = x.args[:2]
    return shape_of(x)[-2:] == [1, 1] and _laid_out(a) is _laid_out(b) is not None


def _laid_out(x: Any) -> Any:
    """What a row or a column is made of by its shape alone."""
    while kind(x) is Kind.RESHAPE:
        x = x.args[0]
    return x
