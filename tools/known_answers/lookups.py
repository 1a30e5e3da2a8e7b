"""Which methods find the words that an answer is copied from?

Of each held-out lookup that the shipped model answers right, the last sentence of the answer is
explained: the mean log-probability of its two words that only one fact of the documents has. The
truth is these two words where they stand in the documents, and the sentence that holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
from relprop.demo.lookups import Lookup, make_lookups
from relprop.explanation.segments import owners, sentences
from relprop.targets import span
from tools.known_answers.blocks import InBlocks
from tools.known_answers.rows import METHODS
from tools.known_answers.study import Column, Value

WHOLE = "leave_one_out, whole sentences (as cite)"
#: Beside the rows of every study; a max-flow per token takes minutes for each text.
_NAMED: dict[str, Mapping[str, Any]] = {
    name: {"method": name}
    for name in (
        *("gradcam_features", "attention_norm", "value_zeroing", "integrated_gradients"),
        *("smoothgrad", "gradient_shap", "deeplift", "occlusion", "leave_one_out", "random"),
    )
}
MORE = _NAMED | {WHOLE: {"method": "leave_one_out", "whole": True}}
#: Sentences at a fixed place.
PLACES = {"always the first sentence": 0, "always the last sentence": -1}


@dataclass(frozen=True)
class Case:
    """A lookup as text up to its last answer word. Spans of characters: of every sentence of the
    documents, which of them is the ``fact``, and its two ``words``."""

    text: str
    sentences: list[tuple[int, int]]
    fact: int
    words: list[tuple[int, int]]

    def owned(self, spans: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Of each sentence its tokens, by the characters of all tokens."""
        return owners(self.sentences, spans)

    def best(self, scores: Tensor, spans: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """Whether the best token of the documents is a source word, and the number of the best
        sentence; of scores of tokens."""
        owned = self.owned(spans)
        one = max((t for some in owned for t in some), key=lambda t: float(scores[t]))
        sums = [float(scores[some].sum()) for some in owned]
        return float(spans[one] in self.words), sums.index(max(sums))

    def without(self, sentence: int) -> str:
        """The text without a sentence of the documents."""
        first, last = self.sentences[sentence]
        return self.text[:first] + self.text[last:].lstrip(" ")


def case_of(lookup: Lookup, tokenizer: Any) -> Case:
    """The chat with its answer, and where in its text the truth stands."""
    text = tokenizer.apply_chat_template(
        lookup.messages, add_generation_prompt=True, tokenize=False
    )
    evidence, found, fact, words = lookup.evidence[-1], list[tuple[int, int]](), -1, []
    at = 0
    for k, document in enumerate(lookup.documents):
        start = text.index(document, at)
        at = start + len(document)
        for first, last in sentences(document):
            if k == evidence.document and (first, last) == evidence.sentence:
                fact = len(found)
            found.append((start + first, start + last))
        if k == evidence.document:
            words = [(start + a, start + b) for a, b in evidence.words]
    return Case(text + lookup.answer.removesuffix("."), found, fact, words)


@dataclass(eq=False)
class Lookups(InBlocks):
    """The study. A unit is a lookup that is answered right, and its last answer the one sample."""

    count: int = 100
    seed: int = 20_000_003
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: METHODS | MORE)
    at_once: ClassVar[int] = 50
    name: ClassVar[str] = "lookups"
    title: ClassVar[str] = "Lookups in documents (a small Llama): the fact that is repeated"
    units: ClassVar[str] = "lookups"
    samples: ClassVar[str] = "answers"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("best token is a source word", True, 100),
        Column("best sentence is the source", True, 100),
        Column("fall without the best sentence"),
        Column("random weights", False),
        Column("stability", False),
        Column("seconds", False),
    )

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.methods, *PLACES)

    @cached_property
    def model(self) -> Any:
        return lookup_model()

    @cached_property
    def tokenizer(self) -> Any:
        return lookup_tokenizer()

    @cached_property
    def cases(self) -> list[Case]:
        """Those lookups whose last two answer words the model predicts."""
        drawn = make_lookups(self.count, seed=self.seed)
        cases = [case_of(lookup, self.tokenizer) for lookup in drawn]
        inputs = self.tokenizer([c.text for c in cases], padding=True, return_tensors="pt")
        with torch.no_grad():
            best = self.model(**inputs).logits[:, -3:-1].argmax(-1)
        same = (best == inputs["input_ids"][:, -2:]).all(1).tolist()
        return [case for case, right in zip(cases, same, strict=True) if right]

    def __len__(self) -> int:
        return len(self.cases)

    def key(self, unit: int) -> str:
        return self.cases[unit].text

    def answers(self, texts: list[str]) -> Tensor:
        """The mean log-probability of the last two tokens of each text, (texts,)."""
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            said = self.model(**inputs).logits[:, -3:-1].log_softmax(-1)
        return said.gather(-1, inputs["input_ids"][:, -2:, None])[..., 0].mean(1)

    def spans(self, units: range) -> list[tuple[Case, list[tuple[int, int]]]]:
        """Of each unit its case, and the characters of each of its tokens."""
        cases = [self.cases[unit] for unit in units]
        encoded = self.tokenizer([c.text for c in cases]).encodings
        return [(case, one.offsets) for case, one in zip(cases, encoded, strict=True)]

    def explained(self, model: Any, units: range, call: Mapping[str, Any]) -> list[Tensor]:
        """(1, tokens) of each, without padding, which is on the left."""
        texts = [self.cases[unit].text for unit in units]
        options = dict(call)
        known = self.spans(units)
        if options.pop("whole", False):
            most = max(len(spans) for _, spans in known)
            options["groups"] = [
                [[most - len(spans) + token for token in some] for some in case.owned(spans)]
                for case, spans in known
            ]
        e = relprop.explain(
            model, texts, span(-2, -1), processor=self.tokenizer, progress=False, **options
        )
        return [row[None, -len(at) :] for row, (_, at) in zip(e.scores, known, strict=True)]

    def comparisons(self, units: range) -> Iterator[tuple[str, list[Tensor]]]:
        for row, place in PLACES.items():
            maps = []
            for case, spans in self.spans(units):
                maps.append(torch.zeros(1, len(spans)))
                maps[-1][0, case.owned(spans)[place]] = 1
            yield row, maps

    def measured(self, units: range, row: str, maps: list[Tensor]) -> Iterator[list[Value]]:
        """Whether the best token is a source word (of rows that score single ones) and the best
        sentence is the source; what the log-probability loses without that sentence."""
        known = self.spans(units)
        cases = [case for case, _ in known]
        found = [case.best(one, at) for (case, at), (one,) in zip(known, maps, strict=True)]
        before = self.answers([case.text for case in cases])
        without = [case.without(best) for case, (_, best) in zip(cases, found, strict=True)]
        falls = before - self.answers(without)
        for unit, case, (word, best), fall in zip(units, cases, found, falls, strict=True):
            numbers = {
                "best token is a source word": math.nan if row in (WHOLE, *PLACES) else word,
                "best sentence is the source": float(best == case.fact),
                "fall without the best sentence": float(fall),
            }
            yield [Value(str(unit), row, column, number) for column, number in numbers.items()]
