"""What attention lies between the inputs and a target: the sites on the way, the inputs that it
depends on, and refusals where there is none; and the tensors that ``target_layers=`` names: outputs
of module calls that hold tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import fx

from relprop.errors import (
    NoAttentionError,
    OptionError,
    RollUpError,
    TargetError,
    UnexplainedPartWarning,
)
from relprop.operations import Kind, kind
from relprop.rollup import Stream, tokens_of
from relprop.runner.method import input_level
from relprop.runner.session import Nodes, Session
from relprop.tracer.editing import val
from relprop.tracer.leaves import NO_EMBEDDING, mixed
from relprop.tracer.program import Program, Site, is_floating, place, role

EXPLAINS_EVERY_INPUT = "method='lrp' and the others at the input explain every input"


def refuse_unmixed(session: Session, sites: tuple[Site, ...], streams: tuple[Stream, ...]) -> None:
    """An input that the user named, and in which attention has no part, has no scores over it."""
    tokens = mixed(dict(session.program.leaves), (session.program.axes, sites))
    scored = {s.name for s in streams} & tokens.keys()
    for name in session.chosen:
        if name not in scored:
            raise RollUpError(
                f"input {name!r} has no scores over attention: no attention that the target "
                "depends on mixes positions of it",
                then=[EXPLAINS_EVERY_INPUT],
            )


def notice_of_inputs(
    streams: Sequence[Stream], apart: Sequence[str]
) -> Iterator[UnexplainedPartWarning]:
    """Inputs that feed the target past all attention have no scores, and the user is told."""
    if streams and apart:
        yield UnexplainedPartWarning(
            f"{', '.join(map(repr, apart))} feeds the target past all attention: "
            "methods over attention have no scores for it",
            then=[EXPLAINS_EVERY_INPUT],
        )


def sites_between(session: Session, starts: Nodes) -> tuple[Site, ...]:
    """The attention sites on the way from an explained input to the target, in forward order."""
    flow = session.flow.members
    here = (s for s in session.program.sites if s.contraction in flow)
    sites = tuple(s for s in here if session.leads(s.contraction, starts))
    if not sites:
        reached_inputs(session, starts)
    require_sites(session, sites)
    return sites


#: How ids are looked up where they are to be explained.
LOOKED_UP = (
    "if it holds ids: look them up by torch.nn.Embedding, table[ids] or table.index_select; other "
    "ways are not followed"
)


def reached_inputs(session: Session, starts: Nodes) -> dict[str, fx.Node]:
    """The explained inputs that any of ``starts`` depends on, in the order of the model's call.
    Raises ``TargetError`` if there is none."""
    program = session.program
    found = {n: leaf for n, leaf in program.leaves.items() if session.leads(leaf, starts)}
    if found:
        return found
    named = ", ".join(map(repr, program.leaves)) or "there is none"
    constants = [f"{n!r} is a constant: it {why}" for n, why in program.constant_inputs.items()]
    if any(NO_EMBEDDING in why for why in program.constant_inputs.values()):
        constants.append(LOOKED_UP)
    read = (
        f"the model takes values of its inputs into Python ({', '.join(program.decisions[:3])}), "
        "and what is computed of them there is a constant"
    )
    raise TargetError(
        f"the target depends on no explained input ({named})",
        then=[*constants, *([read] * program.input_specialised)],
    )


def past_attention(program: Program) -> tuple[str, ...]:
    """The methods for a program without attention, best first: for a network of convolutions over
    pictures that is LRP-γ."""
    calls = (n for n in program.graph.nodes if n.op == "call_function")
    layers = sum(kind(n) is Kind.CONVOLUTION and val(n).dim() > 3 for n in calls)
    return input_level(convolutional=layers > 1)


def require_sites(session: Session, sites: tuple[Site, ...]) -> None:
    """Raises ``NoAttentionError`` where there are none, with what was found and what to do."""
    if sites:
        return
    seen = [f"the softmax at {found}" for found in session.program.softmaxes_without_site]
    reasons = "; ".join(seen[:3]) or "it has no softmax"
    hidden = " (it is all elsewhere, or inside modules that rules of yours treat as one operation)"
    hidden = hidden if session.program.sites else ""
    first, *others = past_attention(session.program)
    raise NoAttentionError(
        f"the model has no softmax attention over tokens between input and target{hidden}: "
        f"{reasons}",
        then=[
            f"method={first!r} explains any model at its input, and so do "
            f"{', '.join(map(repr, others))}",
            "relprop.check(model, inputs) lists what was found",
            "relprop.instrument(model, inputs, target=...).relevance(...) gives "
            "relevance at any layer of any model",
        ],
    )


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
