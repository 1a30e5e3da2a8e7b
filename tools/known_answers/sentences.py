"""Sentence pairs that share one phrase: why does a sentence encoder find them alike?

Two sentences of different topics are written from templates, and the same phrase ("a violin with
golden strings") is planted in both. The encoder's cosine is explained; the truth is the phrase's
words.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

import relprop
from examples.minilm import minilm_tokenizer, similarity_inputs, similarity_model
from relprop.errors import RelpropError, first_line
from tools.known_answers.rows import FLOORS, INTEGRATED, METHODS, block, noise, share
from tools.known_answers.study import Column, Value

TOPICS = {
    "cooking": (
        "after boiling the rice the cook noticed {} beside the stove",
        "{} stood in the kitchen while the soup was cooling",
    ),
    "weather": (
        "the storm that flooded the valley also carried away {}",
        "{} was covered by snow before the morning frost came",
    ),
    "sports": (
        "during the second half a player tripped over {} near the goal",
        "{} was given to the team that won the final match",
    ),
    "banking": (
        "the bank refused the loan because {} was not worth enough",
        "{} was listed among the assets in the annual audit",
    ),
    "travel": (
        "at the airport the guards opened the suitcase and found {}",
        "{} was left on the night train by a tired passenger",
    ),
}
THINGS = ("violin", "lantern", "telescope", "carpet", "parrot", "statue", "bicycle", "clock")
MARKS = ("golden", "wooden", "broken", "purple", "ancient", "striped")
SIDES = ("first_input_ids", "second_input_ids")
AT_ONCE = 25
TRUTH = "the phrase"


@dataclass(frozen=True)
class Pair:
    """Two sentences; which of their words are the phrase's."""

    sentences: tuple[str, str]
    phrase: str

    def marked(self, side: int) -> Tensor:
        """(words,), bool: the two words of the phrase that mean something."""
        meant = set(self.phrase.split()[1:])
        return torch.tensor([word in meant for word in self.sentences[side].split()])


def pairs(count: int, seed: int) -> list[Pair]:
    """Pairs drawn by chance, none twice."""
    drawn = random.Random(seed)
    every = [
        (one, two, f"the {mark} {thing}")
        for (one, two), mark, thing in itertools.product(
            itertools.permutations(TOPICS, 2), MARKS, THINGS
        )
    ]
    return [
        Pair((TOPICS[one][0].format(phrase), TOPICS[two][1].format(phrase)), phrase)
        for one, two, phrase in drawn.sample(every, count)
    ]


def without(sentence: str, words: Tensor) -> str:
    """A sentence without the words of these numbers."""
    gone = set(words.tolist())
    return " ".join(w for i, w in enumerate(sentence.split()) if i not in gone)


