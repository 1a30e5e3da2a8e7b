"""Which methods find the words that an answer is copied from? Writes the table of docs/answers.md.

    python -m tools.lookup_table --lookups 50

Of each held-out lookup that the shipped model answers right, the last sentence of the answer is
explained: the mean log-probability of its two words that only one fact has. Counted is how often
the token of the documents with the largest score is one of these two words where they stand in the
documents, and how often the sentence with the largest sum is their fact; with bootstrap 95 %
intervals. Beside the methods: noise, and the sentence and the token at a fixed place.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
from relprop.demo.lookups import Lookup, make_lookups
from relprop.errors import RelpropError, first_line
from relprop.evaluation import bootstrap
from relprop.explanation.segments import owners, sentences
from relprop.methods import METHODS
from relprop.targets import span

PAGE = Path(__file__).parents[1] / "docs" / "answers.md"
BEGIN, END = "<!-- python -m tools.lookup_table -->", "<!-- end of the table -->"
SEED, BATCH = 20_000_003, 50
#: Of pictures alone; a max-flow per token, which takes minutes for each text.
LEFT_OUT = ("vit_cx", "attention_flow")


@dataclass(frozen=True)
class Case:
    """A lookup as text up to its last answer word. Spans of characters: of every sentence of the
    documents, which of them is the ``fact``, and its two ``words``."""

    text: str
    sentences: list[tuple[int, int]]
    fact: int
    words: list[tuple[int, int]]


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


def right_cases(model: Any, tokenizer: Any, count: int) -> tuple[list[Case], float]:
    """Those of ``count`` lookups whose last two answer words the model predicts, and their
    share."""
    cases = [case_of(lookup, tokenizer) for lookup in make_lookups(count, seed=SEED)]
    right = []
    for first in range(0, count, BATCH):
        some = cases[first : first + BATCH]
        inputs = tokenizer([c.text for c in some], padding=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**inputs).logits[:, -3:-1].argmax(-1)
        same = (best == inputs["input_ids"][:, -2:]).all(1).tolist()
        right += [case for case, is_right in zip(some, same, strict=True) if is_right]
    return right, len(right) / count


def hits(model: Any, tokenizer: Any, cases: list[Case], method: str, whole: bool) -> Tensor:
    """(cases, 2): whether the best token and the best sentence are the right ones. ``whole``:
    sentences are left out, not tokens."""
    rows = []
    for first in range(0, len(cases), BATCH):
        some = cases[first : first + BATCH]
        texts = [c.text for c in some]
        options: dict[str, Any] = {}
        if whole:
            record = tokenizer(texts, padding=True).encodings
            options["groups"] = [
                owners(c.sentences, e.offsets) for c, e in zip(some, record, strict=True)
            ]
        e = relprop.explain(
            model, texts, span(-2, -1), method=method, processor=tokenizer, **options
        )
        rows += [_hit(e, i, case) for i, case in enumerate(some)]
    return torch.tensor(rows, dtype=torch.float64)


def _hit(e: relprop.Explanation, i: int, case: Case) -> tuple[bool, bool]:
    texts = e.streams["input_ids"].texts
    assert texts is not None
    scores, spans = e.scores[i], texts[i].spans
    owned = owners(case.sentences, spans)
    inside = [t for tokens in owned for t in tokens]
    best = max(inside, key=lambda t: float(scores[t]))
    sums = [float(scores[tokens].sum()) for tokens in owned]
    return spans[best] in case.words, sums.index(max(sums)) == case.fact


def placed(cases: list[Case], place: int) -> Tensor:
    """The same for the sentence at a fixed place, the token being its last word."""
    rows = [((place % len(c.sentences)) == c.fact,) * 2 for c in cases]
    return torch.tensor(rows, dtype=torch.float64)


def table(count: int) -> str:
    """The table, with what was measured above it."""
    model, tokenizer = lookup_model(), lookup_tokenizer()
    cases, share = right_cases(model, tokenizer, count)
    lines = [
        f"{len(cases)} of {count} held-out lookups that the model answers right ({share:.1%}).",
        "",
        "| method | best token is a source word | best sentence is the source |",
        "|---|---|---|",
    ]
    refused = []
    for method in METHODS:
        if method in LEFT_OUT:
            continue
        try:
            found = hits(model, tokenizer, cases, method, False)
        except RelpropError as error:
            refused.append(f"`{method}` is not defined here: {first_line(error)}.")
            continue
        lines.append(_row(f"`{method}`", found))
        print(lines[-1], flush=True)
        if method == "leave_one_out":
            whole = hits(model, tokenizer, cases, method, True)
            lines.append(_row("`leave_one_out`, whole sentences (as `cite`)", whole[:, 1:], True))
            print(lines[-1], flush=True)
    lines.append(_row("always the first sentence", placed(cases, 0)[:, 1:], True))
    lines.append(_row("always the last sentence", placed(cases, -1)[:, 1:], True))
    return "\n".join([*lines, "", *refused])


def _row(name: str, found: Tensor, sentences_alone: bool = False) -> str:
    cells = [bootstrap(column) for column in found.T]
    said = [f"{100 * c.mean:.1f} % [{100 * c.low:.1f}, {100 * c.high:.1f}]" for c in cells]
    return f"| {name} | " + " | ".join(["–", *said] if sentences_alone else said) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lookups", type=int, default=50)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    written = table(asked.lookups)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{written}\n\n{END}{rest.split(END)[1]}")
