"""What a question needs of the forward pass, worked out before it runs: over attention, and at the
input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from relprop.errors import OptionError, TargetError
from relprop.interpreter.forms import forms_of, gradient_forms, rounding
from relprop.layout import placing
from relprop.plan import Plan
from relprop.rollup import block_input, layer_outputs
from relprop.rules import RuleSet
from relprop.rules.presets import gradient_name
from relprop.runner.backward import Backward, sites_in_chunks
from relprop.runner.heads import Heads
from relprop.runner.method import chosen_layers
from relprop.runner.needs import ONE_GRADIENT, Needs, Nodes
from relprop.runner.positions import PositionScores
from relprop.runner.question import Question
from relprop.runner.session import Session
from relprop.runner.sites import (
    named_nodes,
    notice_of_inputs,
    reached_inputs,
    refuse_unmixed,
    require_sites,
    sites_between,
)
from relprop.targets.resolve import possible_starts
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.program import Site
from relprop.tracer.queries import Attention
from relprop.tracer.readout import Cuts
from relprop.tracer.weights import fetched


def needs_of(
    session: Session,
    question: Question,
    targets: Sequence[object],
    least: int | None = None,
    cuts: Cuts | None = None,
) -> Needs:
    """What a question needs to be answered for any of ``targets``. Raises what makes it impossible
    for this model. Attention maps of more than ``least`` bytes, or those of a chunk, are never
    whole, where they need not be; ``cuts``: nor are these outputs."""
    of = needs_over_attention if question.by.level == "attention" else needs_at_input
    return of(session, question, targets, least, cuts or {})


def needs_at_input(
    session: Session,
    question: Question,
    targets: Sequence[object],
    least: int | None,
    cuts: Cuts,
) -> Needs:
    """What a method at the input needs. Raises ``OptionError`` for what only attention has."""
    if others := sorted(question.keep - {"input"}):
        has = f"method {question.method!r} has 'input' to keep"
        raise OptionError(f"keep={others} is for methods over attention; {has}")
    possible = possible_starts(session.program, list(targets))
    starts = tuple(n for n in possible if n in session.flow.members)
    reached = reached_inputs(session, starts)
    if unread := [name for name in session.chosen if name not in reached]:
        fact = f"the target does not depend on input {unread[0]!r}"
        known = ", ".join(repr(name) for name in session.chosen if name in reached)
        raise TargetError(fact, then=[f"it depends on {known or 'no input'}: explain_inputs="])
    leaves, wanted = tuple(reached.values()), frozenset(reached.values())
    passed, scored = "relevance" in question.needs, question.settings.get("positions") is True
    plan = session.plan(starts, wanted, positions=scored) if passed else None
    positions = PositionScores.of(session, plan, reached) if scored else None
    inside = frozenset[fx.Node]() if positions is None else frozenset(positions.nodes)
    in_chunks, whole_maps = sites_in_chunks(session, question, plan, inside, least=least)
    facts = _facts(session, plan, question) | {"whole_maps": whole_maps}
    notices, forms = session.notices(plan), PLAIN
    if plan is not None:
        apart = "gradient" in question.needs and "the method reads plain gradients, too"
        found = question.why_walked or apart or forms_of(plan)
        facts["relevance"] = f"walked: {found}" if isinstance(found, str) else ONE_GRADIENT
        forms = forms if isinstance(found, str) else found
    walked, program = plan if forms is PLAIN else None, session.program
    balanced = forms_for_gradients(session, question.balance, starts, leaves, ())
    once = forms is not PLAIN
    heads = Heads.of(program, question, walked, starts, targets, cuts, differentiated=once)
    made = forms if once else balanced
    backward = Backward(program, walked, None, made, in_chunks, heads)
    watch = leaves if positions is None else (*leaves, *positions.nodes)
    return Needs(
        session,
        question,
        held=wanted.union(() if positions is None else positions.read),
        watch=watch if once or "gradient" in question.needs else (),
        backward=backward,
        positions=positions,
        facts=facts,
        notices=notices,
    )


def needs_over_attention(
    session: Session,
    question: Question,
    targets: Sequence[object],
    least: int | None,
    cuts: Cuts,
) -> Needs:
    """What a method over attention needs."""
    starts = possible_starts(session.program, list(targets))
    plan, sites, chosen = _on_the_way(session, question, starts)
    rollup, streams = session.rollup(starts, sites)
    refuse_unmixed(session, sites, streams)
    apart = session.past_attention(starts, streams)
    outputs = _layer_outputs(session, question, sites, chosen, starts)
    features = _features(session, question, chosen)
    held = (
        {n for s in streams for n in placing(s, session.flow)}
        | {*outputs.values(), *features}
        | _read_by_method(session, question, chosen, outputs)
    ) - fetched(session.program, session.model).keys()  # read again where they are asked for
    read = rollup.keep | held
    in_chunks, whole_maps = sites_in_chunks(session, question, plan, read, len(streams), least)
    whole = {s.attention for s in sites if s.contraction not in in_chunks}
    heads = Heads.of(session.program, question, plan, starts, targets, cuts)
    ends = tuple(s for s in starts if s in session.flow.members)
    differentiated = [s for s in chosen if s.attention in whole]
    leaves = tuple(session.program.leaves.values())
    forms = forms_for_gradients(session, question.balance, ends, leaves, differentiated)
    backward = Backward(session.program, plan, rollup, forms, in_chunks, heads)
    return Needs(
        session,
        question,
        held=frozenset(held | whole),
        watch=(
            *(s.attention for s in chosen if s.attention in whole),
            *_differentiated(question, chosen, in_chunks, outputs, features),
        ),
        backward=backward,
        sites=sites,
        chosen=chosen,
        layers=outputs,
        features=features,
        facts=_facts(session, plan, question)
        | {
            "attention_sites": [s.path for s in sites],
            "whole_maps": whole_maps,
            "softmaxes_without_site": session.program.softmaxes_without_site,
            "inputs_without_attention": apart,
        },
        notices=(*session.notices(plan), *notice_of_inputs(streams, apart)),
    )


def forms_for_gradients(
    session: Session, rules: RuleSet | None, starts: Nodes, leaves: Nodes, whole: Sequence[Site]
) -> Forms:
    """What stands in place of the graph's calls for gradients that follow ``rules`` (``None``: the
    model's own). Raises ``OptionError`` where these have no gradient forms for this model."""
    if rules is None:
        return PLAIN
    plan = session.under(rules).plan(starts, frozenset(leaves))
    found = gradient_forms(plan, frozenset(s.contraction for s in whole))
    if isinstance(found, str):
        fact = f"gradient={gradient_name(rules)!r}: {found}"
        other = "gradient='balanced'" if not rounding(plan) else "precision='float32'"
        raise OptionError(fact, then=[other, "gradient='model'"])
    return found