@dataclass
class Sentences:
    """The study. A unit is a pair, and its one sample the pair's cosine."""

    count: int = 150
    seed: int = 47
    name: ClassVar[str] = "sentences"
    title: ClassVar[str] = "Sentence pairs (MiniLM): the shared phrase"
    units: ClassVar[str] = "pairs"
    samples: ClassVar[str] = "cosines"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share on the phrase", True, 100),
        Column("fall of the cosine", True, 1),
        Column("random weights", False, 1),
        Column("seconds", False, 1),
    )

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.methods = METHODS | {"integrated_gradients": INTEGRATED}
        self.unit = block(self.make, AT_ONCE)

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.methods, *FLOORS, TRUTH)

    @cached_property
    def pairs(self) -> list[Pair]:
        return pairs(self.count, self.seed)

    @cached_property
    def model(self) -> Any:
        return similarity_model()

    @cached_property
    def untrained(self) -> Any:
        """The same architecture with weights drawn anew."""
        model: Any = similarity_model()
        torch.manual_seed(0)
        model.encoder.apply(model.encoder._init_weights)
        return model

    def __len__(self) -> int:
        return self.count

    def key(self, unit: int) -> str:
        return " / ".join(self.pairs[unit].sentences)

    def identity(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed, "rows": list(self.rows)}

    def __call__(self, unit: int) -> list[Value]:
        return [Value(str(unit), *found) for found in self.unit(unit)]

    def cosines(self, firsts: list[str], seconds: list[str]) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.model(**similarity_inputs(firsts, seconds, self.tokenizer))
        return found[:, 0]

    @cached_property
    def tokenizer(self) -> Any:
        return minilm_tokenizer()

    def make(self, first: int) -> list[list[tuple[str, str, float]]]:
        """All numbers of some pairs: row, column, number."""
        some = self.pairs[first : first + AT_ONCE]
        whole = self.cosines(*map(list, zip(*(p.sentences for p in some), strict=True)))
        found: list[list[tuple[str, str, float]]] = [[] for _ in some]
        for row, maps, seconds in self.maps(some, first):
            falls = self.falls(some, maps, whole)
            for i, (pair, sides) in enumerate(zip(some, maps, strict=True)):
                on = [share(s, pair.marked(side)) for side, s in enumerate(sides)]
                found[i] += [
                    (row, "share on the phrase", sum(on) / 2),
                    (row, "fall of the cosine", falls[i]),
                ]
                if first and seconds == seconds:  # the first ones have the capture in them
                    found[i].append((row, "seconds", seconds))
        for row, i, number in self.sanity(some, first):
            found[i].append((row, "random weights", number))
        return found

    def maps(
        self, some: list[Pair], first: int
    ) -> Iterator[tuple[str, list[tuple[Tensor, Tensor]], float]]:
        """Of each row the words' scores of both sides of each pair, and seconds per pair."""
        for row, call in self.methods.items():
            start = time.process_time()
            try:
                maps = self.explained(self.model, some, call)
            except RelpropError as error:
                self.refused[row] = first_line(error)
                continue
            yield row, maps, (time.process_time() - start) / len(some)
        words = [[len(s.split()) for s in p.sentences] for p in some]
        yield "uniform", [(torch.ones(a), torch.ones(b)) for a, b in words], torch.nan
        seeds = [2 * (first + i) for i in range(len(some))]
        drawn = [(noise(s, a), noise(s + 1, b)) for s, (a, b) in zip(seeds, words, strict=True)]
        yield "random", drawn, torch.nan
        yield TRUTH, [(p.marked(0).double(), p.marked(1).double()) for p in some], torch.nan

    def explained(
        self, model: Any, some: list[Pair], call: Mapping[str, Any]
    ) -> list[tuple[Tensor, Tensor]]:
        first, second = map(list, zip(*(p.sentences for p in some), strict=True))
        inputs = similarity_inputs(first, second, self.tokenizer)
        e = relprop.explain(model, inputs, processor=self.tokenizer, progress=False, **call)

        def words(side: str, i: int) -> Tensor:
            return torch.tensor([score for _, score in e[side].words(i)])

        return [(words(SIDES[0], i), words(SIDES[1], i)) for i in range(len(some))]

    def falls(
        self, some: list[Pair], maps: list[tuple[Tensor, Tensor]], whole: Tensor
    ) -> list[float]:
        """What the cosine loses when the two best words of both sentences are deleted."""
        left = [
            [without(s, scores.topk(2).indices) for s, scores in zip(p.sentences, m, strict=True)]
            for p, m in zip(some, maps, strict=True)
        ]
        found: list[float] = (whole - self.cosines(*map(list, zip(*left, strict=True)))).tolist()
        return found

    def sanity(self, some: list[Pair], first: int) -> Iterator[tuple[str, int, float]]:
        """Rank correlation of each map with that of a model with random weights, of the first
        pairs."""
        if first:
            return
        from scipy.stats import spearmanr

        for row, call in self.methods.items():
            if row in self.refused:
                continue
            trained = self.explained(self.model, some, call)
            drawn = self.explained(self.untrained, some, call)
            for i, both in enumerate(zip(trained, drawn, strict=True)):
                one, two = (torch.cat(sides) for sides in both)
                yield row, i, float(spearmanr(one, two).statistic)
