"""Film reviews whose evidence is known word by word: a grammar plants it, so "does the explanation
fall on the reason?" is a measurement.

A review is several sentences in random order: 1 to 3 *claims* about the film, 0 to 2 claims about
*another* film, and neutral sentences about plot, cast and the evening. A claim is a sentiment word,
negated or not ("hardly a delight", "failed to bore me"). Every claim about the film says the same
thing in the end, and the label (0 negative, 1 positive) is what they say: the polarity of the
sentiment word, turned round by a negation. So

- the rationale is the sentiment words of the claims about the film and the words that negate them
  ("far from", "failed"), and nothing else. Intensifiers ("very", "utterly") are no part of it: the
  label is the same without them.
- It is sufficient (any one of the claims decides) and, taken together, necessary: neutral sentences
  never depend on the label, and the claims about the other film have a polarity of their own, drawn
  without regard to the label. What tells them apart is a phrase ("the sequel", "her last film"),
  before or after the claim, in a sentence of its own or in one with a claim about the film
  ("whereas the sequel was ..., the acting is ...").
- A sentiment word alone says little: 40 % of all claims are negated, and words that negate also
  stand in neutral sentences ("it was not shot in Lisbon").

Held-out reviews are of another seed, and each claim in them is a combination that training reviews
never hold: of negation and sentiment word if it is negated, else of sentence frame and sentiment
word (one in five of these is held out). Every word of a held-out review is in training reviews. A
word is a run of letters or one punctuation mark, as BERT splits text; a review has 20 to 80 of
them. ``python -m tools.reviews`` writes those that the package ships.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from relprop.data import Sample, Word
from relprop.demo.reviews import FILE, SEEDS, SHIPPED
from relprop.errors import OptionError

SHORTEST, LONGEST = 20, 80
NEGATED, HELD_OUT = 0.4, 5


@dataclass(frozen=True)
class Grammar:
    """Words, phrases and sentence frames, as ``review_words.json`` has them.

    ``*`` stands behind every word that decides what a claim says. Slots of a frame: ``{subject}``
    what is spoken of, ``{lead}`` a negation or what stands in its place, ``{intensifier}``,
    ``{word}`` the sentiment word. Of the sentiment words half are positive, and come first.
    """

    words: dict[str, list[str]]
    negations: dict[str, list[str]]
    plain: dict[str, list[str]]
    intensifiers: list[str]
    frames: dict[str, list[str]]
    other_frames: dict[str, list[str]]
    contrasts: list[str]
    subjects: list[str]
    other_subjects: list[str]
    names: dict[str, list[str]]
    neutral: list[str]


SAY = Grammar(**json.loads(Path(__file__).with_name("review_words.json").read_text("utf-8")))


@dataclass(frozen=True)
class Claim:
    """One sentiment about a film, by places in the lists of the ``Grammar``.

    ``kind``: ``"adjective"``, ``"noun"`` or ``"verb"``. ``word``: the sentiment word, positive ones
    first. ``other``: whether another film is spoken of. ``negation``: ``None`` for none. ``plain``:
    how a verb that is not negated is led in ("managed to").
    """

    kind: str
    frame: int
    word: int
    negation: int | None
    other: bool
    subject: str
    intensifier: str
    plain: int

    @property
    def positive(self) -> bool:
        """What it says of its film: the word's polarity, turned round if it is negated."""
        return (self.word < len(SAY.words[self.kind]) // 2) != (self.negation is not None)

    @property
    def held_out(self) -> bool:
        """Whether it is of a combination that no training review holds."""
        return (
            (self.frame if self.negation is None else self.negation) + self.word
        ) % HELD_OUT == 0

    def turned(self) -> Claim:
        """The same with the negation taken away, or with one put in: it says the opposite."""
        return replace(
            self,
            negation=self.plain % len(SAY.negations[self.kind]) if self.negation is None else None,
        )

    def reworded(self) -> Claim:
        """The same with a sentiment word of the other polarity: it says the opposite."""
        size = len(SAY.words[self.kind])
        return replace(self, word=(self.word + size // 2) % size)

    def text(self) -> str:
        """The claim without a full stop; ``*`` behind every word that decides what it says."""
        plain = SAY.plain[self.kind]
        negated = self.negation is not None
        lead = (
            SAY.negations[self.kind][self.negation or 0]
            if negated
            else plain[self.plain % len(plain)]
        )
        frames = SAY.other_frames if self.other else SAY.frames
        return frames[self.kind][self.frame].format(
            subject=self.subject,
            lead=lead,
            intensifier=self.intensifier,
            word=SAY.words[self.kind][self.word] + "*",
        )


Sentence = str | Claim | tuple[str, Claim, Claim]


@dataclass(frozen=True)
class Review:
    """A review before it is text: sentences in order, each a neutral text, a claim, or a pattern of
    two claims (pattern, about the film, about the other)."""

    sentences: tuple[Sentence, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims about the film."""
        return tuple(c for c in self._all() if not c.other)

    @property
    def others(self) -> tuple[Claim, ...]:
        """The claims about the other film."""
        return tuple(c for c in self._all() if c.other)

    @property
    def label(self) -> int:
        """What the claims about the film say, all of them."""
        return int(self.claims[0].positive)

    def turned(self) -> Review:
        """The negation of every claim about the film taken away or put in: the label is the other
        one."""
        return self._with(lambda c: c if c.other else c.turned())

    def with_other_swapped(self) -> Review:
        """Every sentiment word about the other film exchanged for one of the other polarity: the
        label stays."""
        return self._with(lambda c: c.reworded() if c.other else c)

    def marked(self, *, other: bool = False) -> tuple[list[str], list[bool]]:
        """The words, and for each whether it is a reason; with ``other``, whether it would be one
        if the review were of the other film."""
        words: list[str] = []
        reasons: list[bool] = []
        for sentence in self.sentences:
            text, theirs = _written(sentence)
            pieces = text.split()
            for i, piece in enumerate(pieces):
                word = piece.rstrip("*")
                if word == "a" and i + 1 < len(pieces) and pieces[i + 1][0] in "aeiou":
                    word = "an"
                words.append("I" if word == "i" else word if i else word[:1].upper() + word[1:])
                reasons.append(piece.endswith("*") and theirs[i] == other)
        return words, reasons

    def sample(self, key: str) -> Sample:
        """The review as text, with the spans of its words and which of them are the reason."""
        words, reasons = self.marked()
        text, spans = "", []
        for word in words:
            text += " " if text and word not in ",.;" else ""
            spans.append(Word(len(text), len(text) + len(word)))
            text += word
        return Sample(key, text, self.label, words=tuple(spans), rationale=tuple(reasons))

    def _all(self) -> list[Claim]:
        return [part for s in self.sentences for part in _parts(s) if isinstance(part, Claim)]

    def _with(self, change: Callable[[Claim], Claim]) -> Review:
        def changed(s: Sentence) -> Any:
            parts = [change(p) if isinstance(p, Claim) else p for p in _parts(s)]
            return tuple(parts) if isinstance(s, tuple) else parts[0]

        return Review(tuple(changed(s) for s in self.sentences))


def _parts(sentence: Sentence) -> tuple[str | Claim, ...]:
    return sentence if isinstance(sentence, tuple) else (sentence,)


def _written(sentence: Sentence) -> tuple[str, list[bool]]:
    """A sentence's text with its full stop, and for each of its words whether the claim it is in is
    about the other film."""
    if isinstance(sentence, str):
        text = sentence + " ."
        return text, [False] * len(text.split())
    if isinstance(sentence, Claim):
        text = sentence.text() + " ."
        return text, [sentence.other] * len(text.split())
    pattern, mine, theirs = sentence
    pieces: list[str] = []
    other: list[bool] = []
    for piece in pattern.split():
        part = {"{mine}": mine.text(), "{theirs}": theirs.text()}.get(piece, piece).split()
        pieces += part
        other += [piece == "{theirs}"] * len(part)
    return " ".join([*pieces, "."]), [*other, False]


def _claim(
    random: Random, positive: bool, other: bool, held_out: bool, *, first_frame: bool = False
) -> Claim:
    """A claim that says ``positive`` and is of a combination of this part of the data; with
    ``first_frame`` one that goes into a pattern of two."""
    while True:
        claim = _drawn(random, positive, other, first_frame)
        if claim.held_out == held_out:
            return claim


def _drawn(random: Random, positive: bool, other: bool, first_frame: bool) -> Claim:
    kinds = ("adjective", "noun", "verb")
    kind = "adjective" if first_frame else random.choices(kinds, (6, 2, 2))[0]
    frames = (SAY.other_frames if other else SAY.frames)[kind]
    negated, size = random.random() < NEGATED, len(SAY.words[kind]) // 2
    return Claim(
        kind,
        frame=0 if first_frame else random.randrange(len(frames)),
        word=random.randrange(size) + (0 if positive != negated else size),
        negation=random.randrange(len(SAY.negations[kind])) if negated else None,
        other=other,
        subject=_filled(random, random.choice(SAY.other_subjects if other else SAY.subjects)),
        intensifier=random.choice(SAY.intensifiers) if random.random() < 0.35 else "",
        plain=random.randrange(60),
    )


def _filled(random: Random, text: str) -> str:
    """Names in the place of their slots."""
    return text.format(**{slot: random.choice(names) for slot, names in SAY.names.items()})


def make_review(index: int, *, seed: int, held_out: bool = True) -> Review:
    """Review ``index`` of ``seed``: it depends on nothing else."""
    random = Random(f"{seed} {index} {held_out}")
    label = random.random() < 0.5
    count = random.choices((1, 2, 3), (5, 3, 2))[0]
    sentences: list[Sentence] = [_claim(random, label, False, held_out) for _ in range(count)]
    _add_others(random, sentences, held_out)
    _add_neutral(random, sentences)
    random.shuffle(sentences)
    return Review(tuple(sentences))


def _add_others(random: Random, sentences: list[Sentence], held_out: bool) -> None:
    """Up to two claims about the other film, each a sentence or beside the first claim."""
    for _ in range(random.choices((0, 1, 2), (3, 5, 2))[0]):
        positive, first = random.random() < 0.5, sentences[0]
        if random.random() < 0.3 and isinstance(first, Claim):
            pattern = random.choice(SAY.contrasts)
            theirs = _claim(random, positive, True, held_out, first_frame=True)
            sentences[0] = (pattern, first, theirs)
        else:
            sentences.append(_claim(random, positive, True, held_out))


def _add_neutral(random: Random, sentences: list[Sentence]) -> None:
    """Neutral sentences, until the review is as long as is drawn."""
    neutral = random.sample(SAY.neutral, len(SAY.neutral))
    aim = random.randint(SHORTEST, LONGEST - 10)
    size = len(Review(tuple(sentences)).marked()[0])
    while size < aim and neutral:
        sentence = _filled(random, neutral.pop())
        if size + len(sentence.split()) + 1 <= LONGEST:
            sentences.append(sentence)
            size += len(sentence.split()) + 1


def make_reviews(n: int, *, seed: int, held_out: bool = True) -> list[Sample]:
    """``n`` reviews drawn from ``seed``, of combinations never seen in training unless
    ``held_out=False``; the first of them do not depend on ``n``.

    >>> sample = make_reviews(1, seed=3)[0]
    >>> sample.inputs[:86], sample.label
    ('It was truly gripping, the sequel, but that is another story. The house of the teacher', 1)
    >>> [sample.inputs[w.start:w.end] for w, reason in zip(sample.words, sample.rationale) if reason]
    ['far', 'from', 'chore']
    """  # noqa: E501
    if n < 0:
        raise OptionError(f"n={n}: a number of reviews")
    return [make_review(i, seed=seed, held_out=held_out).sample(str(i)) for i in range(n)]


def shipped() -> bytes:
    """What ``relprop/demo/reviews.jsonl.gz`` holds, uncompressed: of each seed, review after
    review, its text, its label and which of its words are reasons."""
    samples = [sample for seed in SEEDS for sample in make_reviews(SHIPPED, seed=seed)]
    return "".join(json.dumps(_line(sample)) + "\n" for sample in samples).encode()


def _line(sample: Sample) -> dict[str, Any]:
    reasons = [i for i, reason in enumerate(sample.rationale or ()) if reason]
    return {"text": sample.inputs, "label": sample.label, "reasons": reasons}


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress(shipped(), mtime=0))
