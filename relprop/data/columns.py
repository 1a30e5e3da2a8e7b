"""From a row's columns to a sample: texts, words, labels, rationales; the same for tables and for
Hugging Face data sets."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relprop.data.base import Sample, Word
from relprop.data.pieces import overlapping, split_words
from relprop.errors import InputError

OPTIONAL = ("label", "key", "pair", "rationale")
MARKS = "a list of 0 and 1 for words, or of [start, end] in characters, is needed"
NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
SPANS = "0 and 1, or [start, end], or [start, end, text], is needed"


@dataclass(frozen=True)
class Row:
    """``values`` by column, and ``where`` in the data set they stand, for messages."""

    values: Mapping[str, Any]
    where: str

    def cell(self, column: str, option: str) -> Any:
        """What stands in ``column``. Raises ``InputError`` naming the columns that are there, and
        the option that names another."""
        if column in self.values:
            return self.values[column]
        then = [f"{option}=   # the column's name"]
        if option in OPTIONAL:
            then.append(f"{option}=None   # there is none")
        there = ", ".join(map(repr, self.values))
        raise self.refused(f"no column {column!r}; there are {there}", then)

    def refused(self, fact: str, then: Sequence[str] = ()) -> InputError:
        """The error that states a fact of this row."""
        return InputError(fact, at=self.where, then=then)

    def label(
        self, column: str | None, names: Sequence[str] | None, *, coded: bool = False
    ) -> int | None:
        """The class in ``column``, if there is one: by its name, however a file writes it, else by
        its number; ``coded``: a whole number there is a place among the names, whatever they are.
        Raises ``InputError`` for one that is not among ``names``, or no class at all."""
        if column is None:
            return None
        value = self.cell(column, "label")
        named = () if names is None or (coded and isinstance(value, int)) else names
        number = _number(value)
        whole = None if number is None or not number.is_integer() else int(number)
        text = "" if value is None else str(value)
        bare = text.strip()
        truths = [bare.lower(), bare.title()] if _is_truth(value) else []
        for name in (text, bare, str(whole), *truths):
            if name in named:
                return named.index(name)
        if unlabelled(value):
            return None
        if whole is not None and whole >= 0 and (names is None or whole < len(names)):
            return whole
        known = "a number from 0 on, or a name, is needed"
        if _is_several(value):
            known += ", not several"
        elif names:
            more = ", ..." if len(names) > 8 else ""
            known = f"the {len(names)} classes are {', '.join(map(repr, names[:8]))}{more}"
        then = [
            "classes=(...)   # the model's class names, in its order",
            "label=None   # not to read it",
        ]
        raise self.refused(f"label {value!r}: {known}", then)

    def text(self, column: str, option: str, number: int) -> Text:
        """Text ``number`` of a sample: a text, or a list of words, which are joined by single
        spaces."""
        value = self.cell(column, option)
        if isinstance(value, str):
            return Text(value)
        if not _is_list(value) or not all(isinstance(word, str) and word for word in value):
            fact = f"column {column!r} holds {_brief(value)}"
            raise self.refused(f"{fact}: a text, or a list of words, is needed")
        spans, at = [], 0
        for word in value:
            spans.append(Word(at, at + len(word), number))
            at += len(word) + 1
        return Text(" ".join(value), tuple(spans))


@dataclass(frozen=True)
class Text:
    """A text, and its words, if the row told them."""

    text: str
    words: tuple[Word, ...] | None = None


@dataclass(frozen=True)
class TextColumns:
    """The columns of a data set of texts, by what they are for."""

    text: str
    pair: str | None
    rationale: str | None

    def sample(self, row: Row, key: str, label: int | None) -> Sample:
        """A text or a pair of texts, the words that it or its rationale tells apart, the rationale.
        Raises ``InputError``."""
        texts = [row.text(self.text, "text", 0)]
        if self.pair is not None:
            texts.append(row.text(self.pair, "pair", 1))
        inputs = texts[0].text if self.pair is None else tuple(t.text for t in texts)
        if self.rationale is not None:
            words, marked = rationale_of(row, row.cell(self.rationale, "rationale"), texts)
            return Sample(key, inputs, label, words=words, rationale=marked)
        if any(t.words is None for t in texts):
            return Sample(key, inputs, label)
        return Sample(key, inputs, label, words=tuple(w for t in texts for w in t.words or ()))


def rationale_of(
    row: Row, value: Any, texts: Sequence[Text]
) -> tuple[tuple[Word, ...], tuple[bool, ...]]:
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
            raise row.refused(f"rationale {value!r} is no list in JSON") from None
    if not _is_list(value):
        raise row.refused(f"rationale is {_brief(value)}: {MARKS}")
    if not value or not all(isinstance(v, (bool, int)) and v in (0, 1) for v in value):
        spans = [_span(row, v, texts) for v in value]
        words = tuple(w for i, t in enumerate(texts) for w in t.words or split_words(t.text, i))
        return words, overlapping(words, spans)
    words = tuple(w for i, t in enumerate(texts) for w in t.words or _between_spaces(t.text, i))
    if len(words) != len(value):
        raise row.refused(f"rationale is for {len(value)} words, and there are {len(words)}")
    return words, tuple(map(bool, value))


def _between_spaces(text: str, number: int) -> tuple[Word, ...]:
    return tuple(Word(m.start(), m.end(), number) for m in re.finditer(r"\S+", text))


def _span(row: Row, value: Any, texts: Sequence[Text]) -> Word:
    numbers = _is_list(value) and all(isinstance(v, int) for v in value)
    if not numbers or len(value) not in (2, 3):
        raise row.refused(f"rationale holds {_brief(value)}: {SPANS}")
    span = Word(*value)
    if 0 <= span.text < len(texts) and 0 <= span.start < span.end <= len(texts[span.text].text):
        return span
    sizes = f"{', '.join(str(len(t.text)) for t in texts)} characters"
    raise row.refused(f"rationale {list(value)}: characters outside the text, of {sizes}")


def class_names(values: Iterable[Any]) -> tuple[str, ...] | None:
    """The names among labels, sorted; ``None`` if all are numbers. What is neither is refused where
    it is read (``Row.label``). Raises ``InputError`` for numbers that are no classes: with
    fractions, or −1 and 1 alone."""
    found = [v for v in values if not _is_missing(v) and not _is_several(v)]
    numbers = {_number(value) for value in found}
    if None in numbers:
        return tuple(sorted({str(v).strip() for v in found if not unlabelled(v)}))
    if fractions := [v for v in found if not (_number(v) or 0.0).is_integer()]:
        names = tuple(sorted(set(map(str, found))))
        named = [f"classes={names}   # if they are names"] if len(names) <= 8 else []
        fact = f"labels are numbers with fractions ({fractions[0]!r})"
        then = ["label=None   # not to read them", *named]
        raise InputError(f"{fact}, as of a regression, no classes", then=then)
    if numbers == {-1.0, 1.0}:
        then = [
            "classes=('-1', '1')   # it is a class, the model's first",
            "classes=('0', '1')   # it says that there is no label",
        ]
        raise InputError("labels are -1 and 1: is -1 a class, or no label?", then=then)
    return None


def unlabelled(value: Any) -> bool:
    """Whether a label says that there is none: nothing, an empty text, NaN, or −1 (as in GLUE's
    test sets)."""
    return _is_missing(value) or _number(value) == -1


def _is_missing(value: Any) -> bool:
    return value is None or str(value).strip().lower() in ("", "nan")


def _is_truth(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "false")


def _is_several(value: Any) -> bool:
    """Whether it is no single value, as it is or as JSON, Python or NumPy writes one."""
    if not isinstance(value, str):
        return not isinstance(value, (bool, int, float))
    if re.fullmatch(r"\[[\s0-9.,+-]*\]", value):
        return True
    try:
        return value[:1] in tuple("[({") and not isinstance(literal_eval(value), str)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _number(value: Any) -> float | None:
    """A number, or a text that is one in full: 2, "2", "2.0", "+1", "1e1"; 0 and 1 for what is true
    or not."""
    if _is_truth(value):
        return float(str(value).strip().lower() == "true")
    return float(str(value)) if re.fullmatch(NUMBER, str(value).strip()) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
