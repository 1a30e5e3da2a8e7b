"""Position terms: what a model adds to its tokens, or turns them by, and makes of no explained
input: position tables, waves, segments, the angles of rotary embeddings.

Found from structure, never from names. Positional LRP (Bakish et al. 2025) takes them for a part of
the input, beside the tokens: they are activations to the rules, and relevance ends at them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from relprop.operations import ELEMENTWISE, MOVES, Kind, is_call, kind
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import shape_of, tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, is_floating

#: Under which name the ledger has what position terms receive.
POSITIONS = "positions"
#: The sums and products at which positions enter, each with the operands that hold them.
PositionTerms = Mapping[fx.Node, tuple[fx.Node, ...]]
aten = torch.ops.aten
#: What makes a tensor of one number.
_CONSTANT = (aten.full, aten.zeros, aten.ones, aten.full_like, aten.zeros_like, aten.ones_like)


def position_terms(program: Program, flow: Flow) -> PositionTerms:
    """Where positions enter: sums of the tokens with a tensor that has their axis and that no
    explained input enters, the two products of a rotation, x·C + J(x)·S, and sums of attention's
    scores with what is no mask (relative positions)."""
    scores = factors_of_scores(program, flow)
    sums = [n for n in flow.nodes if kind(n) is Kind.SUM]
    turning = {product for node in sums for product in _rotation(node, flow)}
    found: dict[fx.Node, tuple[fx.Node, ...]] = {}
    for node in flow.nodes:
        if (node in turning or kind(node) is Kind.SUM) and flow.inputs[node]:
            beside = dict.fromkeys(o for o in tensor_inputs(node) if o not in flow.members)
            terms = [o for o in beside if is_floating(o) and _spans_tokens(program, node, o)]
            terms = [o for o in terms if node not in scores or not _is_mask(o)]
            found |= {node: tuple(terms)} if terms else {}
    return found


def factors_of_scores(program: Program, flow: Flow) -> dict[fx.Node, tuple[fx.Node, fx.Node]]:
    """What the softmax of any attention site is made of, back to a product of matrices, each node
    with the two that are multiplied: queries and keys."""
    left = [site.softmax for site in program.sites if site.softmax in flow.members]
    above = set(left)
    while left:
        new = {n for n in flow.inputs[left.pop()] if kind(n) in ELEMENTWISE | MOVES} - above
        left += new
        above |= new
    found: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
    for node in (n for n in flow.nodes if n in above):
        for source in flow.inputs[node]:
            if kind(source) is Kind.MATMUL and len(flow.inputs[source]) == 2:
                queries, keys = flow.inputs[source]
                found.setdefault(node, (queries, keys))
            elif source in found:
                found.setdefault(node, found[source])
    return found


def _is_mask(node: fx.Node) -> bool:
    """Whether a tensor is made by comparisons alone, or of what the call says is to be seen: no
    table and no number of a position is in it."""
    left, seen = [node], {node}
    while left:
        one = left.pop()
        numbers = one.op == "get_attr" and is_floating(one)
        numbers = numbers or kind(one) in (Kind.FACTORY, Kind.SCAN)
        if numbers and val(one).dim() and not is_call(one, *_CONSTANT):
            return False
        if kind(one) is not Kind.TEST:
            left += [i for i in tensor_inputs(one) if i not in seen and val(i).dtype != torch.bool]
            seen.update(tensor_inputs(one))
    return True


def _spans_tokens(program: Program, node: fx.Node, operand: fx.Node) -> bool:
    """Whether an operand differs along an axis of the result that is tokens."""
    axes = program.axes.get(node, ())[::-1]
    both = zip(axes, shape_of(node)[::-1], shape_of(operand)[::-1], strict=False)
    return any(is_token(axis) and size == own > 1 for axis, size, own in both)


def _rotation(node: fx.Node, flow: Flow) -> tuple[fx.Node, ...]:
    """The two products of one tensor's numbers, here and in other places, that a sum is of."""
    terms = flow.inputs[node]
    if len(terms) != 2 or any(kind(t) is not Kind.PRODUCT for t in terms):
        return ()
    turned = [flow.inputs[t] for t in terms]
    if any(
        len(live) != 1 or len(tensor_inputs(t)) != 2 for live, t in zip(turned, terms, strict=True)
    ):
        return ()
    one, other = (_sources(live[0], flow) for live in turned)
    return terms if one == other and turned[0] != turned[1] else ()


def _sources(node: fx.Node, flow: Flow) -> set[fx.Node]:
    """The tensors of which one shows numbers, in other places or with another sign."""
    if kind(node) in MOVES or kind(node) is Kind.AFFINE:
        return set().union(*(_sources(i, flow) for i in flow.inputs[node]))
    return {node}
