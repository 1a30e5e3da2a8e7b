"""Whether a method tells a contrast from its opposite: found by trying, once per method."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import fx

from relprop.errors import OptionError, RelpropError, message
from relprop.explanation import Explanation
from relprop.runner.answers import answers
from relprop.runner.method import METHODS
from relprop.runner.needing import needs_of
from relprop.runner.question import Question
from relprop.runner.run import Part
from relprop.runner.session import Session
from relprop.targets.answers import Contrast

#: Of the scores of y_t and those of −y_t: the same, turned around, or neither.
Kind = Literal["even", "signed", "one-sided", ""]
_KINDS: dict[Hashable, Kind] = {}


def told_signs(kind: Kind, explanation: Explanation | None, target: object) -> Explanation | None:
    """The explanation of a contrast, its labels with what its scores leave out."""
    if explanation is None or kind != "one-sided" or _contrast(target) is None:
        return explanation
    known = explanation.labels or (None,) * len(explanation.target)
    both = zip(known, explanation.target, strict=True)
    labels = tuple(f"{name or said}; what speaks against it is not shown" for name, said in both)
    return replace(explanation, labels=labels)


def sided(
    session: Session, whole: Part, first: int, targets: Sequence[object], question: Question
) -> Kind:
    """What the method makes of the first contrast among ``targets``, if there is one. Raises
    ``OptionError`` where the scores of the opposite are the same.

    ``whole``: all samples of the call, of which ``targets`` are for those from ``first`` on.
    """
    found = ((t, i) for t in targets if (i := _contrast(t)) is not None)
    target, at = next(found, (None, 0))
    if target is None:
        return ""
    asked = target[at] if isinstance(target, list) else target
    assert isinstance(asked, Contrast)
    options = tuple(sorted((k, repr(v)) for k, v in question.settings.items()))
    key = (question.by, options, question.rule_set)
    if key not in _KINDS:
        one = whole.select(first + at, first + at + 1)
        kind = _tried(session, one, asked, question)
        if not kind:
            return kind
        _KINDS[key] = kind
    if _KINDS[key] == "even":
        raise OptionError(_refusal(question, asked))
    return _KINDS[key]


def _refusal(question: Question, asked: Contrast) -> str:
    reads = "gives" if question.by.class_specific else "reads no target, and gives"
    both = f"for {asked} as for {asked.turned()}"
    signed = ", ".join(name for name, method in METHODS.items() if method.signed)
    return message(
        f"method {question.method!r} {reads} the same scores {both}",
        then=[f"a method whose scores have signs: {signed}"],
    )


def _tried(session: Session, one: Part, target: Contrast, question: Question) -> Kind:
    """What the scores of a sample's target and of its opposite are to each other."""
    plain = replace(question, keep=frozenset(), hooks=dict[fx.Node, Any](), ledger=None)
    both = [target, target.turned()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the question itself gives the same ones
        try:
            needs = needs_of(session, plain, both)
            rows = answers({0: needs}, one, both, lambda _: lambda: None)
        except RelpropError:
            return ""  # the question itself says why
    there, turned = (
        torch.cat([s.scores.flatten() for s in row[0].streams.values()]) for row in rows
    )
    largest = float(there.abs().max())
    most = largest * max(1e-9, 16 * torch.finfo(there.dtype).eps)
    if largest == 0:
        return ""
    if float((there - turned).abs().max()) <= most:
        return "even"
    return "signed" if float((there + turned).abs().max()) <= most else "one-sided"


def _contrast(target: object) -> int | None:
    """The place of the first contrast, of targets for each sample; 0 of one for all."""
    each = target if isinstance(target, list) else [target]
    return next((i for i, t in enumerate(each) if isinstance(t, Contrast)), None)
