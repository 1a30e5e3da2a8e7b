"""From a study to an explanation: the method is called, what it found is rolled up or taken as it
is, and put beside what its tokens are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from relprop.errors import (
    ExplodedScoresWarning,
    OptionError,
    RelpropError,
    ZeroScoresWarning,
    warn,
)
from relprop.explanation import Block, Explanation, TokenScores
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.points import sizes
from relprop.rollup import Stream
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.averages import runs_at
from relprop.runner.describe import Names, names_of, tokens_described
from relprop.runner.identity import warn_of_more_than_all
from relprop.runner.input_study import InputStudy
from relprop.runner.needs import Needs
from relprop.runner.placed import apart
from relprop.runner.points import Average
from relprop.runner.returned import checked_attributions, checked_found, is_matrices
from relprop.runner.rollup import Pairs, RollUp
from relprop.runner.run import Described, Run
from relprop.runner.sweep import Gradients
from relprop.runner.unrecognised import unrecognised
from relprop.runner.values import Found, SiteValues, TokenMap
from relprop.targets import Start
from relprop.tracer.editing import val

NO_RULES = "none"
#: Rule sets that divide by no sum of products near 0, where relevance explodes.
STEADY = ("attnlrp", "cp_lrp", "lrp_gamma")


@dataclass(frozen=True)
class Numbers:
    """What a method finds of a target, before anybody says what the tokens are: by explained input
    the scores and what skip connections alone leave, (batch, tokens) both; ``inputs``, the
    relevance at the input, and ``layers``; ``matrix`` and ``blocks``; all if ``keep=`` named
    them."""

    pairs: Pairs
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    layers: Mapping[str, Tensor] = field(default_factory=dict)
    matrix: Tensor | None = None
    blocks: tuple[Block, ...] | None = None
    ledger: Ledger | None = None

    def plus(self, other: Numbers, weight: float) -> Numbers:
        """What there is by name, with ``weight`` times another's added."""

        def added(mine: Mapping[str, Tensor], its: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {n: weight * v + mine[n] if n in mine else weight * v for n, v in its.items()}

        both = (
            added(*({n: p[k] for n, p in of.pairs.items()} for of in (self, other))) for k in (0, 1)
        )
        scores, identity = both
        pairs = {n: (scores[n], identity[n]) for n in scores}
        inputs, layers = added(self.inputs, other.inputs), added(self.layers, other.layers)
        return Numbers(pairs, inputs, layers)


def answer(
    needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
) -> Explanation:
    """What the question's method says of a target. ``gradients``: ∂y_t/∂ at the run's watched
    nodes."""
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
    asked = {"average": average and str(average), "part": needs.question.part}
    made = made._replace(facts=facts | {name: v for name, v in asked.items() if v is not None})
    found = explained(numbers, described, start, names, made)
    return _with_start(found, needs, run, start) if needs.walks else found


def _with_start(found: Explanation, needs: Needs, run: Run, start: Start) -> Explanation:
    """The same with what relevance started with. Warns where the scores are far beyond it."""
    by_value = needs.question.by.starts_with == "output"
    terms = start.contributions(run.outputs(needs.program)) if by_value else start.begun
    begun = [abs(t.coefficient) * sizes(s) for t in terms for s in t.seeds.values()]
    found = replace(found, started=torch.stack(begun).sum(0).detach())
    if said := next(filter(None, found.exploded), ""):
        *some, last = (repr(n) for n in STEADY if n != found.rules)
        then = f"rules={', '.join(some)} or {last}: they divide by no sum of products near 0"
        warn(ExplodedScoresWarning(said, then=[then]))
    return found


def _averaged(average: Average, at: InputStudy) -> Numbers:
    """The mean of what the method finds at each point. It has no books."""
    over, found = at.needs.question.by.level == "attention", Numbers({})
    for point, made in runs_at(average, at):
        if over:
            with torch.no_grad():
                numbers = over_attention(AttentionStudy(*made))
        else:
            study = InputStudy(*made)
            study.values = study.values if point.steps is None else dict(point.steps)
            numbers = at_input(study)
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


# -- over attention


def over_attention(study: AttentionStudy) -> Numbers:
    """What a method over attention finds, rolled up if it gives matrices."""
    method, keep = study.needs.question.by, study.needs.question.keep
    own = {k: v for k, v in study.settings.items() if k in method.own_options()}
    found = checked_found(study, method.function(study, **own))
    scores = study.rolled_up(found) if is_matrices(found) else _token_maps(found)  # type: ignore[arg-type]
    if not is_matrices(found) or study.mixes_unattended or not study.needs.backward.in_chunks:
        scores = {
            name: (torch.where(study.connected[name].to(part.device), part, 0), identity)
            for name, (part, identity) in scores.items()
        }
    scores = _part_of(scores, study.needs.question.part)
    at_inputs = [(s.name, study.found_at(s.leaf)) for s in study.streams if "input" in keep]
    return Numbers(
        {s.name: scores[s.name] for s in study.streams if s.name in scores},
        {name: found[:, 0] for name, found in at_inputs if found is not None},
        _layers(study, found) if "layers" in keep else {},
        _matrix(study, found) if "matrix" in keep else None,
        tuple(map(_block, study.whole)) if "blocks" in keep else None,
        study.ledger,
    )


def _part_of(pairs: Pairs, part: str | None) -> Pairs:
    """The scores, or what of them speaks for the target, or against it."""
    if part is None:
        return pairs
    sign = 1 if part == "positive" else -1
    return {name: ((sign * s).clamp(min=0), identity) for name, (s, identity) in pairs.items()}


def _token_maps(found: Mapping[str, TokenMap]) -> Pairs:
    return {
        name: (m.scores, torch.zeros_like(m.scores) if m.identity is None else m.identity)
        for name, m in found.items()
    }


def _matrix(study: AttentionStudy, found: Found) -> Tensor:
    """C of Eq. 14. Raises ``OptionError`` for a method that multiplies no matrices."""
    if not is_matrices(found):
        name = study.needs.question.method
        raise OptionError(f"keep='matrix': method {name!r} multiplies no matrices")
    return study.matrix(found)  # type: ignore[arg-type]


def _layers(study: AttentionStudy, found: Found) -> dict[str, Tensor]:
    """The parts of the scores by layer. Raises ``OptionError`` for a method that has none."""
    maps: Mapping[str, TokenMap] = {} if is_matrices(found) else found  # type: ignore[assignment]
    layers = {name: m.layers for name, m in maps.items() if m.layers is not None}
    if not layers:
        name = study.needs.question.method
        raise OptionError(f"keep='layers': method {name!r} has no scores by layer")
    return {
        n: torch.where(study.connected[n][:, None].to(part.device), part, 0)
        for n, part in layers.items()
    }


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


def _block(values: SiteValues) -> Block:
    """A site as users see it: one sample's leading 1 dropped, rows are queries."""

    def tidy(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        t = t.mT if values.site.transposed else t
        return t[:, 0] if t.dim() > 4 and t.shape[1] == 1 else t

    attention = tidy(values.attention)
    assert attention is not None
    return Block(values.site.path, attention, tidy(values.slope), tidy(values.arrived))


# -- at the input


def at_input(study: InputStudy) -> Numbers:
    """``scores`` are the method's numbers summed over the axes that are no positions; nothing is
    rolled up, so ``row`` is ``scores`` and ``identity`` 0."""
    by, ledger = study.needs.question.by, study.ledger
    own = {k: v for k, v in study.settings.items() if k in by.own_options()}
    found = checked_attributions(study, by.function(study, **own))
    scores = {s.name: _summed(s, found[s.name]) for s in study.streams}
    if study.needs.positions is not None:
        placed, rest = study.needs.positions.scores(study)
        scores = {name: part + placed[name] for name, part in scores.items()}
        ledger = None if ledger is None else apart(ledger, rest)
    kept = "input" in study.needs.question.keep
    pairs = {name: (part, torch.zeros_like(part)) for name, part in scores.items()}
    return Numbers(
        _part_of(pairs, study.needs.question.part),
        {name: found[name].detach() for name in scores} if kept else {},
        ledger=ledger,
    )


def _summed(stream: Stream, attribution: Tensor) -> Tensor:
    """An attribution (batch, *one sample's shape) summed over what are no positions, (batch,
    positions)."""
    batch = len(attribution)
    whole = attribution.detach().reshape(batch, *val(stream.leaf).shape)
    features = [i + 1 for i in range(whole.dim() - 1) if i not in stream.token_axes]
    return (whole.sum(features) if features else whole).reshape(batch, -1)
