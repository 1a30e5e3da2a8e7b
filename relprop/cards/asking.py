"""What a card asks of a model beside the explanation: runners-up, why not these, the same map of
shuffled weights, and what the model says when words or parts of a picture are covered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.adapters import Prepared, adapter_for
from relprop.adapters.processing import tokenizer_of
from relprop.adapters.words import pieces_of
from relprop.api.continuation import Continuation, continued
from relprop.api.explain import explain
from relprop.api.generation import explain_generation
from relprop.api.generation import steps_of as explained_steps
from relprop.cards.answer import Answer, AnswerCard, Said
from relprop.cards.answering import (
    Words,
    is_signed,
    of_generation,
    parts_of,
    probability_of,
    scores_of,
    shares,
    summed,
    words_of,
)
from relprop.cards.picture import CELLS, PictureCard, covers, in_words, strongest_part
from relprop.cards.trials import Checks, chance_of, control_of, deleted, made_by
from relprop.errors import InputError, OptionError, RelpropError, first_line
from relprop.evaluation.base import answering, logits_of
from relprop.explanation import Explanation, Generation
from relprop.explanation.whole import whole
from relprop.opening import base_model
from relprop.progress import doing
from relprop.runner.conditions import Conditions
from relprop.runner.question import Question
from relprop.targets import contrast
from relprop.targets.answers import Contrast
from relprop.targets.index import Output
from relprop.tracer.binding import Inputs, bind
from relprop.views.audit import heading
from relprop.views.escape import visible
from relprop.views.generations import steps_of
from relprop.views.overlay import laid
from relprop.views.shown import target_of

#: How many runners-up are named, the signed method that says why not the first of them, and how
#: many covered inputs share a forward pass.
RUNNERS_UP, SIGNED, BATCH = 3, "attnlrp", 8


@dataclass(frozen=True)
class Asked:
    """A model, one sample of its inputs, and how it is explained. ``made``: the call to write at
    the card's foot."""

    model: nn.Module
    prepared: Prepared
    how: Mapping[str, Any]
    made: str
    checks: bool

    def control(
        self, own: Explanation, again: Callable[[nn.Module], Explanation]
    ) -> dict[str, Any]:
        """The fields of ``Checks`` that say how alike the map of shuffled weights is."""
        weights = list(self.model.parameters())
        if not all(type(p) is nn.Parameter and p.is_floating_point() for p in weights):
            return {"why_no_control": "its weights are no plain floating-point numbers"}
        if any(p.is_meta for p in weights):
            return {"why_no_control": "its weights are not all in memory"}
        try:
            with doing("explaining the model with shuffled weights"):
                return {"control": control_of(own, again, self.model)}
        except RelpropError as error:
            return {"why_no_control": first_line(error)}

    def again(self, target: Any) -> Callable[[nn.Module], Explanation]:
        """What explains another model for the same input and target."""
        return lambda other: explain(other, self.prepared, target, **self.how)

    def against(self, run: Continuation, pairs: Sequence[tuple[int, int]]) -> list[Explanation]:
        """Why each token rather than its rival, by the signed method."""
        count = run.ids.shape[1]
        targets = [
            Contrast(Output(None, (k - count, token)), Output(None, (k - count, rival)))
            for k, (token, rival) in enumerate(pairs)
        ]
        how = Conditions(precision=self.how["precision"], processor=self.prepared.processor)
        question = Question(SIGNED, {}, None)
        return list(explained_steps(self.model, self.prepared, run, targets, question, how))