def _on_the_way(
    session: Session, question: Question, starts: Nodes
) -> tuple[Plan | None, tuple[Site, ...], tuple[Site, ...]]:
    """The relevance pass, the attention sites between the inputs and ``starts``, and those of them
    that ``layers=`` names; without the sites inside modules that a rule passes as a whole."""
    sites = sites_between(session, starts)
    layers = chosen_layers(question.settings.get("layers"), len(sites))
    chosen = tuple(sites[i] for i in layers)
    plan = _relevance_plan(session, question, starts, chosen)
    if plan is None:
        return None, sites, chosen
    visible = {s.contraction for s in plan.sites}
    seen = tuple(s for s in sites if s.contraction in visible)
    require_sites(session, seen)
    return plan, seen, tuple(s for s in chosen if s.contraction in visible)


def _relevance_plan(
    session: Session, question: Question, starts: Nodes, chosen: Sequence[Site]
) -> Plan | None:
    """The relevance pass down to the chosen attention maps, and to the inputs if they are kept."""
    at_input = "input" in question.keep
    if not ("relevance" in question.needs or at_input or question.hooks):
        return None
    leaves = frozenset(session.program.leaves.values()) if at_input else frozenset()
    return session.plan(starts, frozenset(s.attention for s in chosen) | leaves)


def _layer_outputs(
    session: Session,
    question: Question,
    sites: tuple[Site, ...],
    chosen: tuple[Site, ...],
    starts: Nodes,
) -> dict[Site, fx.Node]:
    """The outputs of the chosen sites' layers, for methods over hidden states and values."""
    if not question.needs & {"hidden", "values"}:
        return {}
    ends = tuple(s for s in starts if s in session.flow.members)
    found = session.once(layer_outputs, session.program, session.flow, sites, ends)
    return {s: found[s] for s in chosen if s in found}


def _features(session: Session, question: Question, chosen: tuple[Site, ...]) -> Nodes:
    """The tensors that ``target_layers=`` names, or what the last chosen site's queries, keys and
    values come from."""
    if "features" not in question.needs:
        return ()
    above = block_input(session.program, session.flow, chosen[-1])
    named = named_nodes(session.program, question.settings.get("target_layers"))
    return named or tuple(n for n in [above] if n is not None)


def _differentiated(
    question: Question,
    chosen: tuple[Site, ...],
    in_chunks: Mapping[fx.Node, Attention],
    layers: Mapping[Site, fx.Node],
    features: Nodes,
) -> Nodes:
    """Where else the method takes gradients: at the results of sites in chunks, and at hidden
    states."""
    if "gradient" not in question.needs:
        return ()
    results = (s.contraction for s in chosen if s.contraction in in_chunks)
    return (*results, *(layers.values() if "hidden" in question.needs else ()), *features)


def _read_by_method(
    session: Session,
    question: Question,
    chosen: tuple[Site, ...],
    layers: Mapping[Site, fx.Node],
) -> set[fx.Node]:
    """What else the method itself looks at: inputs, values, and nodes that it names."""
    reads = question.by.reads
    found = set() if reads is None else reads(session, chosen, question.settings)
    if "inputs" in question.needs:
        found |= set(session.program.leaves.values())
    for site, end in layers.items() if "values" in question.needs else ():
        found |= {site.values, site.attention, *session.replay(site.values, end).extra}
    return found


def _facts(session: Session, plan: Plan | None, question: Question) -> dict[str, object]:
    """How an explanation is made, for ``Explanation.facts``."""
    program = session.program
    return {
        "front_end": program.front_end,
        "stored": program.stored,
        "decisions": list(program.decisions),
        "constant_inputs": dict(program.constant_inputs),
        "segments": 1,
        "constant_lookups": list(session.constant_lookups()),
        "generic": [str(n.target) for n in plan.generic] if plan is not None else [],
        "options": {k: str(v) for k, v in question.settings.items()},
    } | ({} if question.balance is None else {"gradient": question.balance.name})
