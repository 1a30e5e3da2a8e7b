"""Which operand of a product counts as a constant: the divisor of a norm, the attention map, the
gate. From the graph, for rules that ask.

A gate is decided by the range of the function an operand passed *last*, seen backwards through
moves, casts and numbers: a weight between 0 and 1 before a value between −1 and 1, that before any
other function, a function before none. Equal ranks decide nothing: both factors are values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, fx

from relprop.operations import FILLS, MOVES, Kind, argument, is_call, kind
from relprop.rules.notes import Constants
from relprop.tracer.order import Flow
from relprop.tracer.program import Site

aten = torch.ops.aten
SEEN_THROUGH = (
    MOVES
    | FILLS
    | {Kind.CAST, Kind.DETACH, Kind.AFFINE, Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.IDENTITY}
)
#: What takes some of its numbers.
CHOSEN = frozenset({Kind.LARGEST, Kind.PICK, Kind.GATHER})
_GRID = torch.linspace(-60.0, 60.0, 4001, dtype=torch.float64)


def gate_notes(flow: Flow, sites: Collection[Site]) -> dict[fx.Node, Constants]:
    """For products of two activations, the position of the operand that is a constant, by kind.

    ``constant``: a factor that is one over a deviation. ``attention``: the map at an attention
    site, or what is a softmax to a matrix product. ``gate``: the gating activation of an
    elementwise product. ``routing``: a factor that is a share, of a softmax or of the largest of
    some numbers between 0 and 1, as routers give it. A product that has none of them is in no
    entry.
    """
    maps = {site.contraction: site.attention for site in sites}
    notes: dict[fx.Node, Constants] = {}
    for node in flow.nodes:
        if kind(node) not in (Kind.PRODUCT, Kind.MATMUL):
            continue
        operands = [a for a in node.args[:2] if isinstance(a, fx.Node) and a in flow.members]
        if len(operands) != 2:
            continue
        last = [_last(o, flow) for o in operands]
        if kind(node) is Kind.MATMUL:
            weights = [i for i, n in enumerate(last) if kind(n) is Kind.SOFTMAX]
            alone = weights[0] if len(weights) == 1 else None
            at = operands.index(maps[node]) if node in maps else alone
            found = Constants(attention=at)
        else:
            found = _constants_of_factors(last, flow)
        shares = [i for i, o in enumerate(operands) if _is_share(o, flow)]
        found = replace(found, routing=shares[0] if len(shares) == 1 else None)
        if found != Constants():
            notes[node] = found
    return notes


def _constants_of_factors(last: list[fx.Node], flow: Flow) -> Constants:
    divisors = [i for i, n in enumerate(last) if _is_inverse(n, flow)]
    ranks = [_rank(n) for n in last]
    return Constants(
        constant=divisors[0] if len(divisors) == 1 else None,
        gate=None if ranks[0] == ranks[1] else ranks.index(max(ranks)),
    )


def _is_share(node: fx.Node, flow: Flow) -> bool:
    """Whether a factor is what a softmax gave, or the largest of some numbers between 0 and 1, as
    they are or over their sum."""
    chosen = False
    while True:
        above = flow.inputs[node]
        if kind(node) is Kind.SOFTMAX or (chosen and _rank(node) == 3):
            return True
        if kind(node) is Kind.QUOTIENT and len(above) == 2:
            above = above[:1]  # over their sum
        chosen |= kind(node) in CHOSEN
        if kind(node) not in SEEN_THROUGH | CHOSEN or len(above) != 1:
            return False
        node = above[0]


def _is_inverse(node: fx.Node, flow: Flow) -> bool:
    """Whether a call is one over something, in any spelling."""
    if is_call(node, aten.rsqrt, aten.reciprocal):
        return True
    if kind(node) is Kind.QUOTIENT:
        return node.args[0] not in flow.members
    exponent = argument(node, "exponent") if is_call(node, aten.pow) else None
    return isinstance(exponent, (int, float)) and exponent < 0


def _last(node: fx.Node, flow: Flow) -> fx.Node:
    """The call that an operand passed last, backwards through what only moves or rescales it."""
    while True:
        above = flow.inputs[node]
        if _is_inverse(node, flow) or kind(node) not in SEEN_THROUGH or len(above) != 1:
            return node
        node = above[0]


def _rank(node: fx.Node) -> int:
    if kind(node) is Kind.SOFTMAX:
        return 3
    if kind(node) is not Kind.FUNCTION or is_call(node, aten.rsqrt, aten.reciprocal, aten.sqrt):
        return 0
    bounds = _range(node)
    if bounds is None:
        return 1
    low, high = bounds
    return 3 if low >= 0 and high <= 1 else 2 if low >= -1 and high <= 1 else 1


def _range(node: fx.Node) -> tuple[float, float] | None:
    """The smallest and the largest value that the function of one number takes; ``None`` where it
    reads parameters, or is not defined everywhere."""
    if len(node.all_input_nodes) != 1 or not callable(node.target):
        return None
    try:
        made = node.target(_GRID, *node.args[1:], **node.kwargs)
    except (RuntimeError, TypeError):
        return None
    if not isinstance(made, Tensor) or not bool(made.isfinite().all()):
        return None
    return float(made.min()), float(made.max())
