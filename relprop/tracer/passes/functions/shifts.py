"""What is taken from a row before its mean is taken away makes no difference to its norm."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    permuted,
    rank,
    shape_of,
    swap,
    tensor_inputs,
)
from relprop.tracer.order import Flow
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.recipes import recipe_of
from relprop.tracer.passes.trials.subgraphs import flow_of


def drop_shifts(graph: fx.Graph) -> None:
    """What is taken from a row before its mean is taken away makes no difference; the root mean
    square of what is less its mean is its deviation."""
    flow = flow_of(graph)
    for node in flow.nodes:
        if not is_call(node, aten.layer_norm, aten.rms_norm) or len(arguments(node)[1]) != 1:
            continue
        source = operand(node)
        turned = kind(source) is Kind.PERMUTE
        order = list(arguments(source)[1]) if turned else list(range(rank(node)))
        tried = _shifted(flow, operand(source) if turned else source, order)
        if tried is None:
            continue
        above, x, y = tried
        centre = x - x.mean(-1, keepdim=True)
        if is_call(node, aten.layer_norm) and same(y - y.mean(-1, keepdim=True), centre):
            node.replace_input_with(source, permuted(node, above, order))
        elif is_call(node, aten.rms_norm) and same(y, centre):
            shape, weight, eps = (*arguments(node)[1:], None, None)[:3]
            if eps is not None:
                made = permuted(node, above, order)
                swap(node, emit(node, aten.layer_norm.default, made, shape, weight, None, eps))


def _shifted(flow: Flow, node: fx.Node, order: list[int]) -> tuple[fx.Node, Tensor, Tensor] | None:
    """A tensor from which a sum takes something of its own, numbers for it, and what the sum makes
    of them, both with their axes in ``order``."""
    above = flow.dominator(node) if node in flow.index and kind(node) is Kind.SUM else None
    if above is None or shape_of(above) != shape_of(node):
        return None
    way = flow.between(above, node)
    if not {kind(n) for n in way} <= LINEAR or any(
        i is not above and i not in way for n in way for i in tensor_inputs(n)
    ):
        return None
    x = torch.randn(shape_of(node), generator=torch.Generator().manual_seed(0)).double()
    try:
        return above, x.permute(order), recipe_of(way, [above])(x).permute(order)
    except (RuntimeError, TypeError):
        return None


LINEAR = frozenset({Kind.SUM, Kind.TOTAL, Kind.AFFINE, Kind.EXPAND, Kind.RESHAPE})
