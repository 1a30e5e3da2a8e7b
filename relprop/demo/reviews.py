"""Film reviews whose evidence is known word by word, so that "does the explanation fall on the
reason?" is a measurement: 1,000 of each of two seeds, in ``reviews.jsonl.gz``.

A grammar planted the evidence (``tools/reviews.py`` in the repository): a review is 1 to 3 claims
about the film, 0 to 2 about another film, and neutral sentences; the label is what the claims about
the film say, negations counted. The rationale is their sentiment words and the words that negate
them. No combination of negation, frame and sentiment word was ever seen in training.
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from relprop.data import Sample, split_words
from relprop.errors import NoSampleError, OptionError

LABELS = ("negative", "positive")
FILE = Path(__file__).with_name("reviews.jsonl.gz")
SEEDS, SHIPPED = (0, 30_000_001), 1000


@lru_cache(maxsize=1)
def _lines() -> list[dict[str, Any]]:
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Reviews:
    """Held-out reviews as a data set: ``relprop.data.Source``. The first ``n`` of 1,000, drawn from
    ``seed``: 0, or 30,000,001, those of docs/evaluation.md.

    >>> sample = Reviews(4)[1]
    >>> sample.inputs[:33], sample.label
    ('This picture is hardly thrilling.', 0)
    >>> [sample.inputs[w.start:w.end] for w, reason in zip(sample.words, sample.rationale) if reason]
    ['hardly', 'thrilling', 'by', 'no', 'means', 'triumph']
    """  # noqa: E501

    kind = "text"
    name = "film reviews"
    labels = LABELS

    def __init__(self, n: int, *, seed: int = 0) -> None:
        if not 1 <= n <= SHIPPED or seed not in SEEDS:
            given = f"n={n}, seed={seed}"
            seeds = " or ".join(map(str, SEEDS))
            raise OptionError(f"{given}: 1 to {SHIPPED} reviews of seed {seeds} are shipped")
        self.n, self.seed = n, seed

    def identity(self) -> dict[str, Any]:
        """Its name, size and seed."""
        return {"name": self.name, "n": self.n, "seed": self.seed}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.n:
            fact = f"there is no review {index}: the data set has {self.n}, counted from 0"
            raise NoSampleError(fact)
        line = _lines()[SHIPPED * SEEDS.index(self.seed) + index]
        words, reasons = split_words(line["text"]), set(line["reasons"])
        marked = tuple(i in reasons for i in range(len(words)))
        return Sample(str(index), line["text"], line["label"], words=words, rationale=marked)