class Covered:
    """A model's logits when words of its text inputs are covered: attention masks of 0."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model, self.bound = model, bind(inputs)
        self.takes = inspect.signature(base_model(model).forward).parameters

    def __call__(self, words: Words, covered: Tensor) -> Tensor:
        """The logits (runs, ...) when the words that ``covered`` (runs, words), bool, says are."""
        found = []
        with answering(self.model):
            for some in covered.split(BATCH):
                args, kwargs = self._call(self.bound, len(some))
                for name in dict.fromkeys(name for name, _, _ in words):
                    ids = kwargs[name]
                    mask = kwargs.get(mask_of(name), torch.ones_like(ids)).clone()
                    for run, row in enumerate(some.tolist()):
                        for (own, _, tokens), gone in zip(words, row, strict=True):
                            if gone and own == name:
                                mask[run, tokens] = 0
                    kwargs[mask_of(name)] = mask
                found.append(self._logits(args, kwargs))
        return torch.cat(found)

    def plain(self) -> Tensor:
        """The logits of the input as it is, (1, ...)."""
        with answering(self.model):
            return self._logits(*self._call(self.bound, 1))

    def refusal(self, words: Words) -> str:
        """Why no word can be covered; empty if some can."""
        named = {name for name, _, _ in words}
        if not words:
            return "it has no words"
        if not named <= set(self.bound.names):
            return "the words are no input by name"
        lacking = [mask_of(n) for n in named if mask_of(n) not in self.takes]
        return f"the model takes no {lacking[0]}" if lacking else ""

    def _call(self, bound: Inputs, runs: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = bound.rebuild(
            tuple(
                t.expand(runs, *t.shape[1:]) if b else t
                for t, b in zip(bound.tensors, bound.batched, strict=True)
            )
        )
        return args, dict(kwargs)

    def _logits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        found = self.model(*args, **kwargs)
        logits: Tensor = getattr(found, "logits", found)
        return logits.detach().double().cpu()


def mask_of(name: str) -> str:
    """The attention mask of an input of ids."""
    return f"{name.removesuffix('input_ids')}attention_mask"


def generated(asked: Asked, **how: Any) -> Generation:
    """What the model says after the prompt, explained. Raises ``InputError`` where it says
    nothing."""
    found = explain_generation(asked.model, asked.prepared, **how, **asked.how)
    if not steps_of(found, 0):
        raise InputError("the model's answer is empty: it ended at once", then=["max_new_tokens="])
    return found


def answer_card(asked: Asked, found: Generation) -> AnswerCard:
    """What a model generated after one prompt, with all that a card holds."""
    model, given = asked.model, asked.prepared
    count = len(steps_of(found, 0))
    run = continued(
        model, given.inputs, max_new_tokens=None, output_ids=found.ids, options=None, seed=0
    )
    ids, last = found.ids[0, :count], slice(-found.ids.shape[1], None)
    covered = Covered(model, run.inputs)
    likely = covered.plain()[0, last][:count].softmax(-1).topk(RUNNERS_UP + 1)
    tokenizer, others, pairs = tokenizer_of(given.processor), [], []
    for token, ps, tokens in zip(ids.tolist(), *(t.tolist() for t in likely), strict=True):
        beside = [(t, p) for t, p in zip(tokens, ps, strict=True) if t != token][:RUNNERS_UP]
        others.append([(_named(t, tokenizer), p) for t, p in beside])
        pairs.append((token, beside[0][0]))
    against, why_not = _tried(lambda: asked.against(run, pairs))
    answer, every = of_generation(found, 0, others, against), whole(found)
    checks = Checks(concerns=tuple(every.concerns(0)))
    if asked.checks:

        def again(other: nn.Module) -> Explanation:
            return whole(explain_generation(other, given, output_ids=found.ids, **asked.how))

        def says(logits: Tensor) -> Tensor:
            chances = logits[:, last][:, :count].log_softmax(-1)
            return chances.gather(-1, ids.expand(len(logits), -1)[..., None]).mean((1, 2)).exp()

        what = "probability of the answer's tokens (their geometric mean)"
        checks = replace(checks, **asked.control(every, again))
        checks = replace(checks, **_deletion(covered, words_of(every, 0), answer.whole, says, what))
    title, made = f"Why “{visible(answer.text, 160)}”?", made_by(model, found.steps[0], asked.made)
    signed = is_signed(found.steps[0])
    return AnswerCard(title, answer.sentence, checks, made, (answer,), signed, SIGNED, why_not)


def class_card(asked: Asked, found: Explanation) -> AnswerCard:
    """What a text's class rests on. Raises ``OptionError`` for what is no text."""
    if not any(s.tokens is not None or s.words is not None for s in found.streams.values()):
        fact = "card() is for pictures and texts, and this explanation is of neither"
        raise OptionError(fact, then=["explanation.plot()", "relprop.report(explanation, path)"])
    words, chance, target = words_of(found, 0), chance_of(found), found.target[0]
    covered, row = Covered(asked.model, asked.prepared.inputs), scores_of(found, 0, words)
    others, against, why_not = _other_classes(asked, found, covered)
    rival_row = shares(scores_of(against[0], 0, words)) if against else None
    name = _class(found).strip("'")
    said = Said(name, shares(row), probability_of(found, 0), tuple(others), rival_row)
    if chance is not None:
        said = replace(said, probability=float(chance(covered.plain())[0]))
    answer = Answer(
        said.text,
        tuple(w for _, w, _ in words),
        parts_of(found, 0, words),
        (said,),
        (),
        summed([row]),
    )
    unasked = "the target is no class" if asked.checks else "checks=False"
    checks = Checks(None, None, tuple(found.concerns(0)), "checks=False", unasked)
    if asked.checks:
        checks = replace(checks, **asked.control(found, asked.again(target)))
        if chance is not None:
            checks = replace(
                checks, **_deletion(covered, words, answer.whole, chance, _what(found))
            )
    title, made = f"Why {_sure(found, said.probability)}?", made_by(asked.model, found, asked.made)
    signed = is_signed(found)
    return AnswerCard(title, answer.sentence, checks, made, (answer,), signed, SIGNED, why_not)


def _other_classes(
    asked: Asked, found: Explanation, covered: Covered
) -> tuple[list[tuple[str, float]], list[Explanation], str]:
    """The likeliest other classes with their probabilities, and why not the first of them."""
    if chance_of(found) is None:
        return [], [], "the target is no class"
    target, model = found.target[0], base_model(asked.model)
    logits = covered.plain()[0]
    likely = logits.softmax(-1) if found.predictions is not None else logits.sigmoid()
    order = [int(k) for k in likely.argsort(descending=True) if int(k) != target][:RUNNERS_UP]
    labels = adapter_for(model).labels(model)
    named = [labels[k] if k < len(labels) else f"class {k}" for k in order]
    others = list(zip(named, likely[order].tolist(), strict=True))
    if not order:
        return others, [], "there is no other class"
    rival, how = contrast(target, order[0]), {"precision": asked.how["precision"]}
    return (
        others,
        *_tried(lambda: [explain(asked.model, asked.prepared, rival, method=SIGNED, **how)]),
    )


