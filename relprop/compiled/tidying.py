"""A recorded graph without what it does not need; and what it may not hold."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

from relprop.errors import OptionError
from relprop.operations import argument
from relprop.tracer.recorded import recorded_value

#: What hands on its first tensor where nothing is differentiated any more.
ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
DRAWS = "draws random numbers"
#: Tags of operators that no program for all calls can hold, and what they do.
REFUSED = {
    torch.Tag.nondeterministic_seeded: DRAWS,
    torch.Tag.dynamic_output_shape: "makes tensors whose shapes depend on values",
}
EXPLAIN = "relprop.explain(model, inputs, target, ...), which records nothing"


def tidied(module: fx.GraphModule, first: int, last: int) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """A graph without aliases, without what is computed twice and what nobody reads; and which of
    the inputs from ``first`` to ``last`` are left, which may be read by nobody."""
    graph = module.graph
    for node in graph.nodes:
        if node.target in ALIASES:
            node.replace_all_uses_with(node.args[0])
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
    if node.target is not torch.ops.aten.index.Tensor:
        return False
    indices = (recorded_value(i) for i in node.all_input_nodes[1:])
    return all(i.dtype != torch.bool for i in indices)


def _drops_nothing(node: fx.Node) -> bool:
    """Whether a call that may drop some of its values by chance is told to drop none."""
    return bool(argument(node, "dropout_p") == 0)


def writes(node: fx.Node) -> bool:
    """Whether a call changes a tensor that it is given."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def refuse_tags(graph: fx.Graph, method: str) -> None:
    """Raise ``OptionError`` for an operator that gives something else at every call."""
    for node in graph.nodes:
        for tag in getattr(node.target, "tags", ()):
            if tag in REFUSED and not _by_integers(node) and not _drops_nothing(node):
                raise not_flat(method, f"{node.target} {REFUSED[tag]}")


def not_flat(method: str, why: str) -> OptionError:
    """What to say of a method that no program for all calls can hold."""
    fact = f"method {method!r} cannot be one flat program: {why}"
    return OptionError(fact, then=[EXPLAIN])
