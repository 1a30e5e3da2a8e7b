"""``card``: one call from a model and its input to a card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import nn

from relprop.api.explain import explain
from relprop.api.generation import explain_generation
from relprop.cards.answer import AnswerCard
from relprop.cards.base import Card
from relprop.cards.columns import Columns, tables_of
from relprop.cards.request import Request
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.explanation import Generation
from relprop.methods.options import CallOptions
from relprop.opening import base_model
from relprop.opening.opening import opened
from relprop.progress import showing
from relprop.rules import RuleSet
from relprop.runner.question import Question, move_processor_options
from relprop.tracer.binding import bind
from relprop.tracer.surroundings import plain_numbers
from relprop.views.regions import is_recording


@guarded
def card(
    model: nn.Module | str | Any,
    inputs: Any,
    target: Any = None,
    *,
    processor: Any = None,
    picture: Any = None,
    columns: Columns = None,
    method: str = "transformer_attribution",
    rules: RuleSet | str | None = None,
    max_new_tokens: int | None = None,
    checks: bool = True,
    made: str | None = None,
    precision: str | torch.dtype | None = None,
    progress: bool | None = None,
    trust_remote_code: bool = False,
    strict: bool = False,
    **method_options: Unpack[CallOptions],
) -> Card:
    """One page about one input: what a picture's class or a text's answer rests on, and how far to
    trust it. ``card.to_html(path)``, ``card.to_png(path)``, or a notebook cell's last line.

    A picture: its map, outlined where it is strongest and told in words, and what the model says
    when that part is covered. A text: the answer (what a language model generates, or the class)
    with its probabilities and runners-up, and the sentences and words that it rests on. A sound,
    or a series of numbers over time: the recording under its heat, and when the map lies. A table:
    the columns of one row, each with its value and its share.

    Args:
        model, inputs, target, processor, method, rules, precision, trust_remote_code: as for
            ``explain``; one sample. ``target=None`` of a model that generates: its whole answer.
        picture: what to draw the map on, as ``relprop.plot.heatmap`` takes it; ``None``: the
            picture that was given, or the model's own numbers.
        columns: what the columns of a table are called, for models of numbers or categories; of
            several such inputs by name: ``{"x_categ": ["sex", "town"], "x_cont": ["age"]}``.
        max_new_tokens: how many tokens are generated at most (20).
        checks: also explain the model with its weights shuffled, and cover parts of the input,
            about 75 forward passes; ``False``: neither.
        made: the call to write at the foot of the card, in place of this one.

    Raises ``InputError`` for several samples, ``OptionError`` for inputs that are none of
    these, and what ``explain`` raises.

    >>> import relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> from relprop.demo.scenes import make_scenes
    >>> relprop.card(digit_scene_model(), make_scenes(1, seed=8).images, 2, checks=False).said
    'Mostly middle right and centre: a fifth of the picture holds 88% of the map.'
    """
    own = [Question(method, method_options, rules)]
    inputs, (question,) = move_processor_options(inputs, own)
    module, prepared = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
    if (count := bind(prepared.inputs).batch) != 1:
        fact = f"a card is of one sample, and {count} are given"
        raise InputError(fact, then=["relprop.card(model, inputs[:1])", "a card for each of them"])
    how: dict[str, Any] = {"method": method, "rules": rules, "precision": precision}
    how |= question.options
    named = "".join(f", {k}={v!r}" for k, v in method_options.items() if k != "processor")
    named += "" if columns is None else f", columns={columns!r}"
    call = made or f"relprop.card(model, inputs, {target!r}, method={method!r}{named})"
    request = Request(module, prepared, target, dict(how), call, checks, columns)
    with showing(progress), plain_numbers():
        generates = getattr(base_model(module), "can_generate", None)
        if target is None and callable(generates) and generates():
            if columns is not None:
                fact = "columns= names columns, and here the model's whole answer is explained"
                raise OptionError(fact, then=["leave columns= out", "give a target="])
            how |= {"max_new_tokens": max_new_tokens}
            return request.answer_card(explain_generation(module, prepared, **how))
        found = explain(module, prepared, target, **how)
        stream = next(iter(found.streams.values()))
        if len(found.streams) == 1 and len(stream.grid or ()) == 2 and not is_recording(stream):
            tables_of(found, columns)  # refuses names: a picture has no columns
            return request.picture_card(found, picture)
        return request.class_card(found)


def answered(
    model: nn.Module,
    inputs: Any,
    found: Generation,
    processor: Any,
    how: Mapping[str, Any],
    call: str,
) -> AnswerCard:
    """The card of a generation that a command made. ``how``: the options it was explained with;
    ``call``: the command."""
    module, prepared = opened(model, inputs, processor)
    request = Request(module, prepared, None, {"rules": None, **how}, call, True)
    with plain_numbers():
        return request.answer_card(found)
