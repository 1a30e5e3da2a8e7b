"""From a generation or from citations to an answer's card, of what they hold."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from relprop.api.rounding import content_scores
from relprop.cards.answer import MARK, MARKS, Answer, AnswerCard, Part, Said
from relprop.cards.over_time import mapped, maps_with
from relprop.cards.trials import Checks, made_by
from relprop.errors import OptionError, RelpropError
from relprop.explanation.whole import answer_text, whole
from relprop.methods import METHODS
from relprop.views.generations import steps_of
from relprop.views.regions import is_recording
from relprop.views.token_maps import columns, pictures_of

if TYPE_CHECKING:
    from relprop.explanation import Citations, Explanation, Generation

#: A mark of the model's own several times in a row.
ALIKE = re.compile(rf"(({MARK.pattern})\s*)(\2\s*)+")
ELSEWHERE = "relprop.card(model, ...) asks the model for it"
UNASKED = Checks((), ELSEWHERE, ELSEWHERE)

Words = list[tuple[str, str, list[int]]]
"""Input, word and its tokens, in order."""


def words_of(explanation: Explanation, sample: int) -> Words:
    """The words of content of each text input, or its tokens where no words are known; beside a
    recording not the marks by which a model is told to write down what it hears."""
    found: Words = []
    for name, stream in explanation.streams.items():
        if is_recording(stream) or pictures_of(explanation[name]):
            continue
        if stream.words is not None:
            found += [(name, word, tokens) for word, tokens in stream.words[sample]]
        else:
            named = zip(columns(stream, sample), stream.content[sample].tolist(), strict=True)
            found += [(name, label, [i]) for i, (label, inside) in enumerate(named) if inside]
    heard = any(map(is_recording, explanation.streams.values()))
    return [word for word in found if not (heard and MARKS.fullmatch(word[1]))]


def parts_of(
    explanation: Explanation, sample: int, words: Words, tables: Collection[str] = ()
) -> tuple[Part, ...]:
    """The sentences of the texts, under their input's name where there are several; one part where
    the text is not known, and of ``tables``, by name, a part for each column."""
    several = len({name for name, _, _ in words}) > 1
    texts: list[tuple[str, str]] = []
    owner: dict[tuple[str, int], int] = {}
    with suppress(OptionError):
        for name, stream in explanation.segments("sentences").streams.items():
            for text, tokens in stream.words[sample] if stream.texts and stream.words else ():
                owner |= {(name, token): len(texts) for token in tokens}
                texts.append((name, text))
    places: dict[int, list[int]] = {}
    for place, (name, _, tokens) in enumerate(words):
        at = next((owner[name, t] for t in tokens if (name, t) in owner), None)
        if at is None:  # of what no text is known, all words are one part
            at = owner.setdefault((name, place if name in tables else -1), len(texts))
            texts += [(name, "")] if at == len(texts) else []
        places.setdefault(at, []).append(place)
    return tuple(
        Part(
            ALIKE.sub(r"\1", texts[at][1]) or " ".join(words[i][1] for i in some),
            tuple(some),
            texts[at][0] if several else "",
        )
        for at, some in sorted(places.items())
    )


def scores_of(step: Explanation, sample: int, words: Words, own: Sequence[int] = ()) -> list[float]:
    """The scores of every word, of every picture and recording, and of each position of the answer
    in ``own`` (of the last input)."""
    scores = {n: s.scores[sample].detach().double().cpu() for n, s in step.streams.items()}
    found = [float(scores[name][tokens].sum()) for name, _, tokens in words]
    found += [float(content_scores(one, sample).detach().double().sum()) for one in mapped(step)]
    return [*found, *(float(scores[next(reversed(scores))][i]) for i in own)]


def scores_like(found: Explanation, other: Explanation, sample: int) -> list[float]:
    """``scores_of`` another explanation for the words of ``found``, whose inputs may be fewer and
    have tokens of the model's own beside theirs. Raises ``RelpropError`` where the other has not
    all of them."""
    streams = {}
    for name, stream in found.streams.items():
        same = other.streams.get(name)
        place = {} if same is None else {k: i for i, k in enumerate(same.source.tolist())}
        at = [place.get(k, -1) for k in stream.source.tolist()]
        if same is None or any(i < 0 <= k for i, k in zip(at, stream.source.tolist(), strict=True)):
            raise RelpropError(f"{other.method} explains other tokens of {name!r}")
        scores = same.scores[:, at] * (stream.source >= 0).to(same.scores.device)
        streams[name] = replace(stream, scores=scores)
    both = replace(other, streams=streams)
    return scores_of(both, sample, words_of(found, sample))


def shares(numbers: Sequence[float]) -> tuple[float, ...]:
    """Numbers as shares of the sum of their sizes."""
    total = math.fsum(map(abs, numbers)) or 1.0
    return tuple(number / total for number in numbers)


def of_generation(
    generation: Generation,
    sample: int,
    others: Sequence[Sequence[tuple[str, float]]] = (),
    against: Sequence[Explanation] = (),
    inputs: Mapping[str, Tensor] | None = None,
) -> Answer:
    """One sample's answer, a part per generated token. ``others``, ``against``: of each of its
    steps, ``inputs``: by name, of which recordings are drawn, if they are known."""
    steps, every = steps_of(generation, sample), whole(generation)
    words, own = words_of(every, sample), generation.stream in generation.streams

    def row(step: Explanation, place: int) -> list[float]:
        source = step.streams[generation.stream].source.tolist() if own else []
        answer = range(generation.prompt, generation.prompt + place) if own else ()
        before = [source.index(position) for position in answer]
        return scores_of(_own_last(step, generation.stream), sample, words, before)

    rows = [row(generation.steps[k], place) for place, k in enumerate(steps)]
    said = [
        Said(
            generation.labels[sample][k],
            shares(rows[place]),
            probability_of(generation.steps[k], sample),
            tuple(others[place]) if others else (),
            shares(row(against[place], place)) if against else None,
        )
        for place, k in enumerate(steps)
    ]
    maps = maps_with([generation.steps[k] for k in steps], sample, inputs)
    kept = [t for t in answer_text(generation, sample).split() if not MARK.fullmatch(t)]
    text = re.sub(r" ([.,;:!?])", r"\1", " ".join(kept))
    parts = parts_of(every, sample, words)
    return Answer(text, tuple(w for _, w, _ in words), parts, tuple(said), maps, summed(rows))


def summed(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The shares of the sums of rows, of which a later one may be longer."""
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[0.0] * (longest - len(row))] for row in rows]
    return shares([math.fsum(column) for column in zip(*padded, strict=True)])


