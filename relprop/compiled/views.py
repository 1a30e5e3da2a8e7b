"""Two recordings of one program without the calls that hand on their tensor as it is: views in the
shape that there was, views of views, copies of what lies in order already, products with 1."""

from __future__ import annotations

from torch import Tensor, fx

from relprop.compiled.tidying import writes
from relprop.tracer.editing import aten
from relprop.tracer.recorded import recorded_value

VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
SHAPED = VIEWS | {aten.expand.default}


def without_idle_calls(small: fx.GraphModule, large: fx.GraphModule) -> None:
    """Take out of both graphs, which are the same but for the size of the batch, what does nothing
    in either. Nothing is done where a call writes into a tensor, of which others may be views."""
    both = list(zip(small.graph.nodes, large.graph.nodes, strict=False))
    if len(small.graph.nodes) != len(large.graph.nodes) or any(writes(a) for a, _ in both):
        return
    for pair in both:
        if all(map(_is_view_of_view, pair)):
            for node in pair:
                node.args = (_source(_source(node)), *node.args[1:])
        if all(map(_is_idle, pair)):
            for node in pair:
                node.replace_all_uses_with(_source(node))
        for node in pair:
            node.target = aten.view.default if node.target in VIEWS else node.target
    for module in (small, large):
        module.graph.eliminate_dead_code()


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _is_idle(node: fx.Node) -> bool:
    """Whether a call gives the numbers that it is given, in the same shape and layout."""
    if node.target in SHAPED:
        return _layout(node) == _layout(_source(node))
    if node.target is aten.clone.default:
        return _layout(node) == _layout(_source(node)) and not _is_given(_source(node))
    if node.target is not aten.mul.Scalar or node.args[1] not in (1, 1.0):
        return False
    return _layout(node) == _layout(_source(node))


def _layout(node: fx.Node) -> object:
    value = recorded_value(node)
    assert isinstance(value, Tensor)
    return value.shape, value.stride(), value.dtype


def _is_given(node: fx.Node) -> bool:
    """Whether a tensor is the call's own or the model's, or a view of it."""
    while node.target in SHAPED:
        node = _source(node)
    return node.op != "call_function"


def _is_view_of_view(node: fx.Node) -> bool:
    return node.target in VIEWS and _source(node).target in VIEWS