def picture_card(asked: Asked, found: Explanation, picture: Any) -> PictureCard:
    """Where a picture's map lies, and what covering that part does."""
    stream, bound = next(iter(found.streams.values())), bind(asked.prepared.inputs)
    drawn, under = laid(found, 0, picture)
    image, heat = bound.tensors[bound.names.index(stream.name)], drawn.double().cpu().numpy()
    chance, cover, why_no = chance_of(found), None, ""
    if not asked.checks:
        why_no = "checks=False"
    elif chance is None:
        why_no = "the target is no class"
    elif image.dim() != 4 or tuple(image.shape[-2:]) != stream.image:
        why_no = f"the model's input {list(image.shape)} is no picture (batch, channels, H, W)"
    checks = Checks(None, None, tuple(found.concerns(0)), why_no, why_no)
    if asked.checks:
        checks = replace(checks, **asked.control(found, asked.again(found.target[0])))
    if chance is not None and not why_no:

        def answers(images: Tensor) -> Tensor:
            assert chance is not None
            some = images.split(BATCH)
            return torch.cat([chance(_with(asked.model, bound, stream.name, x)) for x in some])

        rows, columns = (min(n, CELLS) for n in stream.grid or (CELLS, CELLS))
        with doing("covering parts of the picture"), answering(asked.model):
            what, own = _what(found), found.heatmap()[0].detach().cpu()
            cover, deletion = covers(image[0].detach(), own, answers, what, (rows, columns))
        checks = replace(checks, deletion=deletion)
    region = strongest_part(heat, np.ones(heat.shape, bool))
    said, made = in_words(heat, region), made_by(asked.model, found, asked.made)
    before = cover.before if cover else probability_of(found, 0)
    shown, title = _shown(image, under), f"Why {_sure(found, before)}?"
    return PictureCard(title, said, checks, made, shown, heat, region, cover, why_no)


def _with(model: nn.Module, bound: Inputs, name: str, images: Tensor) -> Tensor:
    """The logits (runs, classes) with other images in place of one input."""
    args, kwargs = bound.rebuild(
        tuple(
            images if own == name else t.expand(len(images), *t.shape[1:]) if b else t
            for own, t, b in zip(bound.names, bound.tensors, bound.batched, strict=True)
        )
    )
    return logits_of(model, *args, **kwargs)


def _shown(image: Tensor, under: np.ndarray | None) -> np.ndarray:
    """The picture as bytes (H, W, 3): the one that was given, or the model's own numbers, stretched
    from their least to their largest where they are not in [0, 1]."""
    if under is None:
        own = image[0].detach().float().cpu()
        low, high = (float(own.min()), float(own.max()))
        own = own if low >= 0 and high <= 1 else (own - low) / ((high - low) or 1.0)
        under = (own if len(own) in (1, 3) else own.mean(0, keepdim=True)).movedim(0, -1).numpy()
    wide = under[..., None] if under.ndim == 2 else under
    wide = np.repeat(wide, 3, -1) if wide.shape[-1] == 1 else wide[..., :3]
    shown: np.ndarray = (255 * wide).round().astype(np.uint8)
    return shown


def _class(found: Explanation) -> str:
    """The explained class by name."""
    label = target_of(found, 0)
    known = found.labels is not None and found.labels[0] is not None
    return repr(label) if known else f"class {label}"


def _what(found: Explanation) -> str:
    """What is measured of the explained class; the model does not always say how it is made."""
    made = "" if found.probability is not None else " (softmax)"
    return f"probability of {_class(found)}{made}"


def _sure(found: Explanation, probability: float | None) -> str:
    """The explained class with its probability, or another target with its value."""
    return heading(found, 0) if probability is None else f"{_class(found)} ({probability:.0%})"


def _tried(made: Callable[[], list[Explanation]]) -> tuple[list[Explanation], str]:
    """What is made, or nothing and why."""
    try:
        with doing("explaining why not the runner-up"):
            return made(), ""
    except RelpropError as error:
        return [], first_line(error)


def _named(token: int, tokenizer: Any) -> str:
    return str(token) if tokenizer is None else pieces_of([token], tokenizer)[0]


def _deletion(
    covered: Covered,
    words: Words,
    scores: Sequence[float],
    says: Callable[[Tensor], Tensor],
    what: str,
) -> dict[str, Any]:
    """The fields of ``Checks`` that say what covering words does."""
    if why := covered.refusal(words):
        return {"why_no_deletion": why}
    with doing("covering words"):
        numbers = torch.tensor(scores[: len(words)])
        return {"deletion": deleted(numbers, lambda m: says(covered(words, m)), what, "words")}
