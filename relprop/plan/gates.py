"""Which operand of a product counts as a constant: the divisor of a norm, the attention map, the
gate. From the graph, for rules that ask.

A gate is decided by what an operand passed *last*, seen backwards through moves, casts and numbers:
a sigmoid or a softmax (a weight between 0 and 1) before a tanh, a tanh before any other activation,
an activation before none. Equal ranks decide nothing: both factors are values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import fx

from relprop.rules import operations as ops
from relprop.tracer.attention import SOFTMAX
from relprop.tracer.editing import argument, name_of
from relprop.tracer.order import Flow
from relprop.tracer.program import Site

WEIGHTS = frozenset({"sigmoid", "hardsigmoid"}) | SOFTMAX
BOUNDED = frozenset({"tanh", "hardtanh", "softsign"})
OTHER = frozenset({"activation written out"}) | frozenset(
    (
        "gelu relu relu6 silu mish elu selu celu leaky_relu prelu hardswish softplus "
        "log_sigmoid exp"
    ).split()
)
DIVISORS = frozenset({"rsqrt", "reciprocal"})
SEEN_THROUGH = frozenset(p.__name__ for p in (*ops.MOVES, *ops.FILL)) | frozenset(
    "to _to_copy mul div add sub rsub neg clamp clamp_min clamp_max nan_to_num detach".split()
)


def gate_notes(
    flow: Flow, sites: Collection[Site], written: Mapping[fx.Node, str]
) -> dict[fx.Node, Mapping[str, int]]:
    """For products of two activations, the position of the operand that is a constant, by kind.
    ``written``: the outputs of regions, and what these are.

    ``constant``: a factor that is one over a deviation. ``attention``: the map at an attention
    site, or what is a softmax to a matrix product. ``gate``: the gating activation of an
    elementwise product. A product that has none of them is in no entry.
    """
    maps = {site.contraction: site.attention for site in sites}
    notes: dict[fx.Node, Mapping[str, int]] = {}
    for node in flow.nodes:
        operands = (
            [a for a in node.args[:2] if isinstance(a, fx.Node)]
            if name_of(node) in ("mul", "multiply", "matmul", "bmm", "mm", "mv", "dot")
            else []
        )
        if len(operands) != 2 or not all(o in flow.members for o in operands):
            continue
        last = [_last(o, flow, written) for o in operands]
        if name_of(node) not in ("mul", "multiply"):
            weights = [i for i, name in enumerate(last) if name in SOFTMAX]
            at = (
                operands.index(maps[node])
                if node in maps
                else weights[0]
                if len(weights) == 1
                else None
            )
            kinds = {"attention": at}
        else:
            divisors = [i for i, name in enumerate(last) if name in DIVISORS]
            ranks = [_rank(name) for name in last]
            kinds = {
                "constant": divisors[0] if len(divisors) == 1 else None,
                "gate": None if ranks[0] == ranks[1] else ranks.index(max(ranks)),
            }
        found = {kind: at for kind, at in kinds.items() if at is not None}
        if found:
            notes[node] = found
    return notes


def _last(node: fx.Node, flow: Flow, written: Mapping[fx.Node, str]) -> str:
    """The operator an operand passed last, backwards through what only moves or rescales it; 1/x in
    any spelling is ``"reciprocal"``."""
    while True:
        above, name = flow.inputs[node], name_of(node)
        if node in written:
            return written[node]
        if name == "div" and node.args[0] not in flow.members:
            return "reciprocal"
        if (
            name == "pow"
            and isinstance(exponent := argument(node, 1, "exponent"), (int, float))
            and exponent < 0
        ):
            return "reciprocal"
        if name not in SEEN_THROUGH or len(above) != 1:
            return name
        node = above[0]


def _rank(name: str) -> int:
    return 3 if name in WEIGHTS else 2 if name in BOUNDED else 1 if name in OTHER else 0
