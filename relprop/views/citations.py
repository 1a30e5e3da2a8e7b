"""Citations as a table, lines in a terminal, JSON and one HTML file."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError
from relprop.views.escape import markup, visible
from relprop.views.generation_page import SHADES, page
from relprop.views.html_tables import table
from relprop.writing import written

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
            "said": said.text,
            "passage": j,
            "document": passage.document,
            "text": passage.text,
            "score": float(citations.scores[i, j]),
        }
        for i, said in enumerate(citations.sentences)
        for j, passage in enumerate(citations.passages)
    ]


def to_dataframe(citations: Citations) -> Any:
    """``rows`` as a pandas ``DataFrame``."""
    try:
        import pandas
    except ImportError:
        raise OptionError('to_dataframe() needs pandas: pip install "relprop[pandas]"') from None
    frame = pandas.DataFrame(rows(citations))
    first = citations.explanations[0]
    frame.attrs = {"method": first.method, "rules": first.rules}
    return frame


def to_json(citations: Citations, *, indent: int | None) -> str:
    """Passages, and each sentence with its log-probability and its scores."""
    first = citations.explanations[0]
    whole = {
        "method": first.method,
        "rules": first.rules,
        "passages": [{"document": p.document, "text": p.text} for p in citations.passages],
        "sentences": [
            {"text": said.text, "output": float(e.output[0]), "scores": row.tolist()}
            for said, e, row in zip(
                citations.sentences, citations.explanations, citations.scores, strict=True
            )
        ],
    }
    return json.dumps(whole, indent=indent, allow_nan=False)


def terminal(citations: Citations, *, k: int) -> str:
    """A line per sentence, and below it its strongest passages."""
    lines = [repr(citations)]
    for i, said in enumerate(citations.sentences):
        lines.append(visible(said.text, 200))
        for passage, score in top(citations, i, k):
            text = visible(passage.text, 120)
            lines.append(f"  {score:>8.3g}  document {passage.document}: {text}")
    return "\n".join(lines)


def fragment(citations: Citations) -> str:
    """For a notebook, without script: a table of each sentence's three strongest passages."""
    found = [
        (said.text if not rank else "", f"{score:.3g}", passage.document, passage.text)
        for i, said in enumerate(citations.sentences)
        for rank, (passage, score) in enumerate(top(citations, i, 3))
    ]
    return table(("sentence", "score", "document", "passage"), found)


def write(citations: Citations, path: str | Path, *, title: str | None) -> Path:
    """Write the page. Raises ``InputError`` where no file can be written."""
    first = citations.explanations[0]
    made = page(
        title or "What each sentence of the answer rests on",
        "Point at a sentence of the answer, or reach it by the keyboard; a click holds it.",
        f"{first.method}, rules {first.rules}",
        [_section(citations)],
        [{"passages": [_shades(row) for row in citations.scores.tolist()]}],
    )
    with written(path, "the page") as beside:
        Path(beside).write_text(made, encoding="utf-8")
    return Path(path)


def _shades(row: list[float]) -> list[int]:
    """Scores as whole shades of the strongest."""
    strongest = max(map(abs, row), default=0.0) or 1.0
    return [round(score / strongest * SHADES) for score in row]


def _section(citations: Citations) -> str:
    """The documents, their passages in order, and the answer, whose sentences are buttons."""
    parts = ['<section data-sample="0"><div data-input="passages">']
    for document, passages in groupby(citations.passages, lambda p: p.document):
        spans = " ".join(f"<bdi>{markup(p.text, 10_000)}</bdi>" for p in passages)
        parts.append(f'<p class="tokens"><small>{document}</small> {spans}</p>')
    buttons = " ".join(
        f'<button type="button" aria-pressed="false">{markup(said.text, 10_000)}</button>'
        for said in citations.sentences
    )
    return "".join([*parts, f'</div><p class="tokens">{buttons}</p></section>'])
