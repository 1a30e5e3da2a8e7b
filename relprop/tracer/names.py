"""Names for the nodes of a program, by their place in the user's model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torch import fx, nn

from relprop.operations import argument, is_call, name_of
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import aten
from relprop.tracer.program import Program, is_floating, place, role
from relprop.tracer.returned import returned


def heads_of(program: Program) -> dict[str, fx.Node]:
    """By the name of each attention module's call, ``module:heads``, what its heads have gathered,
    (tokens, heads, width), before the heads are joined and projected."""
    found: dict[str, fx.Node] = {}
    for site in program.sites:
        for node in site.contraction.users:
            if is_call(node, aten.permute) and argument(node, "dims") == [0, 2, 1, 3]:
                found[f"{place(node).call}:heads"] = node
    return found


def named(program: Program, model: nn.Module, inputs: Inputs) -> Program:
    """The program with ``labels``: every floating node by name, ``module:op``, numbered where it
    repeats, what a module returns by the module's (see ``returned``), and ``module:heads``. Worked
    out once per program."""
    if program.labels:
        return program
    return program.memo.once(
        "named", lambda: replace(program, labels=_labels(program, model, inputs))
    )


def _labels(program: Program, model: nn.Module, inputs: Inputs) -> dict[str, fx.Node]:
    inner, repeated = dict[str, fx.Node](), Counter[str]()
    for node in program.graph.nodes:
        if node.op != "call_function" or not is_floating(node) or role(node) != "activation":
            continue
        base = f"{place(node).call}:{name_of(node).removeprefix('_safe_').removeprefix('_')}"
        inner[f"{base}#{repeated[base]}" if repeated[base] else base] = node
        repeated[base] += 1
    found = returned(program, model, inputs) | inner | heads_of(program)
    order = {n: i for i, n in enumerate(program.graph.nodes)}
    return dict(sorted(found.items(), key=lambda item: order[item[1]]))
