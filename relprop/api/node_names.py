"""Names for the nodes of a program, by their place in the user's model."""

from __future__ import annotations

from torch import fx

from relprop.operations import name_of
from relprop.tracer.program import Program, is_floating, place, role


def node_labels(program: Program) -> dict[str, fx.Node]:
    """Every floating node by name: ``module:op``, numbered where it repeats, and ``module`` for the
    last node of a module's call."""
    inner: dict[str, fx.Node] = {}
    calls: dict[str, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or not is_floating(node) or role(node) != "activation":
            continue
        base = f"{place(node).call}:{name_of(node).removeprefix('_safe_').removeprefix('_')}"
        number = sum(k == base or k.startswith(f"{base}#") for k in inner)
        inner[f"{base}#{number}" if number else base] = node
        for path, _ in place(node).modules:
            calls[path] = node
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    return dict(sorted({**calls, **inner}.items(), key=lambda item: order[item[1]]))
