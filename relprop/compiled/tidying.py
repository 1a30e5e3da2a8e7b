"""A recorded graph without what it does not need; and what it may not hold."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

from relprop.errors import OptionError
from relprop.operations import argument
from relprop.tracer.editing import aten
from relprop.tracer.recorded import recorded_value

#: Tags of operators that no program for all calls can hold, and what they do.
REFUSED = {
    torch.Tag.nondeterministic_seeded: "draws random numbers",
    torch.Tag.dynamic_output_shape: "makes tensors whose shapes depend on values",
}
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
#: Of these two, nothing is differentiated any more.
ALIASES = frozenset({aten.detach.default, aten.alias.default})
SHAPED = VIEWS | ALIASES | {aten.expand.default}
EXPLAIN = "relprop.explain(model, inputs, target, ...), which records nothing"


def tidied(module: fx.GraphModule, first: int, last: int) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """A graph without what is computed twice and what nobody reads; and which of the inputs from
    ``first`` to ``last`` are left, which may be read by nobody."""
    graph = module.graph
    graph.eliminate_dead_code(_has_an_effect)
    if not any(map(writes, graph.nodes)):  # else the same call may give something else
        passed = CSEPass(get_CSE_banned_ops())(module)
        assert passed is not None
        module = passed.graph_module
        graph = module.graph
    optional = graph.find_nodes(op="placeholder")[first:last]
    left = tuple(i for i, node in enumerate(optional) if node.users)
    for node in optional:
        if not node.users:
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module, left


def _has_an_effect(node: fx.Node) -> bool:
    """Whether a call does more than to give its result. What draws is refused; PyTorch takes for
    drawing, too, what only chooses a kernel for attention, which was chosen as the run was
    recorded."""
    return node.op in ("placeholder", "output") or writes(node)


def _by_integers(node: fx.Node) -> bool:
    """Whether a call picks by integers, of which there are always as many; by truths it may pick
    any number."""
    if node.target is not aten.index.Tensor:
        return False
    indices = (recorded_value(i) for i in node.all_input_nodes[1:])
    return all(i.dtype != torch.bool for i in indices)


def writes(node: fx.Node) -> bool:
    """Whether a call changes a tensor that it is given."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def refuse_tags(graph: fx.Graph, method: str) -> None:
    """Raise ``OptionError`` for an operator that gives something else at every call."""
    for node in graph.nodes:
        for tag in getattr(node.target, "tags", ()):
            # what may drop some of its values by chance may be told to drop none
            if tag in REFUSED and not _by_integers(node) and argument(node, "dropout_p") != 0:
                raise not_flat(method, f"{node.target} {REFUSED[tag]}")


def not_flat(method: str, why: str) -> OptionError:
    """What to say of a method that no program for all calls can hold."""
    fact = f"method {method!r} cannot be one flat program: {why}"
    return OptionError(fact, then=[EXPLAIN])


def without_idle_calls(small: fx.GraphModule, large: fx.GraphModule) -> None:
    """Take out of both graphs, which are the same but for the size of the batch, what hands on its
    tensor as it is in either: aliases, views in the shape that there was, views of views, copies of
    what lies in order already, products with 1. Nothing is done where a call writes into a tensor,
    of which others may be views."""
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
    idle: object = (
        node.target in SHAPED
        or (node.target is aten.clone.default and not _is_given(_source(node)))
        or (node.target is aten.mul.Scalar and node.args[1] == 1)
    )
    return bool(idle) and _layout(node) == _layout(_source(node))


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
