"""What was explained, by name, how likely the model finds it, and how the same is asked again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from relprop.errors import RelpropError
from relprop.explanation import Explanation
from relprop.targets import span
from relprop.views.shown import target_of

SPAN = re.compile(r"span\((\d+), (\d+)\)")  # a predicted span, by its name


def class_of(explanation: Explanation) -> str:
    """What was explained of the first sample, by name: a class's label, or its number."""
    name, target = target_of(explanation, 0), explanation.target[0]
    if explanation.labels is not None and explanation.labels[0] is not None:
        return name if "'" in name else repr(name)
    kinds: dict[type, str] = {int: "class ", tuple: "output element "}
    return f"{kinds.get(type(target), '')}{name}"


def chance_named(explanation: Explanation) -> str:
    """What is measured of the explained class, and, where the model does not say so, by what."""
    by = "softmax" if explanation.predictions is not None else "sigmoid"
    known = "" if explanation.probability is not None else f" (by a {by})"
    return f"probability of {class_of(explanation)}{known}"


def chances_of(
    explanation: Explanation, *, exclusive: bool | None = None
) -> Callable[[Tensor], Tensor] | None:
    """How likely every class is, or every token where one was explained: from logits (runs,
    classes) or (runs, positions, tokens) to (runs, classes or tokens). A softmax where they are
    ``exclusive`` (``None``: as the explanation has it), a sigmoid where they are true side by side;
    ``None`` for what is neither."""
    target, known = explanation.target[0], explanation.probability
    exclusive = explanation.predictions is not None if exclusive is None else exclusive
    token = isinstance(target, tuple) and explanation.predictions is not None
    if not token and type(target) is not int:
        return None
    place = target[:-1] if isinstance(target, tuple) else ()
    # an output that ends in a softmax or a sigmoid is a probability as it is
    as_it_is = known is not None and abs(float(known[0] - explanation.output[0])) < 1e-7

    def chances(logits: Tensor) -> Tensor:
        if logits.dim() != 2 + len(place):
            raise RelpropError("the model's output has no logits (batch, classes)")
        row = logits[(slice(None), *place)].double()
        if as_it_is:
            return row
        return row.softmax(-1) if exclusive and row.shape[-1] > 1 else row.sigmoid()

    return chances


def chance_of(
    explanation: Explanation, *, exclusive: bool | None = None
) -> Callable[[Tensor], Tensor] | None:
    """How likely the explained one is, from logits to (runs,); arguments as of ``chances_of``."""
    every, target = chances_of(explanation, exclusive=exclusive), explanation.target[0]
    own = target[-1] if isinstance(target, tuple) else target
    return None if every is None else lambda logits: every(logits)[:, own]


def same_target(explanation: Explanation, given: Any) -> Any:
    """What explains the same in another run: the class or place that was explained, also where it
    was the predicted one; else the target that was ``given``."""
    target = explanation.target[0]
    if place := SPAN.fullmatch(str(target)):
        return span(int(place[1]), int(place[2]))
    return target if isinstance(target, int | tuple) else given
