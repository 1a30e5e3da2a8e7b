"""From a study to an explanation: the method is called, what it found is rolled up or taken as it
is, and put beside what its tokens are; averaged over other values of what is explained, if that is
asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from relprop.errors import (
    ExplodedScoresWarning,
    InputError,
    OptionError,
    RelpropError,
    UnrecognisedWarning,
    ZeroScoresWarning,
    is_strict,
    warn,
)
from relprop.explanation import Explanation, TokenScores
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.points import sizes
from relprop.operations.looking import is_recorded
from relprop.progress import with_progress
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.describe import Names, names_of, tokens_described
from relprop.runner.identity import warn_of_more_than_all
from relprop.runner.input_study import InputStudy
from relprop.runner.needs import Needs
from relprop.runner.numbers import Numbers, at_input, over_attention
from relprop.runner.question import Average
from relprop.runner.rollup import RollUp
from relprop.runner.run import Described, Run
from relprop.runner.run import run as run_of
from relprop.runner.study import Gradients
from relprop.runner.values import with_leading_one
from relprop.targets.start import Start
from relprop.tracer.facts import describe
from relprop.tracer.unrecognised import other_attention

NO_RULES = "none"
#: Rule sets that divide by no sum of products near 0, where relevance explodes.
STEADY = ("attnlrp", "cp_lrp", "lrp_gamma")


def answer(
    needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
) -> Explanation:
    """What the question's method says of a target. ``gradients``: ∂y_t/∂ at the run's watched
    nodes."""
    refuse_infinite_start(start, run.part.first)
    at_inputs = InputStudy(needs, run, target, start, gradients)
    at_inputs.tell_padding()
    average = needs.question.average
    mean = None if average is None else _averaged(average, at_inputs)
    if needs.question.by.level == "attention":
        with torch.no_grad():
            study = AttentionStudy(needs, run, target, start, gradients)
            numbers, described = mean or over_attention(study), study.described
            check_numbers(numbers, lambda: study.sweep.moves, study.rollup, over_attention=True)
    else:
        numbers = mean or at_input(at_inputs)
        described = {s.name: tokens_described(needs, run, s) for s in at_inputs.streams}
        check_numbers(numbers, lambda: None, over_attention=False)
    read_by, outputs = run.part.prepared.processor, run.outputs(needs.program)
    names = names_of(needs.session, outputs, start.label, read_by)
    made, seen = Made.by(needs), unrecognised(needs, run, start)
    facts = dict(made.facts) | {"unrecognised": seen}
    options = {"average": average and str(average), "part": needs.question.part}
    made = made._replace(facts=facts | {name: v for name, v in options.items() if v is not None})
    found = explained(numbers, described, start, names, made)
    return _with_start(found, needs, run, start) if needs.walks else found


def refuse_infinite_start(start: Start, first: int = 0) -> None:
    """Raises ``InputError`` where what is explained of a sample, counted from ``first`` on, is not
    finite: a class that the model rules out."""
    bad = ~start.scalars.detach().isfinite()
    if bool(bad.any()):
        i = first + int(bad.int().argmax())
        fact = f"what is explained is not finite for sample {i}: the model may rule that class out"
        raise InputError(fact, then=["explain another class, one with a finite value"])


def _with_start(found: Explanation, needs: Needs, run: Run, start: Start) -> Explanation:
    """The same with what relevance started with. Warns where the scores are far beyond it."""
    by_value = needs.question.by.starts_with == "output"
    terms = start.contributions(run.outputs(needs.program)) if by_value else start.begun
    begun = [abs(t.coefficient) * sizes(s) for t in terms for s in t.seeds.values()]
    found = replace(found, started=torch.stack(begun).sum(0).detach())
    if text := next(filter(None, found.exploded), ""):
        *some, last = (repr(n) for n in STEADY if n != found.rules)
        then = f"rules={', '.join(some)} or {last}: they divide by no sum of products near 0"
        warn(ExplodedScoresWarning(text, then=[then]))
    return found


def _averaged(average: Average, at: InputStudy) -> Numbers:
    """The mean of what the method finds at each point: the same question, with a forward pass, a
    target and gradients of its own. It has no books. Raises ``OptionError`` for what is no mean of
    several passes."""
    needs, run, found = at.needs, at.run, Numbers({})
    _refuse_average(needs)
    for point in with_progress(average.points(at), "draw", average.count):
        moved = {at.leaves[n]: with_leading_one(v, at.leaves[n]) for n, v in point.values.items()}
        part = replace(run.part, inputs=replace(run.part.inputs, moved=moved))
        done = run_of([needs], part)
        begun = done.started_as(needs.session, at.target, at.start, walks=needs.starts)
        watch = needs.watch if needs.differentiates and not needs.backward.segments else ()
        scalars = done.explained(needs.session, needs.question, begun)
        gradients = done.forward.gradients(scalars, watch, again=False) if watch else {}
        if needs.question.by.level == "attention":
            with torch.no_grad():
                study = AttentionStudy(needs, done, at.target, begun, gradients)
                numbers = over_attention(study)
        else:
            there = InputStudy(needs, done, at.target, begun, gradients)
            there.values = there.values if point.steps is None else dict(point.steps)
            numbers = at_input(there)
        found = found.plus(numbers, point.weight)
    return found


class Made(NamedTuple):
    """How an explanation was made: by which method and which rules, and what else is to be said."""

    method: str
    rules: str
    facts: Mapping[str, object]

    @classmethod
    def by(cls, needs: Needs) -> Made:
        """As a question is answered."""
        bare = not needs.walks and "relevance" not in needs.question.by.needs
        rules = NO_RULES if bare else needs.session.rules.name
        return cls(needs.question.method, rules, needs.facts)


def explained(
    numbers: Numbers, described: Described, start: Start, names: Names, made: Made
) -> Explanation:
    """The numbers beside what the tokens are; which of them are content is said where the scores
    are."""
    streams = {
        name: TokenScores(
            name,
            scores,
            scores + identity,
            identity,
            **{**described[name], "content": described[name]["content"].to(scores.device)},
            matrix=numbers.matrix,
            input=numbers.inputs.get(name),
            layers=numbers.layers.get(name),
        )
        for name, (scores, identity) in numbers.pairs.items()
    }
    return Explanation(
        streams,
        start.label,
        start.scalars.detach(),
        made.method,
        made.rules,
        numbers.ledger,
        numbers.blocks,
        made.facts,
        *names,
    )


def check_numbers(
    numbers: Numbers,
    moves: Callable[[], Tensor | None],
    rollup: RollUp | None = None,
    *,
    over_attention: bool,
) -> None:
    """Refuse scores that are not finite, and say so where all of a sample's over attention are 0.
    ``moves``: for which samples y_t changes with any attention map, (batch,), if that is known.
    ``rollup``: what can say where an input counts more than once; a flat program cannot."""
    for scores, _ in numbers.pairs.values():
        _refuse_nonfinite(scores, numbers.ledger)
    if over_attention:
        _warn_of_nothing(numbers, moves)
        warn_of_more_than_all(numbers.pairs, rollup)


def _refuse_nonfinite(scores: Tensor, ledger: Ledger | None) -> None:
    """Refuse scores that are NaN or infinite, and name the first rule that made relevance so."""
    if torch.isfinite(scores).all():
        return
    fact = f"the scores of {int((~torch.isfinite(scores)).any(1).sum())} samples are not finite"
    first = None if ledger is None else ledger.first_nonfinite()
    if first is None:
        then = [
            "precision='float64' if numbers overflow",
            "if the model's own derivative is not finite (the root of 0, a row masked whole): "
            "torch.autograd.detect_anomaly() around its forward and backward pass names the line",
        ]
        raise RelpropError(fact, then=then)
    raise RelpropError(
        f"{fact}: rule {first.rule!r} hands on what is NaN or infinite",
        at=f"{first.path} ({first.op})",
        then=[
            "precision='float64' if it overflows",
            "relprop.testing.check_rule(rule, op, *inputs) if it is a rule of your own",
        ],
    )


def _warn_of_nothing(numbers: Numbers, moves: Callable[[], Tensor | None]) -> None:
    """Say so where all scores of a sample are 0, and why: an explanation of nothing but zeros is no
    answer."""
    empty = torch.stack([~s.any(1) for s, _ in numbers.pairs.values()]).all(0)
    if not bool(empty.any()):
        return
    moving = moves()
    still = moving is not None and not bool(moving[empty].any())
    cause, then = (
        "nothing positive is left at any attention map",
        ("relprop.check, or e.ledger: where relevance was lost or absorbed"),
    )
    if still:
        cause = (
            "y_t does not change with any attention map (it may be saturated, or 1 by a "
            "normalisation over the batch)"
        )
        then = "explain a logit instead of a probability: target=relprop.targets.output(NAME)[...]"
    fact = f"all scores of {int(empty.sum())} of {len(empty)} samples are 0: {cause}"
    warn(ZeroScoresWarning(fact, then=[then]))


NONE = "weights over tokens that sum to 1 and come from no softmax"
INSTEAD = (
    "a method at the input reads every operation: method='attnlrp', 'gradient_x_input'",
    "or replace the weights by torch.softmax, if they are one in other words",
)


def unrecognised(needs: Needs, run: Run, start: Start) -> list[str]:
    """Where a target of a method over attention reads attention that is no softmax; said once per
    program."""
    session, program = needs.session, needs.program
    if needs.question.by.level != "attention" or is_recorded():
        return []
    found = program.memo.cache(
        "other attention", lambda: other_attention(program, session.model, run.inputs)
    )
    ends = tuple(start.field) or program.output_nodes
    read = [n for n in found if n in session.flow.members and session.leads(n, ends)]
    if read and (is_strict() or program.memo.first_time("other attention said")):
        fact = (
            f"method {needs.question.method!r} does not count {len(read)} of the attentions: {NONE}"
        )
        warn(UnrecognisedWarning(fact, at=describe(read[0]), then=INSTEAD))
    return [f"{NONE}  at {describe(n)}" for n in read]


def _refuse_average(needs: Needs) -> None:
    question, fact = needs.question, f"average={needs.question.average}"
    if kept := sorted(question.keep & {"blocks", "matrix"}):
        raise OptionError(f"{fact} gives scores alone: leave {', '.join(kept)} out of keep=")
    if question.ledger:
        raise OptionError(f"{fact} is of several passes, and keeps no books: leave ledger=True out")
    if question.by.texts:
        name = question.method
        raise OptionError(f"{fact}: method {name!r} runs other texts, not other values of this one")
