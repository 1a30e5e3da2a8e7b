"""Names for the nodes of a program, by their place in the user's model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torch import fx, nn

from relprop.operations import Kind, kind, name_of
from relprop.tracer.atoms import is_token
from relprop.tracer.binding import Inputs
from relprop.tracer.program import Program, is_floating, place, role
from relprop.tracer.returned import returned


def heads_of(program: Program) -> dict[str, fx.Node]:
    """By the name of each attention module's call, ``module:heads``, what its heads have gathered,
    (tokens, heads, width), before the heads are joined and projected; numbered where it repeats."""
    found: dict[str, fx.Node] = {}
    for site in program.sites:
        node: fx.Node | None = site.contraction
        while node is not None and not _tokens_then_heads(program, node):
            moves = (n for n in node.users if kind(n) in (Kind.PERMUTE, Kind.RESHAPE))
            node = next(moves, None)
        if node is not None:
            name = f"{place(node).call}:heads"
            count = sum(n == name or n.startswith(f"{name}#") for n in found)
            found[f"{name}#{count}" if count else name] = node
    return found


def _tokens_then_heads(program: Program, node: fx.Node) -> bool:
    """Whether its last axes are tokens, heads and features of a head."""
    axes = program.axes.get(node, ())
    return len(axes) > 3 and [is_token(axis) for axis in axes[-3:]] == [True, False, False]


def named(program: Program, model: nn.Module, inputs: Inputs) -> Program:
    """The program with ``labels``: every floating node by name, ``module:op``, numbered where it
    repeats, what a module returns by the module's (see ``returned``), and ``module:heads``. Worked
    out once per program."""
    if program.labels:
        return program
    return program.memo.cache(
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
