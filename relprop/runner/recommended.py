"""``method="recommended"``: what docs/which-method.md recommends for the kind of question.

The kind is read off the model's inputs, the model and the target: pictures alone, features of
sound, texts whose class is asked for, texts of a model that generates. What is none of them takes
the default method.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from relprop.errors import OptionError
from relprop.opening import base_model
from relprop.runner.method import RECOMMENDED
from relprop.runner.question import Question
from relprop.targets.answers import Contrast
from relprop.targets.index import Output
from relprop.targets.resolve import is_callable, listed_targets
from relprop.targets.spans import Span
from relprop.targets.start import Target

DEFAULT = "transformer_attribution"
#: By kind of question the method and its options; the tables of docs/which-method.md decide.
BY_KIND: dict[str, tuple[str, dict[str, Any]]] = {
    "pictures": ("lrp_gamma", {}),
    "texts": ("cat", {}),
    "answers": (DEFAULT, {}),
    "speech": (DEFAULT, {"gradient": "balanced"}),
    "": (DEFAULT, {}),
}
#: What inputs are by their names, or by how these end (``decoder_input_ids``).
NAMED = {
    **dict.fromkeys(("pixel_values", "image", "images"), "pictures"),
    **dict.fromkeys(("input_ids", "text"), "text"),
    **dict.fromkeys(("input_features", "input_values", "audio"), "speech"),
}
CHANNELS = (1, 3, 4)


def chosen(
    questions: Sequence[Question], model: nn.Module, inputs: object, targets: Sequence[object]
) -> list[Question]:
    """The questions, with a method for those that ask for the recommended one. Raises
    ``OptionError`` where it is not the same for all targets, or does not know an option."""
    if all(question.method != RECOMMENDED for question in questions):
        return list(questions)
    kinds = {kind_of_call(model, inputs, target) for target in targets}
    methods = {BY_KIND[kind][0] for kind in kinds}
    if len(methods) > 1:
        fact = f"the targets are of different kinds, for which {' and '.join(sorted(methods))}"
        raise OptionError(
            f"method={RECOMMENDED!r}: {fact} are recommended", then=["ask for each kind by itself"]
        )
    method, options = BY_KIND[kinds.pop()]
    return [_by(question, method, options) for question in questions]


def _by(question: Question, method: str, options: Mapping[str, Any]) -> Question:
    if question.method != RECOMMENDED:
        return question
    own = {} if question.options.get("use_gradient") is False else dict(options)
    made = replace(question, method=method, options=own | dict(question.options))
    try:
        made.settings  # noqa: B018  -- refuses what it does not know
    except OptionError as error:
        raise OptionError(f"method={RECOMMENDED!r} is {method!r} here; {error}") from None
    return made


def kind_of_call(model: nn.Module, inputs: object, target: object) -> str:
    """``"pictures"``, ``"speech"``, ``"texts"`` (a class of one), ``"answers"`` (tokens of a model
    that generates, which may read pictures, too), or ``""``."""
    base = base_model(model)
    given = _given(base, inputs)
    names = [f"_{name}" for name, _ in given]
    kinds = {kind for end, kind in NAMED.items() if any(n.endswith(f"_{end}") for n in names)}
    kinds = kinds or set(_by_form(given))
    if len(kinds) == 1 and kinds & {"speech", "pictures"}:
        return kinds.pop()
    generates = getattr(base, "can_generate", None)
    if "text" in kinds and callable(generates) and generates():
        return "speech" if "speech" in kinds else "answers"
    return "texts" if kinds == {"text"} and _is_class(target) else ""


def _given(model: nn.Module, inputs: Any) -> list[tuple[str, Tensor]]:
    """The tensors that are given, by the names that the caller or ``forward`` has for them."""
    if hasattr(inputs, "keys"):
        named = [(str(name), inputs[name]) for name in inputs.keys()]  # noqa: SIM118 (as bind)
    else:
        args = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        names = [*inspect.signature(model.forward).parameters, *("" for _ in args)]
        named = list(zip(names, args, strict=False))
    return [(name, value) for name, value in named if isinstance(value, Tensor)]


def _by_form(given: Sequence[tuple[str, Tensor]]) -> Iterator[str]:
    """What kinds of things are given, by their shapes and types."""
    for _, value in given:
        if value.is_floating_point():
            if value.dim() == 4 and {value.shape[1], value.shape[-1]} & set(CHANNELS):
                yield "pictures"
        elif value.dim() == 2:
            yield "text"


def _is_class(target: object) -> bool:
    """Whether a target is a class, classes of samples, one class rather than another, or a span:
    ``None`` may be any of these."""
    if target is None:
        return True
    return not is_callable(target) and all(map(_of_a_class, listed_targets(target, None)))


def _of_a_class(target: Target) -> bool:
    if isinstance(target, Contrast):
        return _of_a_class(target.speaks_for) and _of_a_class(target.against)
    if isinstance(target, Output):
        return target.index is None or len(target.index) == 1
    return isinstance(target, Span)
