"""What is left in a finished graph that looks like attention, and is none to the methods.

Attention is a softmax over tokens. Where a product sums over tokens with weights that depend on the
input and sum to 1, but come from no softmax (sparsemax, entmax, a relu divided by its sum), methods
over attention pass it as they pass any product; this is said.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from relprop.operations import Kind, integers, kind, operand
from relprop.tracer.atoms import is_token
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import is_float, is_live, rank
from relprop.tracer.follow import depending
from relprop.tracer.program import Program
from relprop.tracer.run import execute

#: How far from 1 a sum of weights may be, and from each other weights that are the same.
NEAR, EVEN = 1e-3, 1e-6
#: What makes other things of a softmax's weights: not so what picks, hides, scales or turns them.
MIXES = {Kind.MATMUL, Kind.LINEAR, Kind.CONVOLUTION, Kind.NORM, Kind.BATCH_NORM, Kind.SUM}


def other_attention(program: Program, model: nn.Module, inputs: Inputs) -> tuple[fx.Node, ...]:
    """The sums over tokens whose weights are those of an attention without a softmax, by the
    numbers of the first sample's run, which is made only where there may be some."""
    nodes = program.graph.nodes
    softmaxes = [n for n in nodes if kind(n) is Kind.SOFTMAX]
    made = depending(nodes, softmaxes, lambda n: kind(n) not in MIXES)
    sites = {site.contraction for site in program.sites}
    found = [
        (node, weights, axis)
        for node in nodes
        if node not in sites
        for weights, axis in _weights(node, program)
        if weights not in made
    ]
    if not found:
        return ()
    with torch.no_grad():
        values = execute(program, model, inputs.select(0, 1), {w for _, w, _ in found})
    return tuple(node for node, w, axis in found if _sum_to_one(values[w], axis))


def _weights(node: fx.Node, program: Program) -> Iterator[tuple[fx.Node, int]]:
    """What may weigh the tokens that ``node`` sums, and the axis of the sum, from the end: an
    operand of a product, both of which depend on the input."""
    found: list[tuple[fx.Node, int]] = []
    if kind(node) is Kind.MATMUL:
        left, right = operand(node, 0), operand(node, 1)
        found = [(left, -1), (right, -2)] if is_live(left) and is_live(right) else []
    elif kind(node) is Kind.TOTAL and kind(product := operand(node)) is Kind.PRODUCT:
        parts = [n for n in product.args[:2] if isinstance(n, fx.Node) and is_live(n)]
        dims = [d % rank(product) - rank(product) for d in integers(node, "dim") or ()]
        found = [(w, d) for w in parts for d in dims] if len(parts) == 2 else []
    for weights, axis in found:
        axes = program.axes.get(weights, ())
        if is_float(weights) and len(axes) >= -axis and is_token(axes[axis]):
            yield weights, axis


def _sum_to_one(weights: Tensor, axis: int) -> bool:
    """What is even, but for zeros, is the mean of what a mask leaves, or a pick."""
    sums, largest = weights.double().sum(axis), weights.amax(axis, keepdim=True)
    even = ((weights == 0) | (largest - weights <= EVEN * largest)).all()
    return bool((weights >= 0).all() & ((sums - 1).abs() < NEAR).all() & ~even)
