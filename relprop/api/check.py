"""``check``: what relprop makes of a model before anything is explained. Every op on the relevance
path, its rule, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from relprop.errors import CaptureError, RelpropError
from relprop.methods import METHODS, input_level
from relprop.opening import check_devices
from relprop.opening.opening import open_model
from relprop.operations import Kind, kind
from relprop.plan import Plan, make_plan
from relprop.rules import RuleSet
from relprop.runner.conditions import Conditions
from relprop.runner.judging import Judge, judged, other_gradients, slopes_of
from relprop.runner.session import Session, open_session
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.program import describe, is_floating, place
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed


@dataclass(frozen=True)
class Row:
    """One line of the table: an operation on the relevance path, on how many nodes, and the rule
    they take."""

    operation: str
    nodes: int
    family: str
    rule: str


@dataclass(frozen=True)
class Report:
    """What ``check`` found; ``print`` it. ``ok``: captured and equal to the model, no unknown op,
    the roll-up arrives. A generic op is a warning.

    ``compared`` says what came of running the model itself. ``functions`` are its classes of
    ``torch.autograd.Function`` with a backward of their own: the derivative of what their forward
    does is used in its place. ``gradient_error`` says that this is another gradient, which
    ``explain`` refuses where it needs one.

    A model without token attention is not ``ok``, since the default method does not apply to it,
    but it can be explained at its input: see ``methods``.
    """

    rules: str
    rows: tuple[Row, ...] = ()
    sites: tuple[str, ...] = ()
    softmaxes_without_site: tuple[str, ...] = ()
    generic: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    hidden_sites: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    front_end: str = ""
    decisions: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    capture_error: str = ""
    rollup: tuple[str, ...] = ()
    past_attention: tuple[str, ...] = ()
    rollup_error: str = ""
    constant_inputs: tuple[str, ...] = ()
    constant_lookups: tuple[str, ...] = ()
    compared: str = ""
    functions: tuple[str, ...] = ()
    gradient_error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the default method can be used as it is."""
        return not (self.capture_error or self.unknown or self.rollup_error or self.gradient_error)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that apply: over attention only if the roll-up arrives, with relevance only
        if no op is unknown."""
        if self.capture_error or not self.rows:
            return ()
        excluded = ("attention",) if self.rollup_error else ()
        return tuple(
            m.name
            for m in METHODS.values()
            if m.level not in excluded
            and not (self.unknown and "relevance" in m.needs)
            and not (self.gradient_error and "gradient" in m.needs)
        )

    def __str__(self) -> str:
        if self.capture_error:
            return f"check: NOT OK\n{self.capture_error}"
        width = max([len(r.operation) for r in self.rows], default=9)
        wide = max([len(r.rule) for r in self.rows], default=4)
        verdict = "ok" if self.ok else "NOT OK for the default method" if self.methods else "NOT OK"
        lines = [
            (
                f"check: {verdict}; rules {self.rules!r}; captured by {self.front_end}, "
                f"{self.compared}"
            ),
            "",
        ]
        lines += [
            f"  {'operation':<{width}}  {'nodes':>5}  {'family':<8}  rule",
            f"  {'-' * width}  {'-' * 5}  {'-' * 8}  {'-' * wide}",
        ]
        lines += [
            f"  {r.operation:<{width}}  {r.nodes:>5}  {r.family:<8}  {r.rule}" for r in self.rows
        ]
        lines += [
            "",
            f"  attention sites      {len(self.sites)}"
            + (
                f": {', '.join(self.sites[:4])}{', ...' if len(self.sites) > 4 else ''}"
                if self.sites
                else ""
            ),
        ]
        lines.append(
            f"  roll-up arrives at   {', '.join(self.rollup) if self.rollup else 'nothing'}"
        )
        lines.append(f"  methods that apply   {', '.join(self.methods)}")
        for title, entries in (
            ("no site", self.softmaxes_without_site),
            ("generic rule", self.generic),
            ("UNKNOWN", self.unknown),
            ("hidden site", self.hidden_sites),
            ("constant input", self.constant_inputs),
            ("constant lookup", self.constant_lookups),
            ("input past all attention (no scores over attention)", self.past_attention),
            ("detach (gradient stops, relevance passes)", self.detached),
            ("baked decision", self.decisions),
            ("random numbers, drawn once", self.draws),
            ("backward of its own (the derivative of its forward is used)", self.functions),
        ):
            lines += [f"  {title}: {entry}" for entry in entries]
        errors = [e for e in (self.rollup_error, self.gradient_error) if e]
        return "\n".join(lines + [f"  {e}" for e in errors])


def check(
    model: nn.Module,
    inputs: Any,
    *,
    rules: RuleSet | str = "paper",
    precision: str | torch.dtype | None = None,
    explain_inputs: Sequence[str | int] | str | None = None,
) -> Report:
    """A report on ``model`` for inputs like these; it explains nothing and changes nothing.
    Arguments as in ``explain``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> relprop.check(digit_scene_model(), torch.rand(1, 1, 32, 32)).ok
    True
    """
    model, inputs = open_model(model, inputs)
    with undisturbed(model):
        bound = bind(inputs)
        check_devices(model, bound)

        def call(bound: Inputs, judge: Judge) -> Report:
            judge.hear(bound)
            how = Conditions(precision=precision, explain_inputs=explain_inputs)
            session = open_session(model, bound, rules, how)
            starts = _starts(session)
            one = bound.select(0, 1) if session.program.input_specialised else bound
            values = execute(session.program, model, one, set(starts))
            judge.compare(session, one, 0, values, starts)
            starts = tuple(s for s in starts if s in session.flow.members)
            found = slopes_of(session, one, starts)
            wanted = frozenset(s.attention for s in session.program.sites) | frozenset(
                session.program.leaves.values()
            )
            plan = make_plan(
                session.program, model, session.rules, starts, wanted, on_unknown="collect"
            )
            return replace(
                _report(session, plan, starts),
                compared=judge.said,
                functions=found.functions,
                gradient_error=other_gradients(found) if found.error else "",
            )

        try:
            return judged(model, bound, True, call)
        except CaptureError as error:
            return Report(str(rules), capture_error=str(error))


def _starts(session: Session) -> tuple[fx.Node, ...]:
    """The output the default target reads, or all floating ones if there is no such output."""
    from relprop.targets import class_output

    try:
        return (class_output(session.program).node,)
    except RelpropError:
        return tuple(dict.fromkeys(n for n in session.program.output_nodes if is_floating(n)))


def _report(session: Session, plan: Plan, starts: tuple[fx.Node, ...]) -> Report:
    program = session.program
    counts = Counter((s.op_name, s.rule.family, s.rule.name) for s in plan.steps)
    rows = tuple(Row(op, n, family, rule) for (op, family, rule), n in counts.most_common())
    arrives, past, why = _arrival(session, plan, starts)
    return Report(
        session.rules.name,
        rows,
        tuple(s.path for s in plan.sites),
        tuple(f"the softmax at {place(n)}: {reason}" for n, reason in program.no_sites),
        _found(plan, "generic"),
        _found(plan, "unknown"),
        _found(plan, "hidden site"),
        tuple(
            describe(n)
            for n in program.graph.nodes
            if kind(n) is Kind.DETACH and n in session.flow.members
        ),
        program.front_end,
        program.decisions,
        program.draws,
        "",
        arrives,
        past,
        why,
        tuple(f"{name!r} {reason}" for name, reason in program.constant_inputs.items()),
        session.constant_lookups(),
    )


def _found(plan: Plan, kind: str) -> tuple[str, ...]:
    return tuple(f"{f.text}  at {describe(f.node)}" for f in plan.findings if f.kind == kind)


def _arrival(
    session: Session, plan: Plan, starts: tuple[fx.Node, ...]
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The inputs whose tokens the roll-up reaches and those that pass no attention, or why it
    reaches none."""
    if not plan.steps:
        return (), (), "no output that a target could read depends on an explained input"
    if not plan.sites:
        usable = ", ".join(f"method={name!r}" for name in input_level())
        return (
            (),
            (),
            (
                "the roll-up has no attention site to pass: the default method does not "
                f"apply to this model; use {usable}"
            ),
        )
    try:
        _, streams = session.rollup(starts, plan.sites)
    except RelpropError as error:
        return (), (), str(error)
    if not streams:
        return (), (), "the roll-up reaches no explained input"
    return (
        tuple(f"{s.name} ({'×'.join(map(str, s.sizes))} tokens)" for s in streams),
        tuple(session.past_attention(starts, streams)),
        "",
    )


__all__ = ["Report", "Row", "check"]
