"""``method="recommended"``: what docs/which-method.md recommends for the kind of question.

The kind is read off what is given, before any model is opened: pictures alone, texts whose class
is asked for, ids of a model that generates, features of sound. What is none of them takes the
default method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters.processing import kind_of
from relprop.runner.method import RECOMMENDED
from relprop.runner.question import Question
from relprop.targets.answers import Contrast

DEFAULT = "transformer_attribution"
#: By kind of question the method and its options; the tables of docs/which-method.md decide.
BY_KIND: dict[str, tuple[str, dict[str, Any]]] = {
    "pictures": ("lrp_gamma", {}),
    "texts": ("cat", {}),
    "answers": (DEFAULT, {}),
    "speech": (DEFAULT, {"gradient": "balanced"}),
    "": (DEFAULT, {}),
}


#: Of what processors and tokenizers call things, and of what ``explain`` takes by name.
NAMED = {
    **dict.fromkeys(("pixel_values", "images"), "pictures"),
    **dict.fromkeys(("input_ids", "decoder_input_ids", "text"), "text"),
    **dict.fromkeys(("input_features", "audio"), "speech"),
}
KINDS = {"a picture": "pictures", "text": "text", "sound": "speech"}


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
    if not isinstance(model, nn.Module):
        model = getattr(model, "model", model)  # of a pipeline
    kinds = _kinds(inputs)
    if kinds & {"speech", "pictures"} and len(kinds) == 1:
        return kinds.pop()
    generates = getattr(model, "can_generate", None)
    if "text" in kinds and callable(generates) and generates():
        return "speech" if "speech" in kinds else "answers"
    return "texts" if kinds == {"text"} and all(map(_is_class, targets)) else ""


def _kinds(inputs: object) -> set[str]:
    """What kinds of things are given: by name where they have names, else by what they are."""
    inputs = getattr(inputs, "inputs", inputs)  # that were opened before
    if isinstance(inputs, Mapping):
        return {kind for name in inputs if (kind := NAMED.get(name, ""))}
    given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    tensors = [thing for thing in given if isinstance(thing, Tensor)]
    if not tensors:
        return {KINDS[kind]} if (kind := kind_of(inputs)) else set()
    first = tensors[0]
    if first.is_floating_point():
        return {"pictures"} if first.dim() == 4 and first.shape[1] in (1, 3) else set()
    return {"text"} if first.dim() == 2 and first.dtype == torch.long else set()


def _is_class(target: object) -> bool:
    """Whether a target is a class, classes of samples, or one class rather than another."""
    if isinstance(target, list):
        return all(_is_class(one) for one in target)
    if isinstance(target, Contrast):
        return True
    if isinstance(target, Tensor):
        return not target.is_floating_point()
    return target is None or isinstance(target, (int, str))
