"""Products of vectors that are divided by what each of them decides (a cosine, however late its
lengths divide; a softmax whose sum divides the values): each vector is scaled before they meet."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.editing import (
    applied,
    arguments,
    aten,
    before_reshapes,
    emit,
    is_live,
    permuted,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.order import Flow
from relprop.tracer.passes.products.factors import (
    Factors,
    factors_of,
    is_outermost,
    is_product,
    multiplied,
)
from relprop.tracer.passes.trials.subgraphs import flow_of

#: A tensor of which an operand is another layout, that layout's order of axes, and a factor in the
#: shape that it has there.
Front = tuple[fx.Node, tuple[int, ...], fx.Node]


def scale_operands(graph: fx.Graph) -> None:
    """(u·v)·f(u)·g(v) → (u·f(u))·(v·g(v)), where f and g are one number for each vector."""
    _part_roots(graph)
    _part_lengths(graph)
    flow = flow_of(graph)
    for node in flow.nodes:
        if node._erased or not is_product(node) or not is_outermost(node):
            continue
        factors, number = factors_of(node)
        for power, laid in factors:
            met = _met(laid)
            if power > 0 and _is_product(met) and len(met.users) == 1:
                rest = [f for f in factors if f[1] is not laid]
                if (new := _scaled(flow, node, met, laid, rest, number)) is not None:
                    swap(node, new)
                break


def _scaled(
    flow: Flow, node: fx.Node, met: fx.Node, laid: fx.Node, factors: Factors, number: float
) -> fx.Node | None:
    """The product with its scales in front; ``None`` where none belongs to an operand alone."""
    if shape_of(laid) != shape_of(node):
        return None
    operands: list[fx.Node] = list(arguments(met)[:2])
    left = []
    for power, f in factors:
        sides = [side for side in (0, 1) if is_live(operand(met, side))]
        found = [(side, at) for side in sides if (at := _in_front(flow, node, met, f, side))]
        found.sort(key=lambda one: flow.index[one[1][0]])
        if not found or operands[found[-1][0]] is not arguments(met)[found[-1][0]]:
            left.append((power, f))
            continue
        side, (source, order, small) = found[-1]  # the operand that it is made of most directly
        scaled = multiplied(node, [(1, source), (power, small)], 1.0)
        operands[side] = reshaped(node, permuted(node, scaled, order), shape_of(operands[side]))
    if len(left) == len(factors):
        return None
    made = reshaped(node, emit(node, met.target, *operands), shape_of(node))
    return multiplied(node, [(1, made), *left], number)


def _met(laid: fx.Node) -> fx.Node:
    """What a tensor was, for one reader, before it was put into other shapes."""
    while len(laid.users) == 1 and (kind(laid) is Kind.RESHAPE or _moves_ones(laid)):
        laid = operand(laid)
    return laid


def _moves_ones(x: fx.Node) -> bool:
    """Whether a call changes the place of axes of length 1 alone."""
    if kind(x) is not Kind.PERMUTE:
        return False
    long = [d for d in arguments(x)[1] if shape_of(operand(x))[d] > 1]
    return long == sorted(long)


def _is_product(met: fx.Node) -> bool:
    """Whether a call is the product of two activations, or of exponentials and values that depend
    on no input."""
    if is_call(met, aten.matmul):
        return all(is_live(x) for x in arguments(met)[:2])
    if not is_call(met, aten.linear, grouped_linear) or any(arguments(met)[2:]):
        return False
    return is_call(_layout(operand(met))[0], aten.exp)


def _in_front(flow: Flow, node: fx.Node, met: fx.Node, f: fx.Node, side: int) -> Front | None:
    """Where a factor stands in front of one operand, of which it is one number for each row (0) or
    column (1), and is made of that operand alone."""
    of = operand(met, side)
    which = torch.arange(val(f).numel()).reshape(shape_of(f))
    places = which.expand(shape_of(node)).reshape(shape_of(met))
    one = places.narrow(-1 - side, 0, 1)
    if not bool((places == one).all()) or one.shape[:-2] != torch.Size(shape_of(of)[:-2]):
        return None
    root, laid = _layout(of)
    source = flow.dominator(f) if f in flow.index else None
    scores = _layout(operand(root))[0] if kind(root) is Kind.SOFTMAX else root
    while source is not None and _layout(source)[0] not in (root, scores):
        source = flow.dominator(source)
    if source is None:
        return None
    if _layout(source)[0] is not root:  # what the softmax's scores decide scales its weights
        source = root
    own = _layout(source)[1]
    there = torch.empty(laid.numel(), dtype=torch.long)
    there[laid.flatten()] = one.expand(laid.shape).flatten()
    small = _once(there[own])
    orders = itertools.permutations(range(own.dim()))
    order = next((o for o in orders if torch.equal(own.permute(o).reshape(laid.shape), laid)), None)
    if order is None or not torch.equal(small.flatten(), which.flatten()):
        return None
    return source, order, reshaped(node, f, list(small.shape))


def _once(x: Tensor) -> Tensor:
    """A tensor without repeats along its axes."""
    for axis in range(x.dim()):
        first = x.narrow(axis, 0, 1)
        x = first if bool((x == first).all()) else x
    return x


def _layout(x: fx.Node) -> tuple[fx.Node, Tensor]:
    """The tensor whose numbers another lays out, and which of them stands where."""
    moves: list[fx.Node] = []
    while kind(x) in (Kind.RESHAPE, Kind.PERMUTE):
        moves.insert(0, x)
        x = operand(x)
    places = torch.arange(val(x).numel()).reshape(shape_of(x))
    for move in moves:
        places = applied(move, places)
    return x, places


def _part_roots(graph: fx.Graph) -> None:
    """The root of a product of sums of squares → the product of their roots."""
    for node in list(graph.nodes):
        below: object = arguments(node)[0] if node.args else None
        if not _is_root(node) or not is_product(below) or kind(below) is not Kind.PRODUCT:
            continue
        if len(below.args) == 2 and all(_is_of_squares(x) for x in arguments(below)):
            a, b = (emit(node, node.target, x, *arguments(node)[1:]) for x in arguments(below))
            swap(node, emit(node, aten.mul.Tensor, a, b))


def _part_lengths(graph: fx.Graph) -> None:
    """A matrix of products of two lengths, as a product of a column and a row → their product."""
    for node in list(graph.nodes):
        outer = is_call(node, aten.matmul) and shape_of(operand(node))[-1] == 1
        if outer and all(is_live(x) and _is_length(x) for x in arguments(node)):
            swap(node, emit(node, aten.mul.Tensor, *arguments(node)))


def _is_length(x: fx.Node) -> bool:
    """Whether a tensor holds a number that describes many."""
    while kind(x) in (Kind.RESHAPE, Kind.PERMUTE, Kind.FUNCTION):
        x = operand(x)
    return kind(x) in (Kind.TOTAL, Kind.STATISTIC)


def _is_root(node: fx.Node) -> bool:
    root = is_call(node, aten.pow) and arguments(node)[1] in (0.5, -0.5)
    return root or is_call(node, aten.sqrt, aten.rsqrt)


def _is_of_squares(x: fx.Node) -> bool:
    """Whether a tensor is a sum or a mean of squares, which is never below 0."""
    x = before_reshapes(x)
    if not is_live(x) or kind(x) not in (Kind.TOTAL, Kind.MATMUL):
        return False
    if kind(x) is Kind.TOTAL:
        x = operand(x)
        return (is_call(x, aten.pow) and arguments(x)[1] == 2) or (
            is_call(x, aten.mul, aten.square) and len({operand(x), arguments(x)[-1]}) == 1
        )
    a, b = arguments(x)[:2]
    return shape_of(x)[-2:] == [1, 1] and before_reshapes(a) is before_reshapes(b)
