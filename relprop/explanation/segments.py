"""The same explanation by larger parts of a text: sentences, lines, paragraphs, turns of a chat, or
stretches of characters that are given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from relprop.adapters.texts import Span, Text
from relprop.errors import OptionError, nearest
from relprop.explanation.tokens import TokenScores

if TYPE_CHECKING:
    from relprop.explanation.explanation import Explanation

#: Where a sentence may end: behind its mark and what closes with it, before white space; behind
#: marks that need no white space.
END = re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s)|[。！？]+["”’」』）]*""")
#: What a full stop behind does not end a sentence: a letter alone, and what is commonly shortened.
SHORT = re.compile(
    r"(?:^|[\s(\[\"'“])(?:[A-Za-z]|[A-Za-z]\.[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|cf|al|no|"
    r"fig|figs|eq|vol|pp|inc|ltd|co|approx|dept)\.$",
    re.IGNORECASE,
)


def segmented(explanation: Explanation, by: Any) -> Explanation:
    """``explanation`` with segments for words. Raises ``OptionError``."""
    texts = [name for name, stream in explanation.streams.items() if stream.texts]
    if not texts:
        raise OptionError(
            "segments() needs to know the text",
            then=["relprop.explain(model, text, processor=tokenizer)"],
        )
    if len(texts) > 1 and not isinstance(by, str):
        explanation._only("segments(pairs)")  # which says how to choose one
    streams = {
        name: stream if stream.texts is None else _of(stream, by)
        for name, stream in explanation.streams.items()
    }
    return replace(explanation, streams=streams)


def _of(stream: TokenScores, by: Any) -> TokenScores:
    texts = stream.texts or []
    spans = _given(by, len(texts)) if not isinstance(by, str) else None
    words = []
    for sample, text in enumerate(texts):
        found = spans[sample] if spans is not None else split(text, by)
        content = stream.content[sample].tolist()
        owned = owners(
            found, [s if c else (0, 0) for s, c in zip(text.spans, content, strict=True)]
        )
        made = list(zip(found, owned, strict=True))
        if spans is not None and (empty := [span for span, tokens in made if not tokens]):
            raise OptionError(
                f"segments(): no token of sample {sample} is of characters {empty[0][0]} to "
                f"{empty[0][1]}; its text has {len(text.text)}, and what is special or padding "
                "belongs to no segment"
            )
        words.append([(text.text[a:b], tokens) for (a, b), tokens in made if tokens])
    return replace(stream, words=words)


def split(text: Text, by: str) -> list[Span]:
    """The segments of a text. Raises ``OptionError`` for an unknown kind, and for turns of what is
    no chat."""
    if by == "turns":
        if not text.turns:
            raise OptionError(
                "segments('turns'): the text is no chat of the tokenizer's template",
                then=["tokenizer.apply_chat_template(messages, tokenize=False)"],
            )
        return text.turns
    if by not in KINDS:
        known = [*KINDS, "turns"]
        fact = f"segments({by!r}): one of {', '.join(map(repr, known))}, or pairs of characters"
        raise OptionError(fact, then=nearest(by, known))
    parts = text.turns or [(0, len(text.text))]  # nothing reaches from one turn into the next
    return [(a + x, a + y) for a, b in parts for x, y in KINDS[by](text.text[a:b])]


def _pieces(pattern: str) -> Callable[[str], Iterator[Span]]:
    """What stands between matches of a pattern, white space at both ends left out."""

    def cut(text: str) -> Iterator[Span]:
        at = 0
        for mark in [*re.finditer(pattern, text), None]:
            yield from _trimmed(text, at, mark.start() if mark else len(text))
            at = mark.end() if mark else at

    return cut


def _trimmed(text: str, start: int, end: int) -> Iterator[Span]:
    piece = text[start:end]
    if piece.strip():
        start += len(piece) - len(piece.lstrip())
        yield start, start + len(piece.strip())


def sentences(text: str) -> Iterator[Span]:
    """The sentences of a text; one ends at the latest where its line does."""
    cased = text != text.lower()
    for first, last in KINDS["lines"](text):
        at = first
        for mark in END.finditer(text, first, last):
            if not _goes_on(text, at, mark.end(), last, cased):
                yield from _trimmed(text, at, mark.end())
                at = mark.end()
        yield from _trimmed(text, at, last)


def _goes_on(text: str, start: int, end: int, last: int, cased: bool) -> bool:
    """Whether the sentence goes on behind a mark: in lower case, where the text has capitals at
    all, or after something shortened."""
    rest = text[end:last].lstrip()
    return (cased and rest[:1].islower()) or SHORT.search(text[start:end]) is not None


KINDS: dict[str, Callable[[str], Iterator[Span]]] = {
    "sentences": sentences,
    "lines": _pieces(r"\n"),
    "paragraphs": _pieces(r"\n[^\S\n]*\n\s*"),
}


def owners(segments: Sequence[Span], tokens: Sequence[Span]) -> list[list[int]]:
    """For each segment the tokens of which it has more characters than any other segment."""
    found: list[list[int]] = [[] for _ in segments]
    for token, (start, end) in enumerate(tokens):
        shared = [min(b, end) - max(a, start) for a, b in segments]
        most = max(shared, default=0)
        if most > 0:
            found[shared.index(most)].append(token)
    return found


def _given(by: Any, samples: int) -> list[list[Span]]:
    """Pairs of characters, of all samples or one list for each. Raises ``OptionError``."""
    try:
        rows = (
            [[*map(tuple, by)]] * samples if _are_pairs(by) else [[*map(tuple, row)] for row in by]
        )
        right = len(rows) == samples and all(_are_pairs(row) for row in rows)
    except TypeError:
        right = False
    if not right:
        raise OptionError(
            f"segments({by!r}): pairs (first character, one after the last), or a list of them for "
            f"each of {samples} samples"
        )
    for row in rows:
        ordered = sorted(row)
        if any(a[1] > b[0] for a, b in pairwise(ordered)):
            raise OptionError(f"segments({by!r}): segments overlap")
    return rows


def _are_pairs(row: Any) -> bool:
    """Whether it is a list of pairs of characters in order."""
    return len(row) > 0 and all(
        isinstance(pair, Sequence)
        and len(pair) == 2
        and all(isinstance(k, int) and not isinstance(k, bool) for k in pair)
        and 0 <= pair[0] < pair[1]
        for pair in row
    )
