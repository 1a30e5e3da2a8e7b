"""``method="recommended"``: what docs/which-method.md recommends for the kind of question.

The kind is read off what is given, before any model is opened: pictures, texts with a class,
an answer of a language model, speech. What is none of them takes the default method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from relprop.adapters.processing import kind_of
from relprop.runner.method import RECOMMENDED
from relprop.runner.question import Question

DEFAULT = "transformer_attribution"
#: By kind of question the method and its options; the tables of docs/which-method.md decide.
BY_KIND: dict[str, tuple[str, dict[str, Any]]] = {
    "pictures": ("lrp_gamma", {}),
    "texts": ("attcat", {}),
    "answers": (DEFAULT, {}),
    "speech": (DEFAULT, {}),
    "": (DEFAULT, {}),
}


def chosen(
    question: Question, model: object, inputs: object, targets: Sequence[object]
) -> Question:
    """The question itself, or by the method that is recommended for what is asked."""
    if question.method != RECOMMENDED:
        return question
    method, options = BY_KIND[kind_of_call(model, inputs, targets)]
    return replace(question, method=method, options=options | dict(question.options))


def kind_of_call(model: object, inputs: object, targets: Sequence[object]) -> str:
    """``"pictures"``, ``"texts"`` (a class of one), ``"answers"`` (tokens of a language model,
    which may read pictures, too), ``"speech"``, or ``""``."""
    given = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
    if isinstance(inputs, (list, tuple)) and any(isinstance(x, Tensor) for x in inputs):
        given = list(inputs)
    kinds = {_kind(thing) for thing in given} - {""}
    if "sound" in kinds:
        return "speech"
    if kinds == {"pictures"}:
        return "pictures"
    if "text" not in kinds:
        return ""
    generates = getattr(model, "can_generate", None)
    classes = all(_is_class(target) for target in targets)
    answers = "pictures" in kinds or not classes or bool(callable(generates) and generates())
    return "answers" if answers else "texts"


def _kind(thing: object) -> str:
    if isinstance(thing, Tensor):
        if thing.is_floating_point():
            return {3: "sound", 4: "pictures"}.get(thing.dim(), "")
        return "text" if thing.dim() == 2 else ""
    return {"a picture": "pictures", "text": "text", "sound": "sound"}.get(kind_of(thing), "")


def _is_class(target: object) -> bool:
    """Whether a target is a class, or classes of samples."""
    if isinstance(target, list):
        return all(_is_class(one) for one in target)
    if isinstance(target, Tensor):
        return not target.is_floating_point()
    return target is None or isinstance(target, (int, str))
