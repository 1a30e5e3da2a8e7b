"""``check``: what relprop makes of a model before anything is explained. Every op on the relevance
path, its rule, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from relprop.api.check_report import Arrival, Need, Report, Row
from relprop.error_boundary import guarded
from relprop.errors import CaptureError, RelpropError
from relprop.opening import check_devices
from relprop.opening.opening import open_model
from relprop.operations import Kind, kind
from relprop.plan import Plan, make_plan
from relprop.rules import RuleSet
from relprop.runner.conditions import Conditions
from relprop.runner.differences import other_gradients
from relprop.runner.input_study import is_text
from relprop.runner.memory import estimated
from relprop.runner.needing import needs_of
from relprop.runner.question import Question
from relprop.runner.session import Session, open_session
from relprop.runner.sites import past_attention
from relprop.runner.slopes import slopes_of
from relprop.runner.verification import Verifier, verified
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.program import describe, is_floating, place
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed
from relprop.tracer.unrecognised import other_attention


@guarded
def check(
    model: nn.Module,
    inputs: Any,
    *,
    rules: RuleSet | str = "paper",
    precision: str | torch.dtype | None = None,
    explain_inputs: Sequence[str | int] | str | None = None,
    processor: Any = None,
    strict: bool = False,
) -> Report:
    """A report on ``model`` for inputs like these; it explains nothing and changes nothing.
    Arguments as in ``explain``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> relprop.check(digit_scene_model(), torch.rand(1, 1, 32, 32)).ok
    True
    """
    model, inputs = open_model(model, inputs, processor=processor)
    with undisturbed(model):
        bound = bind(inputs)
        check_devices(model, bound)

        def call(bound: Inputs, verifier: Verifier) -> Report:
            verifier.run_model(bound)
            how = Conditions(precision=precision, explain_inputs=explain_inputs)
            session = open_session(model, bound, rules, how)
            program, starts = session.program, _starts(session)
            one = bound.select(0, 1) if program.input_specialised else bound
            values = execute(program, model, one, set(starts))
            verifier.compare(session, verifier.reference(program, one, starts), values)
            starts = tuple(s for s in starts if s in session.flow.members)
            found = slopes_of(session, one, starts)
            wanted = {*(s.attention for s in program.sites), *program.leaves.values()}
            plan = make_plan(
                program, model, session.rules, starts, frozenset(wanted), on_unknown="collect"
            )
            report = _report(session, plan, starts)
            other = other_attention(program, model, one)
            return replace(
                report,
                unrecognised=tuple(map(describe, other)),
                memory=_memory(session, bound.batch) if report.ok else (),
                compared=verifier.outcome,
                texts=any(is_text(bound, name) for name in program.leaves),
                functions=found.functions,
                gradient_error=other_gradients(found) if found.error else "",
            )

        try:
            return verified(model, bound, True, call)
        except CaptureError as error:
            return Report(rules=str(rules), capture_error=str(error))


def _starts(session: Session) -> tuple[fx.Node, ...]:
    """The output the default target reads, or all floating ones if there is no such output."""
    from relprop.targets.outputs import class_output

    try:
        return (class_output(session.program).node,)
    except RelpropError:
        return tuple(dict.fromkeys(n for n in session.program.output_nodes if is_floating(n)))


def _report(session: Session, plan: Plan, starts: tuple[fx.Node, ...]) -> Report:
    program = session.program
    counts = Counter((s.op_name, s.rule.family, s.rule.name) for s in plan.steps)
    rows = tuple(Row(op, n, family, rule) for (op, family, rule), n in counts.most_common())
    return Report(
        rules=session.rules.name,
        rows=rows,
        sites=tuple(s.path for s in plan.sites),
        softmaxes_without_site=tuple(
            f"the softmax at {place(n)}: {reason}" for n, reason in program.no_sites
        ),
        generic=_found(plan, "generic"),
        unknown=_found(plan, "unknown"),
        hidden_sites=_found(plan, "hidden site"),
        detached=tuple(
            describe(n)
            for n in program.graph.nodes
            if kind(n) is Kind.DETACH and n in session.flow.members
        ),
        front_end=program.front_end,
        decisions=program.decisions,
        draws=program.draws,
        constant_inputs=tuple(
            f"{name!r} {reason}" for name, reason in program.constant_inputs.items()
        ),
        constant_lookups=session.constant_lookups(),
        **vars(_arrival(session, plan, starts)),
    )


def _memory(session: Session, batch: int) -> tuple[Need, ...]:
    """What the default method needs for inputs as long as these, and for longer ones."""
    make = partial(needs_of, session, Question("transformer_attribution"), [None])
    try:
        return tuple(Need(*found) for found in estimated(make, batch, (1, 2, 4)))
    except RelpropError:
        return ()


def _found(plan: Plan, kind: str) -> tuple[str, ...]:
    return tuple(f"{f.text}  at {describe(f.node)}" for f in plan.findings if f.kind == kind)


def _arrival(session: Session, plan: Plan, starts: tuple[fx.Node, ...]) -> Arrival:
    """The inputs whose tokens the roll-up reaches and those that pass no attention, or why it
    reaches none."""
    if not plan.steps:
        return Arrival(
            rollup_error="no output that a target could read depends on an explained input"
        )
    if not plan.sites:
        usable = ", ".join(f"method={name!r}" for name in past_attention(session.program))
        return Arrival(
            rollup_error="the roll-up has no attention site to pass: the default method does not "
            f"apply to this model; use {usable}"
        )
    try:
        _, streams = session.rollup(starts, plan.sites)
    except RelpropError as error:
        return Arrival(rollup_error=str(error))
    if not streams:
        return Arrival(rollup_error="the roll-up reaches no explained input")
    return Arrival(
        rollup=tuple(f"{s.name} ({'×'.join(map(str, s.sizes))} tokens)" for s in streams),
        past_attention=tuple(session.past_attention(starts, streams)),
    )


__all__ = ["Report", "Row", "check"]
