"""One run: what each request needs of the forward pass, one forward pass for all of them, and
relevance for one target after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from relprop.adapters import Given, Prepared, describe
from relprop.api.projection import output_projection, residual_of
from relprop.api.session import Session
from relprop.api.terms import walk_terms
from relprop.errors import (
    InputError,
    NoAttentionError,
    OptionError,
    RollUpError,
    TargetError,
    message,
    warn,
)
from relprop.interpreter.backward import Hook, Walk
from relprop.interpreter.forward import Forward, forward
from relprop.interpreter.ledger import Ledger
from relprop.layout import Layout, lay_out, placing
from relprop.methods import Method, chosen_layers, input_level
from relprop.plan import Plan
from relprop.rollup import Stream, block_input, tokens_of
from relprop.targets import Context, Start, possible_starts, resolve
from relprop.tracer.binding import Inputs
from relprop.tracer.leaves import mixed
from relprop.tracer.program import Program, Site, is_floating, place, role

KEEP = frozenset({"blocks", "matrix", "input", "layers"})


@dataclass(frozen=True)
class Request:
    """What a call asks for, checked."""

    method: Method
    options: Mapping[str, Any]
    keep: frozenset[str]
    raw: Any = None
    hooks: Mapping[fx.Node, Hook] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """What must be computed."""
        gradient = frozenset({"gradient"}) if "blocks" in self.keep else frozenset()
        return self.method.needing(self.options) | gradient


@dataclass
class Draft:
    """What one request needs of the forward pass, worked out before it: values to ``keep``, and
    nodes to ``watch``, at which gradients are taken."""

    session: Session
    request: Request
    sites: tuple[Site, ...] = ()
    chosen: tuple[Site, ...] = ()
    plan: Plan | None = None
    keep: set[fx.Node] = field(default_factory=set)
    watch: tuple[fx.Node, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    layers: Mapping[Site, fx.Node] = field(default_factory=dict)
    features: tuple[fx.Node, ...] = ()


@dataclass
class Run:
    """A forward pass with what every target needs from it. ``differentiates``: to be called before
    a gradient is taken; it refuses a program whose gradients are not the model's."""

    session: Session
    inputs: Inputs
    request: Request
    sites: tuple[Site, ...]
    chosen: tuple[Site, ...]
    plan: Plan | None
    forward: Forward
    watch: tuple[fx.Node, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    layers: Mapping[Site, fx.Node] = field(default_factory=dict)
    features: tuple[fx.Node, ...] = ()
    differentiates: Callable[[], None] = lambda: None

    @property
    def program(self) -> Program:
        """The captured model."""
        return self.session.program

    def layout(self, stream: Stream) -> Layout:
        """Where the stream's tokens came from."""
        places = placing(stream, self.session.flow)
        if not places:
            return self.session.layout(stream)
        return lay_out(
            self.program,
            stream,
            self.session.flow,
            {n: self.forward.values[n].cpu() for n in places if n in self.forward.values},
        )

    def outputs(self) -> dict[fx.Node, Tensor]:
        """The model's outputs, batch first, attached to autograd."""
        return {n: self.forward.values[n] for n in self.program.output_nodes}

    def start(self, target: Any) -> Start:
        """Where relevance starts for a target."""
        context = Context(
            self.program,
            self.session.model,
            self.session.adapter,
            self.inputs,
            self.outputs(),
            self.session.rules,
        )
        with torch.enable_grad():
            return resolve(target, context)


def run_drafts(drafts: Sequence[Draft], inputs: Inputs) -> list[Run]:
    """One forward pass for all of them, keeping what the passes for their targets read and nothing
    else."""
    first = drafts[0].session
    keep = set(first.program.output_nodes).union(*(d.keep for d in drafts))
    done = forward(
        first.program, first.model, inputs, keep, dict.fromkeys(n for d in drafts for n in d.watch)
    )
    refuse_nonfinite(first, done)
    return [
        Run(
            d.session,
            inputs,
            d.request,
            d.sites,
            d.chosen,
            d.plan,
            done,
            d.watch,
            d.facts,
            d.layers,
            d.features,
        )
        for d in drafts
    ]


def draft_attention(session: Session, targets: list[Any], request: Request) -> Draft:
    """What a method over attention needs."""
    program = session.program
    starts = possible_starts(program, targets)
    sites = _sites(session, starts)
    chosen = tuple(sites[i] for i in chosen_layers(request.options.get("layers"), len(sites)))
    plan = None
    if "relevance" in request.needs or "input" in request.keep or request.hooks:
        wanted = frozenset(s.attention for s in chosen) | (
            frozenset(program.leaves.values()) if "input" in request.keep else frozenset()
        )
        plan = session.plan(starts, wanted)
        visible = {s.contraction for s in plan.sites}
        sites, chosen = (
            tuple(s for s in sites if s.contraction in visible),
            tuple(s for s in chosen if s.contraction in visible),
        )
        _need_sites(session, sites)
    rollup, streams = session.rollup(starts, sites)
    _refuse_unmixed(session, sites, streams)
    keep = (
        rollup.keep
        | {s.attention for s in sites}
        | (plan.keep if plan is not None else set())
        | {n for s in streams for n in placing(s, session.flow)}
    )
    apart = session.past_attention(starts, streams)
    if streams and apart and not session.kept(("told of", starts, sites), list):
        session.kept(("told of", starts, sites), list).append(True)
        warn(
            message(
                (
                    f"{', '.join(map(repr, apart))} feeds the target past all attention: "
                    "methods over attention have no scores for it"
                ),
                then=["method='lrp' and the others at the input explain every input"],
            )
        )
    facts = {
        **facts_of(session, plan, request),
        "attention_sites": [s.path for s in sites],
        "softmaxes_without_site": program.softmaxes_without_site,
        "inputs_without_attention": apart,
    }
    draft = Draft(
        session, request, sites, chosen, plan, set(keep), tuple(s.attention for s in chosen), facts
    )
    _add_hidden(draft, starts)
    return draft


def _refuse_unmixed(session: Session, sites: tuple[Site, ...], streams: tuple[Stream, ...]) -> None:
    """An input that the user named, and in which attention has no part, has no scores over it."""
    tokens = mixed(dict(session.program.leaves), (session.program.axes, sites))
    scored = {s.name for s in streams} & tokens.keys()
    for name in session.chosen:
        if name not in scored:
            raise RollUpError(
                message(
                    f"input {name!r} has no scores over attention: no attention that the target "
                    "depends on mixes positions of it",
                    then=["method='lrp' and the others at the input explain every input"],
                )
            )


def _add_hidden(draft: Draft, starts: tuple[fx.Node, ...]) -> None:
    """What methods over hidden states and values need beside the attention maps."""
    session, needs = draft.session, draft.request.needs
    if needs & {"hidden", "values"}:
        found = session.layer_outputs(
            draft.sites, tuple(s for s in starts if s in session.flow.members)
        )
        draft.layers = {s: found[s] for s in draft.chosen if s in found}
    if "features" in needs:
        above = block_input(session.program, session.flow, draft.chosen[-1])
        draft.features = named_nodes(
            session.program, draft.request.options.get("target_layers")
        ) or tuple(n for n in [above] if n is not None)
    if "inputs" in needs:
        draft.keep |= set(session.program.leaves.values())
    nodes = (*(draft.layers.values() if "hidden" in needs else ()), *draft.features)
    draft.keep |= {*nodes, *draft.layers.values()}
    draft.watch += nodes if "gradient" in needs else ()
    if "values" in needs:
        for site, node in draft.layers.items():
            draft.keep |= {site.values, site.attention, *session.segment(site.values, node).beside}
    if "projections" in needs:
        for site in draft.chosen:
            draft.keep |= {
                site.values,
                *session.segment(site.contraction, output_projection(session, site)).beside,
            }
            if draft.request.options.get("variant") == "2021":
                merge, skips, norm = residual_of(session, site)
                draft.keep |= {merge, *skips, *(norm.all_input_nodes if norm is not None else ())}


def named_nodes(program: Program, paths: Any) -> tuple[fx.Node, ...]:
    """The outputs of the module calls that ``target_layers=`` names. Raises ``OptionError`` for one
    that is not there or holds no tokens, and for an empty list."""
    if paths is not None and not paths:
        raise OptionError(
            message(
                f"target_layers={paths!r} names no module",
                then=["leave it out for the last attention's input, or give module paths"],
            )
        )
    found = []
    for path in [paths] if isinstance(paths, str) else paths or ():
        calls = [
            n
            for n in program.graph.nodes
            if n.op == "call_function"
            and is_floating(n)
            and role(n) == "activation"
            and any(p == path for p, _ in place(n).modules)
        ]
        if not calls or not tokens_of(program, calls[-1]):
            known = dict.fromkeys(
                p
                for n in program.graph.nodes
                if n.meta.get("role") == "activation" and tokens_of(program, n)
                for p, _ in place(n).modules
                if p
            )
            raise OptionError(
                message(
                    (
                        "target_layers: "
                        f"{'no module call' if not calls else 'the output of the module call'} "
                        f"{path!r} {'is on the way' if not calls else 'holds no tokens'}"
                    ),
                    then=[
                        f"one of {', '.join(list(known)[:12])}{', ...' if len(known) > 12 else ''}"
                    ],
                )
            )
        found.append(calls[-1])
    return tuple(found)


def facts_of(session: Session, plan: Plan | None, request: Request) -> dict[str, Any]:
    """How an explanation is made, for ``Explanation.facts``."""
    program = session.program
    session.tell_of_lookups()
    return {
        "front_end": program.front_end,
        "decisions": list(program.decisions),
        "constant_inputs": dict(program.constant_inputs),
        "constant_lookups": list(session.constant_lookups()),
        "generic": [str(n.target) for n in plan.generic] if plan is not None else [],
        "options": {k: str(v) for k, v in request.options.items()},
    }


def _sites(session: Session, starts: tuple[fx.Node, ...]) -> tuple[Site, ...]:
    """The attention sites on the way from an explained input to the target, in forward order."""
    flow = session.flow
    sites = tuple(
        s
        for s in session.program.sites
        if s.contraction in flow.members
        and any(e in flow.members and flow.reaches(s.contraction, e) for e in starts)
    )
    if not sites:
        reached_inputs(session, starts)
    _need_sites(session, sites)
    return sites


def reached_inputs(session: Session, starts: tuple[fx.Node, ...]) -> dict[str, fx.Node]:
    """The explained inputs that any of ``starts`` depends on, in the order of the model's call.
    Raises ``TargetError`` if there is none."""
    flow, program = session.flow, session.program
    found = {
        n: leaf
        for n, leaf in program.leaves.items()
        if any(s in flow.members and flow.reaches(leaf, s) for s in starts)
    }
    if found:
        return found
    named = ", ".join(map(repr, program.leaves)) or "there is none"
    read = f"the model takes values of its inputs into Python ({', '.join(program.decisions[:3])})"
    raise TargetError(
        message(
            f"the target depends on no explained input ({named})",
            then=[
                *(f"{n!r} is a constant: it {why}" for n, why in program.constant_inputs.items()),
                *(
                    [f"{read}, and what is computed of them there is a constant"]
                    * program.input_specialised
                ),
            ],
        )
    )


def _need_sites(session: Session, sites: tuple[Site, ...]) -> None:
    if sites:
        return
    seen = [f"the softmax at {found}" for found in session.program.softmaxes_without_site]
    reasons = "; ".join(seen[:3]) or "it has no softmax"
    hidden = (
        " (its attention is inside a module that a rule of yours treats as one operation)"
        if session.program.sites
        else ""
    )
    raise NoAttentionError(
        message(
            (
                "the model has no softmax attention over tokens between input and "
                f"target{hidden}: {reasons}"
            ),
            then=[
                (
                    f"method={input_level()[0]!r} explains any model at its input, and so do "
                    f"{', '.join(map(repr, input_level()[1:]))}"
                ),
                "relprop.check(model, inputs) lists what was found",
                (
                    "relprop.instrument(model, inputs, target=...).relevance(...) gives "
                    "relevance at any layer of any model"
                ),
            ],
        )
    )


def refuse_nonfinite(session: Session, done: Forward) -> None:
    """Raises ``InputError`` where an explainable output is NaN or infinite, and says whether a
    parameter is."""
    for name, node in zip(session.program.outputs.names, session.program.output_nodes, strict=True):
        value = done.values[node]
        if (
            value.is_floating_point()
            and not torch.isfinite(value).all()
            and _is_explainable(session, node)
        ):
            bad = [n for n, p in session.model.named_parameters() if not torch.isfinite(p).all()]
            cause = (
                f"parameter {bad[0]!r} holds NaN or infinite values"
                if bad
                else "no parameter does: the values overflow inside the model"
            )
            raise InputError(f"the model's output {name!r} holds NaN or infinite values; {cause}")


def _is_explainable(session: Session, node: fx.Node) -> bool:
    return node in session.flow.members


def relevance_of(run: Run, start: Start) -> tuple[Walk, Ledger | None]:
    """The relevance pass of every term, combined linearly."""
    if run.plan is None:
        return Walk(), None
    values = {n: v.detach() if isinstance(v, Tensor) else v for n, v in run.forward.values.items()}
    terms = (
        start.contributions(values) if run.request.method.starts_with == "output" else start.terms
    )
    return walk_terms(run.program, run.plan, values, terms, run.request.hooks)


def described(run: Run, name: str, layout: Layout) -> dict[str, Any]:
    """What the tokens of input ``name`` are, as ``TokenScores`` has it: from where in the input by
    the graph, the rest by the adapter."""
    raw = run.request.raw
    given = Given(
        name,
        dict(zip(run.inputs.names, run.inputs.tensors, strict=True)),
        run.inputs.batch,
        raw if isinstance(raw, Prepared) else Prepared(None),
    )
    places = {
        "source": layout.source,
        "grid": layout.grid,
        "image": layout.image,
        "spans": layout.spans,
        "extent": layout.extent,
    }
    return places | describe(run.session.adapter, run.session.model, given, layout)
