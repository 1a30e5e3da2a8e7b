"""Whether a method tells a target from its opposite, −y_t: found by trying, once per method."""

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
from relprop.targets import Contrast, is_callable

#: Of the scores of y_t and those of −y_t: the same, turned around, or neither.
Kind = Literal["even", "signed", "one-sided", ""]
_KINDS: dict[Hashable, Kind] = {}


def told_signs(kind: Kind, explanation: Explanation | None, target: object) -> Explanation | None:
    """The explanation, its labels with what its scores leave out."""
    asked = _sided(target)
    if explanation is None or asked is None:
        return explanation
    if kind == "one-sided" and isinstance(asked, Contrast):
        more = "what speaks against it is not shown"
    elif kind == "even" and is_callable(asked):
        more = "the scores of its opposite are the same"
    else:
        return explanation
    known = explanation.labels or (None,) * len(explanation.target)
    both = zip(known, explanation.target, strict=True)
    return replace(
        explanation, labels=tuple(f"{name or written}; {more}" for name, written in both)
    )


def sided(session: Session, part: Part, targets: Sequence[object], question: Question) -> Kind:
    """What the method makes of contrasts and callables among ``targets``, if there are any. Raises
    ``OptionError`` for a contrast, where the scores of the opposite are the same."""
    asked = next((t for t in map(_sided, targets) if t is not None), None)
    if asked is None:
        return ""
    rules = question.rule_set
    options = tuple(sorted((k, repr(v)) for k, v in question.settings.items()))
    key = (question.method, options, getattr(rules, "name", rules))
    kind = _KINDS.get(key) or _tried(
        session, part.select(part.first, part.first + 1), asked, question
    )
    if kind:
        _KINDS[key] = kind
    contrast = next((t for t in map(_contrast, targets) if t is not None), None)
    if kind == "even" and contrast is not None:
        reads = "gives" if question.by.class_specific else "reads no target, and gives"
        fact = (
            f"method {question.method!r} {reads} the same scores for {contrast} "
            f"as for {contrast.turned()}"
        )
        signed = ", ".join(name for name, method in METHODS.items() if method.signed)
        raise OptionError(message(fact, then=[f"a method whose scores have signs: {signed}"]))
    return kind


def _tried(session: Session, first: Part, target: object, question: Question) -> Kind:
    """What the scores of the first sample's target and of its opposite are to each other."""
    plain = replace(question, keep=frozenset(), hooks=dict[fx.Node, Any](), ledger=None)
    opposite = target.turned() if isinstance(target, Contrast) else _turned(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the question itself gives the same ones
        try:
            needs = needs_of(session, plain, [target, opposite])
            rows = answers({0: needs}, first, [target, opposite], lambda _: lambda: None)
        except RelpropError:
            return ""  # the question itself says why, or −y_t has no start
    both = [torch.cat([s.scores.flatten() for s in row[0].streams.values()]) for row in rows]
    largest = float(both[0].abs().max())
    most = largest * max(1e-9, 16 * torch.finfo(both[0].dtype).eps)
    if largest == 0:
        return ""
    if float((both[0] - both[1]).abs().max()) <= most:
        return "even"
    return "signed" if float((both[0] + both[1]).abs().max()) <= most else "one-sided"


def _turned(function: Any) -> Any:
    return lambda output: -function(output)


def _sided(target: object) -> object | None:
    """A contrast or a callable, or the first among one target for each sample."""
    found = target[0] if isinstance(target, list) and target else target
    return found if isinstance(found, Contrast) or is_callable(found) else None


def _contrast(target: object) -> Contrast | None:
    """The first contrast, among the targets of the samples too."""
    each = target if isinstance(target, list) else [target]
    return next((t for t in each if isinstance(t, Contrast)), None)
