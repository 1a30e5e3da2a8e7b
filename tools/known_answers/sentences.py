"""Sentence pairs that share one phrase: why does a sentence encoder find them alike?

Two sentences of different topics are written from templates, and the same phrase ("a violin with
golden strings") is planted in both. The encoder's cosine is explained; the truth is the phrase's
words.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

import relprop
from examples.minilm import minilm_tokenizer, similarity_inputs, similarity_model
from tools.known_answers.blocks import InBlocks
from tools.known_answers.rows import FLOORS, INTEGRATED, METHODS, noise, share
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


@dataclass(eq=False)
class Sentences(InBlocks):
    """The study. A unit is a pair, and its one sample the pair's cosine; its map is over the words
    of both sentences."""

    count: int = 150
    seed: int = 47
    methods: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: METHODS | {"integrated_gradients": INTEGRATED}
    )
    at_once: ClassVar[int] = 25
    few: ClassVar[int] = 25
    name: ClassVar[str] = "sentences"
    title: ClassVar[str] = "Sentence pairs (MiniLM): the shared phrase"
    units: ClassVar[str] = "pairs"
    samples: ClassVar[str] = "cosines"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share on the phrase", True, 100),
        Column("fall of the cosine", True, 1),
        Column("random weights", False, 1),
        Column("stability", False, 1),
        Column("seconds", False, 1),
    )

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
        model: Any = similarity_model()
        torch.manual_seed(0)
        model.encoder.apply(model.encoder._init_weights)
        return model

    @cached_property
    def tokenizer(self) -> Any:
        return minilm_tokenizer()

    def key(self, unit: int) -> str:
        return " / ".join(self.pairs[unit].sentences)

    def of(self, units: range) -> list[Pair]:
        return [self.pairs[unit] for unit in units]

    def explained(self, model: Any, units: range, call: Mapping[str, Any]) -> list[Tensor]:
        first, second = map(list, zip(*(p.sentences for p in self.of(units)), strict=True))
        inputs = similarity_inputs(first, second, self.tokenizer)
        e = relprop.explain(model, inputs, processor=self.tokenizer, progress=False, **call)
        return [
            torch.tensor([[score for side in SIDES for _, score in e[side].words(i)]])
            for i in range(len(units))
        ]

    def comparisons(self, units: range) -> Iterator[tuple[str, list[Tensor]]]:
        marked = [torch.cat([p.marked(0), p.marked(1)])[None].double() for p in self.of(units)]
        yield "uniform", [torch.ones_like(one) for one in marked]
        yield "random", [noise(unit, *m.shape) for unit, m in zip(units, marked, strict=True)]
        yield TRUTH, marked

    def measured(self, units: range, row: str, maps: list[Tensor]) -> Iterator[list[Value]]:
        """The mean of both sentences' shares; what the cosine loses when the two best words of
        both are deleted."""
        some = self.of(units)
        counts = [[len(s.split()) for s in p.sentences] for p in some]
        sides = [one[0].split(count) for one, count in zip(maps, counts, strict=True)]
        left = [
            [without(s, best.topk(2).indices) for s, best in zip(p.sentences, both, strict=True)]
            for p, both in zip(some, sides, strict=True)
        ]
        falls = self.cosines([p.sentences for p in some]) - self.cosines(left)
        for unit, pair, both, fall in zip(units, some, sides, falls, strict=True):
            on = sum(share(scores, pair.marked(side)) for side, scores in enumerate(both)) / 2
            yield [
                Value(str(unit), row, "share on the phrase", on),
                Value(str(unit), row, "fall of the cosine", float(fall)),
            ]

    def cosines(self, both: Sequence[Sequence[str]]) -> Tensor:
        firsts, seconds = map(list, zip(*both, strict=True))
        inputs = similarity_inputs(firsts, seconds, self.tokenizer)
        with torch.no_grad():
            found: Tensor = self.model(**inputs)
        return found[:, 0]
