"""What a card asks of a model beside the explanation: runners-up, why not these, the same map of
shuffled weights, and what the model says when words or parts of a picture are covered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relprop.adapters import Prepared, adapter_for
from relprop.adapters.processing import tokenizer_of
from relprop.adapters.texts import decoded
from relprop.adapters.words import pieces_of
from relprop.api.continuation import Continuation, continued
from relprop.api.explain import explain
from relprop.api.generation import explain_generation
from relprop.api.generation import steps_of as explained_steps
from relprop.cards import answer_data, chances, covering, trials
from relprop.cards.answer import Answer, AnswerCard, Said, percent
from relprop.cards.base import picture_bytes
from relprop.cards.columns import Columns, labelled
from relprop.cards.curves import covered_curve, named
from relprop.cards.over_time import maps_with
from relprop.cards.picture import PictureCard, cover_of, in_words, seen_part, strongest_part
from relprop.cards.recording import Recording
from relprop.cards.trials import Checks, Comparison, Deletion, tried
from relprop.errors import InputError, OptionError
from relprop.explanation import Explanation, Generation
from relprop.explanation.whole import whole
from relprop.opening import base_model
from relprop.runner.conditions import Conditions
from relprop.runner.question import Question
from relprop.runs.fingerprints import of_model
from relprop.targets import contrast
from relprop.targets.answers import Contrast
from relprop.targets.index import Output
from relprop.tracer.binding import bind
from relprop.views.audit import heading
from relprop.views.escape import visible
from relprop.views.generations import steps_of
from relprop.views.overlay import heatmap_and_image

#: How many runners-up are named, the signed method that says why not the first of them, and how
#: many parts along a picture's side are covered one after another, at most.
RUNNERS_UP, SIGNED, CELLS = 3, "attnlrp", 16
LARGEST = 896  # pixels of a shown picture's longer side
NO_CLASS = "the target is no class"


@dataclass(frozen=True)
class Request:
    """A model, one sample of its inputs, what is explained and how; the ``call`` to write at the
    card's foot, whether there are ``checks``, and what the ``columns`` of a table are called."""

    model: nn.Module
    prepared: Prepared
    target: Any
    how: Mapping[str, Any]
    call: str
    checks: bool
    columns: Columns = None

    def answer_card(self, found: Generation) -> AnswerCard:
        """What a model generated after one prompt. Raises ``InputError`` where it is nothing."""
        count = len(steps_of(found, 0))
        if not count:
            then = ["max_new_tokens="]
            raise InputError("the model's answer is empty: it ended at once", then=then)
        model, given, every = self.model, self.prepared.inputs, whole(found)
        ids, last = found.ids[0, :count], slice(-found.ids.shape[1], None)
        how: dict[str, Any] = {"max_new_tokens": None, "options": None, "seed": 0}
        run = continued(model, given, output_ids=found.ids, may_repeat=True, **how)
        rows = covering.logits_with(model, run.inputs, None, lambda y: y[:, last].double())
        likely = rows[0, :count].softmax(-1)
        others, pairs = self._runners_up(ids, likely)
        against = tried(lambda: self._rather(run, pairs), "explaining why not")
        rivals = () if isinstance(against, str) else against
        made = answer_data.of_generation(found, 0, others, rivals, named(run.inputs))
        answer = self._as_written(made, ids)

        def again(other: nn.Module) -> Explanation:
            fixed = {k: v for k, v in self.how.items() if k not in ("generate", "seed")}
            fixed |= {"output_ids": found.ids}
            return whole(explain_generation(other, self.prepared, **fixed))

        def says(logits: Tensor) -> Tensor:
            rows = logits[:, last][:, :count].double().log_softmax(-1)
            return rows.gather(-1, ids.expand(len(logits), -1)[..., None]).mean((1, 2)).exp()

        def covered() -> Deletion:
            what = "probability of the answer's tokens (their geometric mean)"
            return covered_curve(self.model, run.inputs, every, answer, says, what)

        title = f"Why “{visible(answer.text, 160)}”?"
        checks = self._checked(every, again, covered)
        return self._answer_card(found.steps[0], title, checks, answer, against)

    def class_card(self, found: Explanation) -> AnswerCard:
        """What the class of a text, a sound or the columns of a table rests on. Raises
        ``OptionError`` for what is none of these."""
        inputs = named(self.prepared.inputs)
        found, tables = labelled(found, inputs, self.columns)
        words, maps = answer_data.words_of(found, 0), maps_with([found], 0, inputs)
        if not words and not any(isinstance(m, Recording) for m in maps):
            kinds = "pictures, texts, sound and tables"
            then = ["explanation.plot()", "relprop.report(explanation, path)"]
            raise OptionError(f"card() is for {kinds}, and this explanation is of none", then=then)
        row = answer_data.shares(answer_data.scores_of(found, 0, words))
        said = Said(chances.class_of(found).strip("'"), row, answer_data.probability_of(found, 0))
        said, why_not = self._beside_others(found, said)
        texts = tuple(word for _, word, _ in words)
        parts = answer_data.parts_of(found, 0, words, tables)
        answer = Answer(said.text, texts, parts, (said,), maps, row)
        chance, what = chances.chance_of(found), chances.chance_named(found)

        def covered() -> Deletion:
            return covered_curve(self.model, self.prepared.inputs, found, answer, chance, what)

        title = f"Why {_sure(found, said.probability)}?"
        checks = self._checked(found, self._again(found), covered, "" if chance else NO_CLASS)
        return self._answer_card(found, title, checks, answer, why_not)

    def _beside_others(self, found: Explanation, said: Said) -> tuple[Said, object]:
        """A class with its probability, the others that are likely, and why not the first of them;
        or why that last is not known."""
        every, chance = chances.chances_of(found), chances.chance_of(found)
        if every is None or chance is None:
            return said, NO_CLASS
        logits = tried(
            partial(covering.logits_with, self.model, self.prepared.inputs), "runners-up"
        )
        if isinstance(logits, str):
            return said, logits
        likely, target = every(logits)[0], found.target[0]
        *place, own = target if isinstance(target, tuple) else (target,)
        best = likely.topk(min(RUNNERS_UP + 1, len(likely))).indices.tolist()
        order = [k for k in best if k != own][:RUNNERS_UP]
        called = self._pieces(order) if place else self._classes(order)
        others = tuple(zip(called, likely[order].tolist(), strict=True))
        said = replace(said, probability=float(chance(logits)[0]), others=others)
        if not order or not answer_data.words_of(found, 0):  # the shares of a sound are one bar
            return said, "" if order else "there is no other class"
        rival = contrast(target, (*place, order[0]) if place else order[0])
        how = {"method": SIGNED, "precision": self.how["precision"]}

        def rather() -> tuple[float, ...]:
            against = explain(self.model, self.prepared, rival, **how)
            return answer_data.shares(answer_data.scores_like(found, against, 0))

        row = tried(rather, "explaining why not")
        return (said, row) if isinstance(row, str) else (replace(said, against=row), "")

    def picture_card(self, found: Explanation, picture: Any) -> PictureCard:
        """Where a picture's map lies, and what covering that part does."""
        ((name, stream),) = found.streams.items()
        bound, chance = bind(self.prepared.inputs), chances.chance_of(found)
        image = bound.tensors[bound.names.index(name)]
        why = "" if chance else NO_CLASS
        if image.dim() != 4 or tuple(image.shape[-2:]) != stream.image:
            why = f"the model's input {list(image.shape)} is no picture (batch, channels, H, W)"

        def answers(gone: Tensor) -> Tensor:
            assert chance is not None
            images = covering.covered_picture(image[0].detach(), gone)
            return covering.logits_with(self.model, self.prepared.inputs, {name: images}, chance)

        rows, columns = (min(n, CELLS) for n in stream.grid or ())
        what, heat = chances.chance_named(found), found.heatmap()[0].detach().cpu().double()

        def covered() -> Deletion:
            scores = F.adaptive_avg_pool2d(heat[None], (rows, columns))[0].flatten()
            shape = (-1, rows, columns)
            return trials.deleted(scores, lambda gone: answers(gone.view(shape)), what, "picture")

        checks = self._checked(found, self._again(found), covered, why)
        own, (drawn, under) = strongest_part(heat.numpy()), heatmap_and_image(found, 0, picture)
        plane = image[0] if image.dim() == 4 else image[:1]
        if under is None and tuple(plane.shape[-2:]) == stream.image:  # its own numbers
            drawn, under = heatmap_and_image(found, 0, picture_bytes(plane))
        cover: Comparison | str = "no part of it stands out"
        if isinstance(checks.deletion, str):
            cover = checks.deletion
        elif own is not None:
            cover = cover_of(own, answers, what)
        shown = torch.full((1, *drawn.shape), 0.5)  # of an input that is no picture: grey
        if under is not None:  # (H, W) or (H, W, channels)
            shown = torch.from_numpy(under).view(*under.shape[:2], -1)[..., :3].movedim(-1, 0)
        on_it = drawn.double().cpu().numpy()
        if under is not None and max(under.shape) > LARGEST:
            size = [max(1, round(n * LARGEST / max(under.shape))) for n in on_it.shape]
            small = F.interpolate(torch.from_numpy(on_it)[None, None], size, mode="area")
            on_it = small[0, 0].numpy()
            shown = F.interpolate(shown[None].float(), size, mode="area")[0]
        region = None if own is None else strongest_part(on_it, seen_part(stream, on_it.shape))
        before = answer_data.probability_of(found, 0) if isinstance(cover, str) else cover.before
        said, title = in_words(on_it, region), f"Why {_sure(found, before)}?"
        made, seen = self._made(found), picture_bytes(shown)
        return PictureCard(title, said, checks, made, seen, on_it, region, cover)

    def _answer_card(
        self, first: Explanation, title: str, checks: Checks, answer: Answer, against: object
    ) -> AnswerCard:
        """``against``: why no other answer, or why that is not known."""
        made, signed = self._made(first), answer_data.is_signed(first)
        why = against if isinstance(against, str) else ""
        return AnswerCard(title, answer.sentence, checks, made, (answer,), signed, SIGNED, why)

    def _made(self, found: Explanation) -> str:
        return trials.made_by(found.method, found.rules, of_model(self.model), self.call)

    def _checked(
        self,
        own: Explanation,
        again: Callable[[nn.Module], Explanation],
        covered: Callable[[], Deletion],
        why_not: str = "",
    ) -> Checks:
        """All checks of a map. ``again``: explains another model for the same; ``covered``: what
        covering parts of the input does, or ``why_not`` to do that."""
        concerns = tuple(own.concerns(0))
        if not self.checks:
            return Checks(concerns)
        control = trials.control_of(self.model, own, again)
        return Checks(concerns, control, why_not or tried(covered, "covering parts of the input"))

    def _again(self, found: Explanation) -> Callable[[nn.Module], Explanation]:
        """What explains another model for the same input and target."""
        target = chances.same_target(found, self.target)
        return lambda other: explain(other, self.prepared, target, **self.how)

    def _runners_up(
        self, ids: Tensor, likely: Tensor
    ) -> tuple[list[list[tuple[str, float]]], list[tuple[int, int]]]:
        """Of each token of an answer the likeliest others, named, with their probabilities; and the
        token beside the first of them. ``likely``: (tokens, vocabulary)."""
        others, pairs = [], []
        for token, row in zip(ids.tolist(), likely, strict=True):
            best = [k for k in row.topk(RUNNERS_UP + 1).indices.tolist() if k != token][:RUNNERS_UP]
            others.append(list(zip(self._pieces(best), row[best].tolist(), strict=True)))
            pairs.append((token, best[0]))
        return others, pairs

    def _classes(self, order: list[int]) -> list[str]:
        """What classes are called."""
        model = base_model(self.model)
        labels = adapter_for(model).labels(model)
        return [labels[k] if k < len(labels) else f"class {k}" for k in order]

    def _pieces(self, tokens: list[int]) -> list[str]:
        """What tokens are called, each by itself; their numbers without a tokenizer."""
        tokenizer = tokenizer_of(self.prepared.processor)
        if tokenizer is None:
            return list(map(str, tokens))
        read = [str(tokenizer.decode([token])).strip() for token in tokens]
        both = zip(read, pieces_of(tokens, tokenizer), strict=True)
        return [text if text and "\ufffd" not in text else piece for text, piece in both]

    def _as_written(self, answer: Answer, ids: Tensor) -> Answer:
        """The answer as the tokenizer writes it; its tokens' own names may be no text."""
        tokenizer = tokenizer_of(self.prepared.processor)
        if tokenizer is None:
            return answer
        made = decoded(ids.tolist(), tokenizer)
        both = zip(answer.said, made.spans, strict=True)
        said = tuple(replace(s, text=made.text[a:b].strip() or s.text) for s, (a, b) in both)
        text = str(tokenizer.decode(ids.tolist(), skip_special_tokens=True)).strip()
        return replace(answer, text=text or answer.text, said=said)

    def _rather(self, run: Continuation, pairs: Sequence[tuple[int, int]]) -> list[Explanation]:
        """Why each token of an answer rather than its rival, by the signed method."""
        count = run.ids.shape[1]
        targets = [
            Contrast(Output(None, (k - count, token)), Output(None, (k - count, rival)))
            for k, (token, rival) in enumerate(pairs)
        ]
        how = Conditions(precision=self.how["precision"], processor=self.prepared.processor)
        question = Question(SIGNED, {}, None)
        return list(explained_steps(self.model, self.prepared, run, targets, question, how))


def _sure(found: Explanation, probability: float | None) -> str:
    """The explained class with its probability, or another target with its value."""
    return (
        heading(found, 0)
        if probability is None
        else f"{chances.class_of(found)} ({percent(probability)})"
    )
