"""Names for the nodes of a program, by their place in the user's model."""

from __future__ import annotations

from collections import Counter

from torch import fx

from relprop.operations import argument, is_call, name_of
from relprop.tracer.editing import aten
from relprop.tracer.program import Program, is_floating, place, role


def heads_of(program: Program) -> dict[str, fx.Node]:
    """By the name of each attention module's call, ``module:heads``, what its heads have gathered,
    (tokens, heads, width), before the heads are joined and projected."""
    found: dict[str, fx.Node] = {}
    for site in program.sites:
        for node in site.contraction.users:
            if is_call(node, aten.permute) and argument(node, "dims") == [0, 2, 1, 3]:
                found[f"{place(node).call}:heads"] = node
    return found


def node_labels(program: Program) -> dict[str, fx.Node]:
    """Every floating node by name: ``module:op``, numbered where it repeats, ``module`` for the
    last node of a module's call, and ``module:heads``. Worked out once per program."""
    return program.memo.once("node labels", lambda: _labels(program))


def _labels(program: Program) -> dict[str, fx.Node]:
    inner, calls, repeated = dict[str, fx.Node](), dict[str, fx.Node](), Counter[str]()
    for node in program.graph.nodes:
        if node.op != "call_function" or not is_floating(node) or role(node) != "activation":
            continue
        base = f"{place(node).call}:{name_of(node).removeprefix('_safe_').removeprefix('_')}"
        inner[f"{base}#{repeated[base]}" if repeated[base] else base] = node
        repeated[base] += 1
        calls.update(dict.fromkeys((path for path, _ in place(node).modules), node))
    inner |= heads_of(program)
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    return dict(sorted({**calls, **inner}.items(), key=lambda item: order[item[1]]))
