"""A report's first box: one sample's explanation in plain words, for a reader who knows neither the
method nor the model."""

from __future__ import annotations

from typing import Any

from relprop.errors import OptionError
from relprop.explanation import Explanation
from relprop.methods import METHODS, Method
from relprop.views.audit import concerns, heading, instead, sentence

NEITHER = (
    "Not to conclude: that the answer would change without the strongest parts (change the input "
    "and ask the model again); that the answer is right; that numbers of two methods can be "
    "compared."
)


def in_words(explanation: Explanation, sample: int) -> dict[str, Any]:
    """What was asked and answered, what speaks against resting on it, and what the method is."""
    by = METHODS.get(explanation.method)
    side = "against" if explanation.facts.get("part") == "negative" else "for"
    question = f"What in the input speaks {side} {heading(explanation, sample)}?"
    if by is not None and not by.class_specific:
        question = f"Where does the model look? Its answer here: {heading(explanation, sample)}."
    return {
        "asked": question,
        "instead": instead(explanation, sample),
        "answers": [_answer(explanation[name], sample) for name in explanation.streams],
        "concerns": concerns(explanation, sample),
        "method": _about(explanation.method, by),
        "distrust": [*_distrust(by), NEITHER],
    }


def _answer(one: Explanation, sample: int) -> str:
    try:
        text = sentence(one, sample, k=5)
        return text[:1].upper() + text[1:]
    except OptionError:
        return "This input has no parts with names; its scores are below."


def _about(name: str, by: Method | None) -> str:
    if by is None:
        return f"The method is {name!r}."
    source = f" ({by.source})" if by.source else ""
    return f"The method, {name}{source}, shows {by.plain or by.description}."


def _distrust(by: Method | None) -> list[str]:
    """When not to trust such a method, by what it says of itself."""
    if by is None:
        return []
    found = []
    if not by.class_specific:
        found.append("It shows the same for every class: it cannot say why this answer was given.")
    if not by.signed:
        found.append("It has no negative scores: what speaks against the answer is not told apart.")
    if "gradient" in by.needs and "relevance" not in by.needs:
        found.append("It rests on gradients, which vanish where the answer is all but certain.")
    if by.level == "attention":
        found.append("It sees what passes attention; what skips all attention has no score.")
    return found