def probability_of(step: Explanation, sample: int) -> float | None:
    """How likely the model finds what a step explains, where that is known."""
    if step.probability is None or math.isnan(float(step.probability[sample])):
        return None
    return float(step.probability[sample])


def _own_last(step: Explanation, stream: str) -> Explanation:
    """The same with the input that the answer continues as its last one."""
    streams = dict(step.streams)
    if stream in streams:
        streams[stream] = streams.pop(stream)
    return replace(step, streams=streams)


def card_of_generation(generation: Generation, title: str | None) -> AnswerCard:
    """A generation's card without anything asked of the model anew."""
    first = generation.steps[0]
    answers = tuple(of_generation(generation, i) for i in range(len(generation)))
    said = answers[0].sentence if len(answers) == 1 else f"{len(answers)} answers."
    title = title or "What does the answer rest on?"
    made = made_by(first.method, first.rules)
    return AnswerCard(title, said, UNASKED, made, answers, is_signed(first))


def card_of_citations(citations: Citations, title: str | None) -> AnswerCard:
    """A card whose parts are passages, under their documents, and of which every sentence of the
    answer is a part."""
    first, rows = citations.explanations[0], citations.scores.double().tolist()
    said = tuple(
        Said(one.text, shares(row), math.exp(min(0.0, float(e.output[0]))))
        for one, row, e in zip(citations.sentences, rows, citations.explanations, strict=True)
    )
    passages = citations.passages
    parts = tuple(Part(p.text, (i,), f"document {p.document}") for i, p in enumerate(passages))
    words = tuple(p.text for p in passages)
    answer = Answer(citations.answer, words, parts, said, (), summed(rows))
    title = title or "What does each sentence of the answer rest on?"
    signed, made = bool((citations.scores < 0).any()), made_by(first.method, first.rules)
    return AnswerCard(title, answer.sentence, UNASKED, made, (answer,), signed)


def is_signed(explanation: Explanation) -> bool:
    """Whether scores may speak against the target."""
    method = METHODS.get(explanation.method)
    return method is None or method.signed
