"""A scale that a layer's own input decides stands where the input is, however late it is
applied."""

from __future__ import annotations

from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.tracer.editing import arguments, aten, emit, is_live, shape_of, swap
from relprop.tracer.order import Flow
from relprop.tracer.passes.products.factors import factors_of, is_outermost, is_product, multiplied
from relprop.tracer.passes.trials.subgraphs import fits, flow_of


def scale_inputs(graph: fx.Graph) -> None:
    """A linear map times a scale that its own input decides, (W·x)·s(x) → W·(x·s(x)): the scale of
    a norm stands where the norm is, however late it is applied."""
    flow = flow_of(graph)
    for node in flow.nodes:
        if node._erased or not is_product(node) or not is_outermost(node):
            continue
        factors, number = factors_of(node)
        for layer in [f for power, f in factors if power > 0 and _is_plain_linear(f)]:
            scales = [f for f in factors if _is_scale(flow, f[1], layer)]
            if scales and shape_of(layer) == shape_of(node):
                x, *weight = arguments(layer)
                scaled = multiplied(node, [(1, x), *scales], 1.0)
                made = emit(node, aten.linear.default, scaled, *weight)
                rest = [f for f in factors if f not in scales and f[1] is not layer]
                swap(node, multiplied(node, [(1, made), *rest], number))
                break


def _is_plain_linear(node: fx.Node) -> bool:
    """Whether a node is a linear map of its own, without a bias."""
    plain = is_call(node, aten.linear) and argument(node, "bias") is None
    return plain and len(node.users) == 1 and not is_live(arguments(node)[1])


def _is_scale(flow: Flow, scale: fx.Node, layer: fx.Node) -> bool:
    """Whether ``scale`` is one number for all features, by statistics of the tensor that, but for
    constant factors, is the input of ``layer``."""
    x = operand(layer)
    if scale not in flow.index or shape_of(scale) != [*shape_of(x)[:-1], 1]:
        return False
    source = x
    while is_product(source) and sum(map(is_live, arguments(source)[:2])) == 1:
        source = next(a for a in arguments(source) if is_live(a))
    inside = flow.between(source, scale) if source in flow.index else []
    fit = all(fits(n, source) and flow.common_dominator([source, n]) is source for n in inside)
    return bool(inside) and fit and shape_of(source) == shape_of(x)
