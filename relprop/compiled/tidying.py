"""A recorded graph without what it does not need; and what it may not hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from relprop.errors import OptionError, message

#: What hands on its first tensor where nothing is differentiated any more.
ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
#: Tags of operators that no program for all calls can hold, and what they do.
REFUSED = {
    torch.Tag.nondeterministic_seeded: "draws random numbers",
    torch.Tag.dynamic_output_shape: "makes tensors whose shapes depend on values",
}
EXPLAIN = "relprop.explain(model, inputs, target, ...), which records nothing"


def tidied(module: fx.GraphModule, contents: Sequence[fx.Node]) -> tuple[int, ...]:
    """Take aliases and what nobody reads out of a graph; gives which of ``contents``, inputs that
    may be read by nobody, are left."""
    graph = module.graph
    for node in graph.nodes:
        if node.target in ALIASES:
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
    left = tuple(i for i, node in enumerate(contents) if node.users)
    for node in contents:
        if not node.users:
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return left


def refuse_tags(graph: fx.Graph, method: str) -> None:
    """Raise ``OptionError`` for an operator that gives something else at every call."""
    for node in graph.nodes:
        for tag in getattr(node.target, "tags", ()):
            if tag in REFUSED:
                fact = f"method {method!r} cannot be one flat program: {node.target} {REFUSED[tag]}"
                raise OptionError(message(fact, then=[EXPLAIN]))
