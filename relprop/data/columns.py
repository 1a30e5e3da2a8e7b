"""From a row's columns to a sample: texts, words, labels, rationales; the same for tables and for
Hugging Face data sets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relprop.data.base import Sample, Span
from relprop.data.pieces import overlapping, split_words
from relprop.errors import InputError, message


def cell(row: Mapping[str, Any], column: str, where: str, option: str) -> Any:
    """What ``row`` holds in ``column``. Raises ``InputError`` naming the columns that are there,
    and the option that names another."""
    if column not in row:
        raise InputError(
            message(
                f"no column {column!r}; there are {', '.join(map(repr, row))}",
                at=where,
                then=[f"{option}=   # the column's name"]
                + (
                    [f"{option}=None   # there is none"]
                    if option in ("label", "key", "pair", "rationale")
                    else []
                ),
            )
        )
    return row[column]


def text_of(
    value: Any, column: str, where: str, number: int
) -> tuple[str, tuple[Span, ...] | None]:
    """A text, or a list of words, which are joined by single spaces; with the words' places, if
    they were given."""
    if isinstance(value, str):
        return value, None
    if not isinstance(value, Sequence) or not all(isinstance(word, str) and word for word in value):
        raise InputError(
            message(
                f"column {column!r} holds {_brief(value)}: a text, or a list of words, is needed",
                at=where,
            )
        )
    spans, at = [], 0
    for word in value:
        spans.append(Span(at, at + len(word), number))
        at += len(word) + 1
    return " ".join(value), tuple(spans)


def text_sample(
    row: Mapping[str, Any],
    where: str,
    key: str,
    label: int | None,
    *,
    text: str,
    pair: str | None,
    rationale: str | None,
) -> Sample:
    """The sample of a row by its columns: a text or a pair of texts, the words that it or its
    rationale tells apart, the rationale. Raises ``InputError``."""
    columns = [("text", text)] + ([("pair", pair)] if pair is not None else [])
    found = [
        text_of(cell(row, column, where, option), column, where, i)
        for i, (option, column) in enumerate(columns)
    ]
    texts, given = tuple(t for t, _ in found), tuple(words for _, words in found)
    inputs = texts[0] if pair is None else texts
    if rationale is None:
        return Sample(
            key,
            inputs,
            label,
            words=None if None in given else tuple(word for words in given for word in words or ()),
        )
    words, flags = rationale_of(cell(row, rationale, where, "rationale"), texts, given, where)
    return Sample(key, inputs, label, words=words, rationale=flags)


def rationale_of(
    value: Any, texts: Sequence[str], given: Sequence[tuple[Span, ...] | None], where: str
) -> tuple[tuple[Span, ...], tuple[bool, ...]]:
    """Words and rationale from a cell (a list, or one written as JSON).

    ``[0, 1, ...]``: for each word, 0 or 1, in one list for all texts; words are what the row gave
    as a list, else what stands between white space. ``[[start, end], ...]`` or ``[[start, end,
    text], ...]``: characters; words are then also told from punctuation (``split_words``). Raises
    ``InputError``.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise InputError(message(f"rationale {value!r} is no list in JSON", at=where)) from None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(
            message(
                (
                    f"rationale is {_brief(value)}: a list of 0 and 1 for words, or of "
                    "[start, end] in characters, is needed"
                ),
                at=where,
            )
        )
    if value and all(isinstance(v, (bool, int)) and v in (0, 1) for v in value):
        words = tuple(
            s
            for i, text in enumerate(texts)
            for s in (
                given[i] or tuple(Span(m.start(), m.end(), i) for m in re.finditer(r"\S+", text))
            )
        )
        if len(words) != len(value):
            raise InputError(
                message(
                    f"rationale is for {len(value)} words, and there are {len(words)}", at=where
                )
            )
        return words, tuple(map(bool, value))
    words = tuple(s for i, text in enumerate(texts) for s in (given[i] or split_words(text, i)))
    return words, overlapping(words, [_span(v, texts, where) for v in value])


def _span(value: Any, texts: Sequence[str], where: str) -> Span:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) not in (2, 3)
        or not all(isinstance(v, int) for v in value)
    ):
        raise InputError(
            message(
                (
                    f"rationale holds {_brief(value)}: 0 and 1, or [start, end], or [start, "
                    "end, text], is needed"
                ),
                at=where,
            )
        )
    span = Span(*value)
    if not 0 <= span.text < len(texts) or not 0 <= span.start < span.end <= len(texts[span.text]):
        raise InputError(
            message(
                (
                    f"rationale {list(value)}: characters outside the text, of "
                    f"{', '.join(str(len(t)) for t in texts)} characters"
                ),
                at=where,
            )
        )
    return span


def class_names(values: Iterable[Any]) -> tuple[str, ...] | None:
    """The names among labels, sorted; ``None`` if all are numbers. What is neither is refused where
    it is read (``class_index``)."""
    found = {
        value for value in values if isinstance(value, (bool, int, str)) and not unlabelled(value)
    }
    return (
        None
        if all(_number(value) is not None for value in found)
        else tuple(sorted(map(str, found)))
    )


def unlabelled(value: Any) -> bool:
    """Whether a label says that there is none: nothing, an empty text, or −1 (as in GLUE's test
    sets)."""
    return value is None or value == "" or _number(value) == -1


def class_index(value: Any, names: Sequence[str] | None, where: str) -> int | None:
    """The class of a label: a text by its name, else by its number. Raises ``InputError`` for one
    that is not among ``names``, or no class at all."""
    if names is not None and isinstance(value, str) and value in names:
        return names.index(value)
    if unlabelled(value):
        return None
    number = _number(value)
    if number is None or number < 0 or (names is not None and number >= len(names)):
        known = "a number from 0 on, or a name, is needed"
        if names:
            known = (
                f"the {len(names)} classes are "
                f"{', '.join(map(repr, names[:8]))}{', ...' if len(names) > 8 else ''}"
            )
        then = [
            "classes=(...)   # the model's class names, in its order",
            "label=None   # not to read it",
        ]
        raise InputError(message(f"label {value!r}: {known}", at=where, then=then))
    return number


def _number(value: Any) -> int | None:
    if isinstance(value, (bool, int)):
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value) else None


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
