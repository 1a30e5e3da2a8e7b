"""``check_rule``: one rule, on one operation, by every law that the walk relies on."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import first_line
from relprop.interpreter.walk import Walk
from relprop.operations import Kind, kind
from relprop.rules import Rule
from relprop.testing import drawn
from relprop.testing.alone import Subject, Values, floating
from relprop.testing.faults import Checked, Examination

EXACT = 1e-9  # of the largest |relevance|, in float64
TENSORS = "write tensor operations alone: torch.where in place of if, no .item(), no numpy"
STABLE = "divide by relprop.numerics.safe_divide(a, b), or by b + ε·sign(b)"
Starts = Mapping[fx.Node, Tensor]


def check_rule(
    rule: Rule | Callable[..., Any],
    op_or_module: Any,
    *inputs: Any,
    conserving: bool = True,
    draws: int = 20,
    **keywords: Any,
) -> Checked:
    """Examine a rule on calls of an operation, in float64 and by the library's own walk.

    Args:
        op_or_module: the rule's key: an operator (``torch.ops.mylib.gated_norm``), or a module
            (an object, not its class), whose whole call the rule is for.
        inputs: the call's arguments. Floating tensors with the batch first are what relevance
            travels to; ``nn.Parameter``s are parameters, all else is as it is. Of one sample, a
            second one is made. ``keywords`` are the call's.
        conserving: whether what arrives must leave, be absorbed by a parameter, or be declared as
            lost, to 1e-9 of Σ|R|; ``False`` for a rule that is known not to.
        draws: how many more calls Hypothesis draws, where it is installed: of other shapes, values
            and roles. What breaks a law there is shown with the smallest call that does.

    The laws: an operation *takes* the rule; it *runs*, returns a share per operand of the right
    shape, *leaves its inputs* as they were and *hands on* relevance; shares are *finite*, also where all inputs are 0; it
    is *conserving*, *homogeneous* (twice the relevance, twice the shares), *repeatable*, and
    *batch-exact*: under ``torch.vmap`` over a batch it gives what it gives for each sample. What
    it says of itself holds: ``row_wise``, and its gradient form.

    Raises ``CheckFailed``, which names every law that is broken and what to do.

    >>> import torch, relprop
    >>> x = torch.randn(2, 4, 8)
    >>> print(relprop.testing.check_rule(relprop.rules.carry, torch.ops.aten.gelu, x))
    rule 'carry' on aten.gelu: taken, runs, leaves its inputs, hands on, finite, conserving, homogeneous, repeatable, batch-exact, row-wise, gradient form
    """  # noqa: E501
    own = Rule.ensure(rule)
    examined = partial(_examined, own, op_or_module, keywords, conserving)
    examination = examined(inputs)
    broken = {fault.law for fault in examination.faults}
    if not draws or "taken" in broken:
        return examination.end()
    if importlib.util.find_spec("hypothesis") is None:
        examination.notes.append("no other calls were drawn: hypothesis is not installed")
        return examination.end()

    def breaks(given: tuple[Any, ...]) -> bool:
        faults = {fault.law for fault in examined(given).faults}
        return bool(faults & broken if broken else faults - {"taken"})

    module = isinstance(op_or_module, nn.Module)
    called = copy.deepcopy(op_or_module).double() if module else op_or_module
    with torch.no_grad():
        found = drawn.smallest(called, inputs, keywords, breaks, draws)
    if found is None:
        return examination.end()
    of, faults = f"\n    of  {', '.join(map(drawn.shown, found))}", examined(found).faults
    examination.faults = [replace(fault, fact=f"{fault.fact}{of}") for fault in faults]
    return examination.end()


def _examined(
    rule: Rule,
    op_or_module: Any,
    keywords: Mapping[str, Any],
    conserving: bool,
    inputs: tuple[Any, ...],
) -> Examination:
    """One call, law by law."""
    module = isinstance(op_or_module, nn.Module)
    called = type(op_or_module).__name__ if module else str(op_or_module)
    examination = Examination(f"rule {rule.name!r} on {called}")
    if isinstance(op_or_module, type):
        fact = f"{called} is a class: nothing can be called"
        examination.law("taken", False, fact, f"give a module: {op_or_module.__name__}(...)")
        return examination
    with torch.no_grad():
        subject = Subject.of(rule, op_or_module, inputs, keywords)
        if _is_taken(examination, subject, called):
            _examine(examination, subject, conserving=conserving)
    return examination


def _is_taken(examination: Examination, subject: Subject, called: str) -> bool:
    others = ", ".join(subject.operations) or "no operation at all"
    fact = f"no operation takes it: the call is captured as {others}"
    then = f"give the rule to one of these, or to the module whose call it is (not {called})"
    if subject.rule.for_one_activation and subject.activations > 1:
        fact = f"it is for operations with one activation, and this call has {subject.activations}"
        then = "nn.Parameter(tensor) for what is a parameter; else a rule with a share for each"
    return examination.law("taken", subject.taken, fact, then)


def _examine(examination: Examination, subject: Subject, *, conserving: bool) -> None:
    """Every law but the first, as far as the rule runs."""
    values = subject.values()
    starts = subject.starts(values)
    before = {n: v.clone() for n, v in floating(values).items()}
    one = subject.alone(values, 0)
    then = "return one tensor, one share per operand, or a Split (docs/write-a-rule.md)"
    if _tried(examination, "runs", lambda: subject.walk(one, _part(starts, 0)), then) is None:
        return
    examination.law("runs", True)
    changed = any(not torch.equal(before[n], v) for n, v in floating(values).items())
    fact = "it writes into the tensors it is given, which belong to the model's run"
    then = "compute new tensors: x * 2, not x.mul_(2)"
    examination.law("leaves its inputs", not changed, fact, then)
    whole = _tried(examination, "batch-exact", lambda: subject.walk(values, starts), TENSORS)
    if whole is None:
        return
    missing = subject.plan.wanted - whole.found.keys()
    fact = "an operand whose relevance is read was given nothing, or a Total in place of a tensor"
    then = "Total(sum) is for operands that are not call.operands[i].needed; zeros for nothing"
    if not examination.law("hands on", not missing, fact, then):
        return
    if _is_finite(examination, subject, whole):
        _laws(examination, subject, values, starts, whole, conserving=conserving)


def _tried(examination: Examination, law: str, walk: Callable[[], Walk], then: str) -> Walk | None:
    """A walk, or ``None`` where the rule fails, which breaks a law."""
    try:
        return walk()
    except Exception as error:  # a user's rule may raise anything
        reason = "\n    ".join(str(error).splitlines()) or type(error).__name__
        if law == "batch-exact":
            reason = f"it runs for one sample and not under torch.vmap: {first_line(error)}"
        examination.law(law, False, reason, then)
        return None


def _is_finite(examination: Examination, subject: Subject, whole: Walk) -> bool:
    """On these numbers, and where every input is 0 if the operation is defined there."""
    bad = sum(int((~r.isfinite()).sum()) for r in whole.found.values())
    fact = f"{bad} shares are NaN or infinite where inputs and relevance are finite"
    if not bad:
        zeros = subject.with_inputs(torch.zeros_like)
        values = zeros.values()
        if all(bool(v.isfinite().all()) for v in floating(values).values()):
            found = zeros.walk(values, zeros.starts(values)).found
            bad = sum(int((~r.isfinite()).sum()) for r in found.values())
            fact = f"{bad} shares are NaN or infinite where every input is 0"
    return examination.law("finite", not bad, fact, STABLE)


def _laws(
    examination: Examination,
    subject: Subject,
    values: Values,
    starts: Starts,
    whole: Walk,
    *,
    conserving: bool,
) -> None:
    """What is asked of numbers that are there."""
    _conserving(examination, subject, whole, wanted=conserving)
    twice = subject.walk(values, {n: 2.5 * r for n, r in starts.items()})
    off = _apart(twice.found, {n: 2.5 * r for n, r in whole.found.items()})
    fact = f"2.5 times the relevance gives other shares than 2.5 times, by {off:.2g} of the largest"
    then = "no constant may be added to relevance, and nothing may be cut off at a fixed value"
    examination.law("homogeneous", off <= EXACT, fact, then)
    off = _apart(subject.walk(values, starts).found, whole.found)
    fact = f"the same call gives other shares, by {off:.2g} of the largest"
    examination.law("repeatable", off == 0, fact, "draw no random numbers, and keep no state")
    every = range(subject.inputs.batch)
    walks = (subject.walk(subject.alone(values, i), _part(starts, i)) for i in every)
    off = max(_apart(one.found, _part(whole.found, i)) for i, one in enumerate(walks))
    fact = f"a batch gives other shares than its samples, by {off:.2g} of the largest"
    examination.law("batch-exact", off <= EXACT, fact, TENSORS)
    _what_it_says(examination, subject, values, starts, whole)


def _conserving(examination: Examination, subject: Subject, whole: Walk, *, wanted: bool) -> None:
    names = {rule.name for rule in subject.rule.alternatives}
    mine = [a for a in whole.accounts if a.rule in names]
    ratios = [(a.residual.abs() / a.absolute.clamp(min=1e-300)).max() for a in mine]
    worst = float(torch.stack(ratios).max())
    if not wanted:
        examination.notes.append(f"not asked to conserve: up to {worst:.2g} of Σ|R| is residual")
        return
    law = _equation(subject)
    fact = f"{worst:.2g} of Σ|R| is neither handed on nor absorbed nor declared, against {law}"
    then = 'Split(shares, lost={"cause": amount}) if it has nowhere to go; conserving=False else'
    examination.law("conserving", worst <= EXACT, fact, then)


def _equation(subject: Subject) -> str:
    """What of Chefer, Gur & Wolf 2021 says that this operation conserves relevance."""
    taken = next(s for s in subject.plan.steps if s.rule in subject.rule.alternatives)
    if taken.roles.count("activation") < 2:
        return "Eq. 3"
    return "Lemma 1" if kind(taken.node) is Kind.SUM else "Lemma 2"


def _what_it_says(
    examination: Examination, subject: Subject, values: Values, starts: Starts, whole: Walk
) -> None:
    """That it is row-wise, that its gradient form is the same rule."""
    if subject.rule.splits_parts:
        some = {n: r * _some_rows(r) for n, r in starts.items()}
        rest = {n: r - some[n] for n, r in starts.items()}
        parts = [subject.walk(values, part).found for part in (some, rest)]
        off = _apart({n: parts[0][n] + parts[1][n] for n in parts[0]}, whole.found)
        fact = f"two parts of the output give other shares together than the whole, by {off:.2g}"
        examination.law("row-wise", off <= EXACT, fact, "leave row_wise=True out")
    if subject.rule.gradient is not None:
        found = subject.by_gradient(values, starts)
        if isinstance(found, str):
            examination.notes.append(f"its gradient form was not tried: {found}")
            return
        if not all(bool(r.isfinite().all()) for r in found.values()):
            examination.notes.append("its gradient form is not defined here: relevance is walked")
            return
        off = _apart(found, whole.found)
        fact = f"its gradient form gives other shares than the rule, by {off:.2g} of the largest"
        then = "x times the gradient of the form must be the share of x (docs/write-a-rule.md)"
        examination.law("gradient form", off <= 1e-6, fact, then)


def _some_rows(relevance: Tensor) -> Tensor:
    """1 in every second row of an output, else 0."""
    rows = relevance.shape[-2] if relevance.dim() > 2 else 1
    mask = torch.arange(rows) % 2 == 0
    return (mask[:, None] if relevance.dim() > 2 else mask).double()


def _part(relevance: Starts, sample: int) -> dict[fx.Node, Tensor]:
    return {n: r[sample : sample + 1] for n, r in relevance.items()}


def _apart(found: Starts, other: Starts) -> float:
    """The largest difference, as a share of the largest |relevance|."""
    scale = max([float(r.abs().max()) for r in other.values() if r.numel()], default=0.0)
    apart = [float((found[n] - other[n]).abs().max()) for n in other if other[n].numel()]
    return max(apart, default=0.0) / (scale or 1.0)
