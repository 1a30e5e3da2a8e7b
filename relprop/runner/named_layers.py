"""The tensors that ``target_layers=`` names: outputs of module calls that hold tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from relprop.errors import OptionError
from relprop.rollup import tokens_of
from relprop.tracer.program import Program, is_floating, place, role

Nodes = tuple[fx.Node, ...]


def named_nodes(program: Program, paths: str | Sequence[str] | None) -> Nodes:
    """The outputs of the module calls that ``target_layers=`` names. Raises ``OptionError`` for one
    that is not there or holds no tokens, and for an empty list."""
    if paths is not None and not paths:
        raise OptionError(
            f"target_layers={paths!r} names no module",
            then=["leave it out for the last attention's input, or give module paths"],
        )
    return tuple(_last_of(program, p) for p in ([paths] if isinstance(paths, str) else paths or ()))


def _last_of(program: Program, path: str) -> fx.Node:
    """The output of the module call at ``path``."""
    calls: list[fx.Node] = [
        n
        for n in program.graph.nodes
        if n.op == "call_function"
        and is_floating(n)
        and role(n) == "activation"
        and any(p == path for p, _ in place(n).modules)
    ]
    if calls and tokens_of(program, calls[-1]):
        return calls[-1]
    what = "the output of the module call" if calls else "no module call"
    how = "holds no tokens" if calls else "is on the way"
    known = _paths_with_tokens(program)
    listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    raise OptionError(f"target_layers: {what} {path!r} {how}", then=[f"one of {listed}"])


def _paths_with_tokens(program: Program) -> list[str]:
    """The module calls in which any tensor holds tokens."""
    return list(
        dict.fromkeys(
            p
            for n in program.graph.nodes
            if n.op not in ("output",) and role(n) == "activation" and tokens_of(program, n)
            for p, _ in place(n).modules
            if p
        )
    )
