"""Which methods find the words that an answer is copied from?

Of each held-out lookup that the shipped model answers right, the last sentence of the answer is
explained: the mean log-probability of its two words that only one fact of the documents has. The
truth is these two words where they stand in the documents, and the sentence that holds them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
from relprop.demo.lookups import Lookup, make_lookups
from relprop.errors import RelpropError, first_line
from relprop.explanation.segments import owners, sentences
from relprop.targets import span
from tools.known_answers.rows import METHODS, block
from tools.known_answers.study import Column, Value

AT_ONCE = 50
WHOLE = "leave_one_out, whole sentences (as cite)"
#: Beside the rows of every study; a max-flow per token takes minutes for each text.
_NAMED: dict[str, Mapping[str, Any]] = {
    name: {"method": name}
    for name in (
        *("gradcam_features", "attention_norm", "value_zeroing", "integrated_gradients"),
        *("smoothgrad", "gradient_shap", "deeplift", "occlusion", "leave_one_out", "random"),
    )
}
MORE = _NAMED | {WHOLE: {"method": "leave_one_out"}}
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


@dataclass
class Lookups:
    """The study. A unit is a lookup that is answered right, and its last answer the one sample."""

    count: int = 100
    seed: int = 20_000_003
    name: ClassVar[str] = "lookups"
    title: ClassVar[str] = "Lookups in documents (a small Llama): the fact that is repeated"
    units: ClassVar[str] = "lookups"
    samples: ClassVar[str] = "answers"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("best token is a source word", True, 100),
        Column("best sentence is the source", True, 100),
        Column("fall without the best sentence"),
        Column("seconds", False),
    )

    def __post_init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.methods = METHODS | MORE
        self.unit = block(self.make, AT_ONCE)

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

    def identity(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed, "rows": list(self.rows)}

    def __call__(self, unit: int) -> list[Value]:
        return [Value(str(unit), *found) for found in self.unit(unit)]

    def answers(self, texts: list[str]) -> Tensor:
        """The mean log-probability of the last two tokens of each text, (texts,)."""
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            said = self.model(**inputs).logits[:, -3:-1].log_softmax(-1)
        return said.gather(-1, inputs["input_ids"][:, -2:, None])[..., 0].mean(1)

    def make(self, first: int) -> list[list[tuple[str, str, float]]]:
        some = self.cases[first : first + AT_ONCE]
        found: list[list[tuple[str, str, float]]] = [[] for _ in some]
        whole = self.answers([c.text for c in some])
        for row, hits, seconds in self.hits(some):
            left = [c.without(best) for c, (_, best) in zip(some, hits, strict=True)]
            falls = whole - self.answers(left)
            for i, (case, (token, best)) in enumerate(zip(some, hits, strict=True)):
                found[i] += [
                    (row, "best token is a source word", token),
                    (row, "best sentence is the source", float(best == case.fact)),
                    (row, "fall without the best sentence", float(falls[i])),
                    (row, "seconds", seconds),
                ]
        return found

    def hits(self, some: list[Case]) -> Iterator[tuple[str, list[tuple[float, int]], float]]:
        """Of each row: whether the best token is a source word, and the best sentence, of each
        case; seconds per case."""
        for row, call in self.methods.items():
            try:
                self.explained(some, row, call)  # once, so that no capture is in the seconds
                start = time.process_time()
                hits = self.explained(some, row, call)
            except RelpropError as error:
                self.refused[row] = first_line(error)
                continue
            yield row, hits, (time.process_time() - start) / len(some)
        for row, place in PLACES.items():
            yield row, [(torch.nan, place % len(c.sentences)) for c in some], torch.nan

    def explained(
        self, some: list[Case], row: str, call: Mapping[str, Any]
    ) -> list[tuple[float, int]]:
        texts = [c.text for c in some]
        options = dict(call)
        if row == WHOLE:
            record = self.tokenizer(texts, padding=True).encodings
            options["groups"] = [
                owners(c.sentences, e.offsets) for c, e in zip(some, record, strict=True)
            ]
        e = relprop.explain(
            self.model, texts, span(-2, -1), processor=self.tokenizer, progress=False, **options
        )
        return [best(e, i, case, row != WHOLE) for i, case in enumerate(some)]


def best(e: relprop.Explanation, i: int, case: Case, tokens: bool) -> tuple[float, int]:
    """Whether the best token of the documents is a source word (``tokens``: whether single ones
    were scored), and the number of the best sentence."""
    texts = e.streams["input_ids"].texts
    assert texts is not None
    scores, spans = e.scores[i], texts[i].spans
    owned = owners(case.sentences, spans)
    one = max((t for some in owned for t in some), key=lambda t: float(scores[t]))
    sums = [float(scores[some].sum()) for some in owned]
    return float(spans[one] in case.words) if tokens else torch.nan, sums.index(max(sums))
