"""Citations as a table, lines in a terminal and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError
from relprop.views.escape import visible
from relprop.views.listed import framed

if TYPE_CHECKING:
    from relprop.explanation.citations import Citations, Passage


def top(citations: Citations, sentence: int, k: int) -> list[tuple[Passage, float]]:
    """The passages with the largest scores; of equal ones the earlier first."""
    count = len(citations)
    if not isinstance(sentence, int) or not -count <= sentence < count:
        raise OptionError(f"top({sentence!r}): the answer has {count} sentences")
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise OptionError(f"k={k!r}: a positive number of passages")
    scores = citations.scores[sentence].tolist()
    pairs = zip(citations.passages, scores, strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])[:k]


def rows(citations: Citations) -> list[dict[str, Any]]:
    """A row per sentence and passage, as plain values."""
    return [
        {
            "sentence": i,
            "said": sentence.text,
            "passage": j,
            "document": passage.document,
            "text": passage.text,
            "score": float(citations.scores[i, j]),
        }
        for i, sentence in enumerate(citations.sentences)
        for j, passage in enumerate(citations.passages)
    ]


def to_dataframe(citations: Citations) -> Any:
    """``rows`` as a pandas ``DataFrame``."""
    return framed(rows(citations), citations.explanations[0])


def to_json(citations: Citations, *, indent: int | None) -> str:
    """Passages, and each sentence with its log-probability and its scores."""
    first = citations.explanations[0]
    whole = {
        "method": first.method,
        "rules": first.rules,
        "passages": [{"document": p.document, "text": p.text} for p in citations.passages],
        "sentences": [
            {"text": sentence.text, "output": float(e.output[0]), "scores": row.tolist()}
            for sentence, e, row in zip(
                citations.sentences, citations.explanations, citations.scores, strict=True
            )
        ],
    }
    return json.dumps(whole, indent=indent, allow_nan=False)


def terminal(citations: Citations, *, k: int, raw: bool = False) -> str:
    """A line per sentence, and below it its strongest passages, each with its share of the sum of
    the sizes of the sentence's scores, or, ``raw``, its score."""
    lines = [repr(citations)]
    for i, sentence in enumerate(citations.sentences):
        lines.append(visible(sentence.text, 200))
        size = float(citations.scores[i].abs().sum()) or 1.0
        for passage, score in top(citations, i, k):
            text = visible(passage.text, 120)
            number = f"{score:>8.3g}" if raw else f"{score / size:>4.0%}"
            lines.append(f"  {number}  document {passage.document}: {text}")
    return "\n".join(lines)
