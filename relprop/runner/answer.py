"""From a study to an explanation: the method is called, what it found is rolled up or taken as it
is, and put beside what its tokens are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import OptionError, RelpropError, message, warn
from relprop.explanation import Block, Explanation, TokenScores
from relprop.rollup import Stream
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.describe import names_of, tokens_described
from relprop.runner.input_study import InputStudy
from relprop.runner.needs import Needs
from relprop.runner.positions import positions
from relprop.runner.rollup import Pairs
from relprop.runner.run import Run
from relprop.runner.study import Study
from relprop.runner.sweep import Gradients
from relprop.runner.values import Found, SiteValues, TokenMap
from relprop.targets import Start
from relprop.tracer.editing import val

NO_RULES = "none"


def answer(
    needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
) -> Explanation:
    """What the question's method says of a target. ``gradients``: ∂y_t/∂ at the run's watched
    nodes."""
    if needs.question.by.level == "attention":
        with torch.no_grad():
            return _over_attention(AttentionStudy(needs, run, target, start, gradients))
    return _at_input(InputStudy(needs, run, target, start, gradients))


def _explanation(study: Study, streams: Mapping[str, TokenScores], **more: Any) -> Explanation:
    """What is the same of every method."""
    needs, start = study.needs, study.start
    labels, probability = names_of(study.session, study.run, start)
    return Explanation(
        streams=streams,
        target=start.label,
        output=start.scalars.detach(),
        method=needs.question.method,
        ledger=study.ledger,
        facts=needs.facts,
        labels=labels,
        probability=probability,
        **more,
    )


# -- over attention


def _over_attention(study: AttentionStudy) -> Explanation:
    method, keep = study.needs.question.by, study.needs.question.keep
    own = {k: v for k, v in study.settings.items() if k in method.own_options()}
    found = method.function(study, **own)
    scores = study.rolled_up(found) if is_matrices(found) else _token_maps(found)
    if not is_matrices(found) or study.mixes_unattended or not study.needs.in_chunks:
        scores = {
            name: (torch.where(study.connected[name], part, 0), identity)
            for name, (part, identity) in scores.items()
        }
    _warn_of_nothing(scores, study)
    matrix = _matrix(study, found) if "matrix" in keep else None
    layers = _layers(study, found) if "layers" in keep else {}
    streams = {
        s.name: _token_scores(study, s, scores[s.name], matrix, layers.get(s.name))
        for s in study.streams
        if s.name in scores
    }
    blocks = tuple(map(_block, study.whole)) if "blocks" in keep else None
    return _explanation(study, streams, rules=study.session.rules.name, blocks=blocks)


def is_matrices(found: Collection[object]) -> bool:
    """Whether a method returned a matrix per attention site, not a ``TokenMap`` per input."""
    return all(isinstance(key, fx.Node) for key in found)


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
    return {n: torch.where(study.connected[n][:, None], part, 0) for n, part in layers.items()}


def _token_scores(
    study: AttentionStudy,
    stream: Stream,
    pair: tuple[Tensor, Tensor],
    matrix: Tensor | None,
    layers: Tensor | None,
) -> TokenScores:
    """One input's scores, with what its tokens are."""
    scores, identity = pair
    _refuse_nonfinite(scores, "relevance overflowed")
    at_input = study.found_at(stream.leaf) if _keeps_input(study) else None
    return TokenScores(
        stream.name,
        scores,
        scores + identity,
        identity,
        **study.described[stream.name],
        matrix=matrix,
        input=None if at_input is None else at_input[:, 0],
        layers=layers,
    )


def _keeps_input(study: Study) -> bool:
    return "input" in study.needs.question.keep


def _refuse_nonfinite(scores: Tensor, why: str) -> None:
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).any(1).sum())
        raise RelpropError(
            f"the scores of {bad} samples are not finite: {why}; precision='float64' may help"
        )


def _warn_of_nothing(scores: Pairs, study: AttentionStudy) -> None:
    """Say so where all scores of a sample are 0, and why: an explanation of nothing but zeros is no
    answer."""
    empty = torch.stack([~s.any(1) for s, _ in scores.values()]).all(0)
    if not bool(empty.any()):
        return
    moves = study.sweep.moves
    still = moves is not None and not bool(moves[empty].any())
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
    warn(message(fact, then=[then]))


def _block(values: SiteValues) -> Block:
    """A site as users see it: one sample's leading 1 dropped, rows are queries."""

    def tidy(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        t = t.mT if values.site.transposed else t
        return t[:, 0] if t.dim() > 4 and t.shape[1] == 1 else t

    attention = tidy(values.attention)
    assert attention is not None
    return Block(values.site.path, attention, tidy(values.gradient), tidy(values.relevance))


# -- at the input


def _at_input(study: InputStudy) -> Explanation:
    """``scores`` are the method's numbers summed over the axes that are no positions; nothing is
    rolled up, so ``row`` is ``scores`` and ``identity`` 0."""
    found = study.needs.question.by.function(study, **study.settings)
    streams = {}
    for name, leaf in study.leaves.items():
        stream = Stream(name, leaf, leaf, positions(study.program, leaf))
        streams[name] = _attributed(study, stream, found[name])
    walked = study.needs.plan is not None or study.needs.by_gradient
    rules = study.session.rules.name if walked else NO_RULES
    return _explanation(study, streams, rules=rules)


def _attributed(study: InputStudy, stream: Stream, attribution: Tensor) -> TokenScores:
    """One input's scores, from its attribution (batch, *one sample's shape): summed over what are
    no positions."""
    batch = study.run.inputs.batch
    whole = attribution.detach().reshape(batch, *val(stream.leaf).shape)
    features = [i + 1 for i in range(whole.dim() - 1) if i not in stream.token_axes]
    scores = (whole.sum(features) if features else whole).reshape(batch, -1)
    _refuse_nonfinite(scores, "they overflowed")
    return TokenScores(
        stream.name,
        scores,
        scores,
        torch.zeros_like(scores),
        **tokens_described(study.needs, study.run, stream),
        input=attribution.detach() if _keeps_input(study) else None,
    )
