"""Whether a method tells a contrast, or a function, from its opposite: found by trying, once per
method and function."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace
from types import FunctionType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import fx

from relprop.errors import OptionError, RelpropError
from relprop.explanation import Explanation
from relprop.runner.answers import answers
from relprop.runner.method import METHODS
from relprop.runner.needing import needs_of
from relprop.runner.question import Question
from relprop.runner.run import Part
from relprop.runner.session import Session
from relprop.targets.answers import Contrast
from relprop.targets.resolve import is_callable

#: Of the scores of y_t and those of −y_t: the same, turned around, or neither.
Kind = Literal["even", "signed", "one-sided", ""]
_KINDS: dict[Hashable, Kind] = {}
_OF_FUNCTIONS: WeakKeyDictionary[Any, dict[Hashable, Kind]] = WeakKeyDictionary()
SIGN_LABELS: dict[Kind, str] = {
    "even": "its sign does not matter",
    "one-sided": "what speaks against it is not shown",
}


def label_signs(kind: Kind, explanation: Explanation | None, target: object) -> Explanation | None:
    """The explanation of a contrast or a function, its labels with what its scores leave out."""
    if explanation is None or kind not in SIGN_LABELS or _two_sided(target) is None:
        return explanation
    known = explanation.labels or (None,) * len(explanation.target)
    both = zip(known, explanation.target, strict=True)
    label = SIGN_LABELS[kind]
    if explanation.facts.get("part") == "negative":
        label = label.replace("against", "for")
    labels = tuple(f"{name or index}; {label}" for name, index in both)
    return replace(explanation, labels=labels)


def contrast_kind(
    session: Session, whole: Part, first: int, target: object, question: Question
) -> Kind:
    """What the method makes of a target's first contrast, or of a function. Raises ``OptionError``
    where the scores of a contrast's opposite are the same.

    ``whole``: all samples of the call, of which ``target`` is for those from ``first`` on.
    """
    at = _two_sided(target)
    if at is None:
        return ""
    entry: Any = target[at] if isinstance(target, list) else target
    options = tuple(sorted((k, repr(v)) for k, v in question.settings.items()))
    key, kinds = (question.by, options, question.rule_set), _kinds_for(entry)
    if key not in kinds:
        kind = _tried(session, whole.select(first + at, first + at + 1), entry, question)
        if not kind:
            return kind
        kinds[key] = kind
    if kinds[key] == "even" and isinstance(entry, Contrast):
        reads = "gives" if question.by.class_specific else "reads no target, and gives"
        both = f"for {entry} as for {entry.turned()}"
        signed = ", ".join(name for name, method in METHODS.items() if method.signed)
        fact = f"method {question.method!r} {reads} the same scores {both}"
        raise OptionError(fact, then=[f"a method whose scores have signs: {signed}"])
    return kinds[key]


def _kinds_for(entry: object) -> dict[Hashable, Kind]:
    """What is known of methods: for all contrasts, and for a function as long as it is there, or
    for its code where that is all of it (a lambda in a loop is a new function each time)."""
    if isinstance(entry, Contrast):
        return _KINDS
    if isinstance(entry, FunctionType) and not (entry.__closure__ or entry.__defaults__):
        entry = entry.__code__
    try:
        return _OF_FUNCTIONS.setdefault(entry, {})
    except TypeError:  # which cannot be remembered
        return {}


def _tried(session: Session, one: Part, target: Any, question: Question) -> Kind:
    """What the scores of a sample's target and of its opposite are to each other."""
    plain = replace(question, keep=frozenset(), hooks=dict[fx.Node, Any](), ledger=None)
    turned = target.turned() if isinstance(target, Contrast) else lambda output: -target(output)
    both = [target, turned]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the question itself gives the same ones
        try:
            needs = needs_of(session, plain, both)
            rows = answers({0: needs}, one, both)
        except RelpropError:
            return ""  # the question itself says why
    there, other = (
        torch.cat([s.scores.flatten() for s in row[0].streams.values()]) for row in rows
    )
    largest = float(there.abs().max())
    most = largest * max(1e-9, 16 * torch.finfo(there.dtype).eps)
    if largest == 0:
        return ""
    if float((there - other).abs().max()) <= most:
        return "even"
    return "signed" if float((there + other).abs().max()) <= most else "one-sided"


def _two_sided(target: object) -> int | None:
    """The place of the first contrast, of targets for each sample; 0 of one for all, or of a
    function."""
    if is_callable(target):
        return 0
    each = target if isinstance(target, list) else [target]
    return next((i for i, t in enumerate(each) if isinstance(t, Contrast)), None)
