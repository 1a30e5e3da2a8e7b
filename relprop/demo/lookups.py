"""Questions about a few documents, whose answers stand in one known place: so "which passage does
the answer rest on?" is a measurement, for models that generate.

A document is some sentences. A *fact* is "Anna likes amber kites.": a person, a verb and two words,
none of which but the person stands in another fact. The documents of a lookup hold 4 to 9 facts
about three people, in random order, and sentences that say nothing. The question asks for one or
two facts ("Anna likes what and Boris paints what?"), and the answer repeats them, a sentence each.
So the last two words of each sentence of the answer are those of one fact, which cannot be known
from anything else; the other facts, of which most are about the same person, are distractors.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from relprop.errors import OptionError

PEOPLE = (
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Louis Maria Nils Olga Pavel "
    "Rosa Simon Tanja Viktor"
).split()
VERBS = (
    "likes paints sells sees brings wants draws buys finds keeps loses mends hides counts carries "
    "collects"
).split()
ADJECTIVES = (
    "amber silver golden scarlet rusty misty sunny wooden hollow frozen purple orange quiet "
    "broken velvet marble copper coral indigo ivory olive crystal ancient gentle tiny giant "
    "spotted striped"
).split()
NOUNS = (
    "kites rivers stones maples violins lanterns gardens falcons bridges candles harbors anchors "
    "meadows tigers ladders saddles baskets mirrors islands ribbons windows bottles comets buttons "
    "drums pencils lemons towers"
).split()
IDLE = (
    "It rained all day.",
    "The meeting was short.",
    "Nobody knows why.",
    "There was coffee for all.",
    "The list is not complete.",
    "The door was open.",
)
LEAST, MOST = 4, 9


@dataclass(frozen=True)
class Evidence:
    """Where one sentence of an answer comes from: ``document``, and in its text the characters of
    the ``sentence`` and of the two ``words``; ``answered``: where these words stand in the
    answer."""

    document: int
    sentence: tuple[int, int]
    words: tuple[tuple[int, int], ...]
    answered: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Lookup:
    """Documents, a question, its right answer, and the evidence of each of its sentences."""

    documents: tuple[str, ...]
    question: str
    answer: str
    evidence: tuple[Evidence, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat that asks: one turn of the user's, the documents and then the question."""
        content = "\n\n".join([*self.documents, self.question])
        return [{"role": "user", "content": content}]


@dataclass(frozen=True)
class Fact:
    """A person, a verb, and the two words that only this fact has."""

    person: str
    verb: str
    words: tuple[str, str]

    @property
    def asked(self) -> str:
        """How a question names it."""
        return f"{self.person} {self.verb} what"

    @property
    def text(self) -> str:
        """Its sentence."""
        return f"{self.person} {self.verb} {' '.join(self.words)}."


def make_lookups(
    n: int, *, seed: int, facts: tuple[int, int] = (LEAST, MOST), questions: int | None = None
) -> list[Lookup]:
    """``n`` lookups drawn from ``seed``; the first of them do not depend on ``n``. ``facts``: the
    least and most of them; ``questions``: 1 or 2 in place of either.

    >>> lookup = make_lookups(1, seed=2, questions=1)[0]
    >>> lookup.question, lookup.answer
    ('Viktor brings what?', 'Viktor brings rusty kites.')
    >>> evidence = lookup.evidence[0]
    >>> lookup.documents[evidence.document][slice(*evidence.sentence)] == lookup.answer
    True
    """
    if n < 0 or not 1 <= facts[0] <= facts[1] <= 9 or questions not in (None, 1, 2):
        raise OptionError(f"n={n}, facts={facts}, questions={questions}: up to 9 facts, 1 or 2")
    return [_lookup(Random(f"{seed} {i}"), facts, questions) for i in range(n)]


def _lookup(random: Random, facts: tuple[int, int], questions: int | None) -> Lookup:
    known = _facts(random, random.randint(*facts))
    count = min(random.choice((1, 2)) if questions is None else questions, len(known))
    asked = random.sample(known, count)
    documents, places = _documents(random, known)
    question = f"{' and '.join(fact.asked for fact in asked)}?"
    answer, evidence = "", []
    for fact in asked:
        answer += " " if answer else ""
        document, start = places[fact]
        text = documents[document]
        end = start + len(fact.text)
        found, said = _spans(fact, start), _spans(fact, len(answer))
        assert text[start:end] == fact.text
        evidence.append(Evidence(document, (start, end), found, said))
        answer += fact.text
    return Lookup(tuple(documents), question, answer, tuple(evidence))


def _facts(random: Random, count: int) -> list[Fact]:
    """Facts of different verbs about 3 people, so that most share a person."""
    people, verbs = random.sample(PEOPLE, 3), random.sample(VERBS, count)
    words = zip(random.sample(ADJECTIVES, count), random.sample(NOUNS, count), strict=True)
    return [
        Fact(random.choice(people), verb, both) for verb, both in zip(verbs, words, strict=True)
    ]


def _documents(random: Random, facts: list[Fact]) -> tuple[list[str], dict[Fact, tuple[int, int]]]:
    """Facts and idle sentences in random order, as documents of 2 to 3 sentences; for each fact its
    document and where it begins there."""
    idle = random.sample(IDLE, random.randint(1, 3))
    sentences: list[Fact | str] = [*facts, *idle]
    random.shuffle(sentences)
    documents: list[str] = []
    places: dict[Fact, tuple[int, int]] = {}
    while sentences:
        size = random.randint(2, 3)
        taken, sentences, text = sentences[:size], sentences[size:], ""
        for sentence in taken:
            text += " " if text else ""
            if isinstance(sentence, Fact):
                places[sentence] = (len(documents), len(text))
            text += sentence.text if isinstance(sentence, Fact) else sentence
        documents.append(text)
    return documents, places


def _spans(fact: Fact, start: int) -> tuple[tuple[int, int], ...]:
    """The characters of a fact's two words in a text where it begins at ``start``."""
    first = start + len(fact.text) - 1 - len(" ".join(fact.words))
    second = first + len(fact.words[0]) + 1
    return (first, first + len(fact.words[0])), (second, second + len(fact.words[1]))
