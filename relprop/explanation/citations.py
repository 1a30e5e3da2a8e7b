"""What ``cite`` gives: for every sentence of an answer, how much it rests on each passage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from relprop.error_boundary import guarded
from relprop.explanation.explanation import Explanation


class Passage(NamedTuple):
    """A part of a document: its number, its text, and the positions of its tokens in the input."""

    document: int
    text: str
    positions: list[int]


class Said(NamedTuple):
    """A sentence of an answer, and its first and last position in the text."""

    text: str
    first: int
    last: int


@guarded
@dataclass(frozen=True, eq=False)
class Citations:
    """How much each sentence of an answer rests on each passage of some documents.

    ``scores`` (sentences, passages): sums over the passage's tokens. ``explanations``: what they
    are taken from, one per sentence, whose target is the mean log-probability of its tokens.
    ``inputs``: what the model was given, prompt and answer; ``stream`` is the input that holds the
    documents. ``prompt``: how many positions stand before the answer.
    """

    passages: tuple[Passage, ...]
    sentences: tuple[Said, ...]
    scores: Tensor
    explanations: tuple[Explanation, ...]
    inputs: Mapping[str, Any] = field(repr=False)
    stream: str
    prompt: int

    @property
    def answer(self) -> str:
        """The answer's sentences as one text."""
        return " ".join(sentence.text for sentence in self.sentences)

    def top(self, sentence: int = 0, k: int = 3) -> list[tuple[Passage, float]]:
        """The ``k`` passages that a sentence rests on most, largest first. Raises ``OptionError``
        for a sentence that is not there."""
        from relprop.views.citations import top

        return top(self, sentence, k)

    def to_dataframe(self) -> Any:
        """A pandas ``DataFrame``, a row per sentence and passage. Raises ``OptionError`` without
        pandas (``relprop[pandas]``)."""
        from relprop.views.citations import to_dataframe

        return to_dataframe(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """Every sentence with the score of every passage, as JSON."""
        from relprop.views.citations import to_json

        return to_json(self, indent=indent)

    def to_html(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write one HTML file without any network: whichever sentence of the answer is chosen, the
        passages that it rests on."""
        from relprop.cards.answer_data import card_of_citations

        return card_of_citations(self, title).to_html(path)

    def show(self, *, k: int = 3, raw: bool = False) -> None:
        """Print each sentence of the answer with the ``k`` passages that it rests on most, each
        with its share of the sentence's scores, or, ``raw``, with its score."""
        from relprop.views.citations import terminal
        from relprop.views.terminal import print_text

        print_text(terminal(self, k=k, raw=raw))

    def _repr_html_(self) -> str:
        from relprop.cards.answer_data import card_of_citations

        return card_of_citations(self, None)._repr_html_()

    def __len__(self) -> int:
        return len(self.sentences)

    def __repr__(self) -> str:
        count = len({passage.document for passage in self.passages})
        return (
            f"Citations({len(self.sentences)} sentences, {len(self.passages)} passages of {count} "
            f"documents, method {self.explanations[0].method!r})"
        )
