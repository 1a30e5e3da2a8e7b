"""Words of a text and the tokens each is made of, by characters: what brings rationales given for
words to a model's tokens."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from relprop.data.base import Word
from relprop.error_boundary import guarded
from relprop.errors import InputError


@guarded
def split_words(text: str, number: int = 0) -> tuple[Word, ...]:
    """The words of ``text`` in order: runs between white space; punctuation and symbols stand
    alone. ``number``: which text of its sample it is, of a pair 0 or 1.

    Marks that combine with the character before them (accents, vowel signs, joiners) stay with it.

    >>> text = "It's fine, really."
    >>> [text[word.start:word.end] for word in split_words(text)]
    ['It', "'", 's', 'fine', ',', 'really', '.']
    """
    words: list[list[int]] = []
    grows = False  # whether the next letter goes on with the last word
    for i, character in enumerate(text):
        category = unicodedata.category(character)
        joined = bool(words) and words[-1][1] == i
        if character.isspace():
            grows = False
        elif joined and (
            category[0] == "M" or category == "Cf" or (grows and category[0] not in "PS")
        ):
            words[-1][1] = i + 1
        else:
            words.append([i, i + 1])
            grows = category[0] not in "PS"
    return tuple(Word(start, end, number) for start, end in words)


def overlapping(words: Sequence[Word], spans: Sequence[Word]) -> tuple[bool, ...]:
    """For each word whether it shares a character with any of ``spans``."""
    return tuple(
        any(w.text == s.text and max(w.start, s.start) < min(w.end, s.end) for s in spans)
        for w in words
    )


@guarded
def word_pieces(words: Sequence[Word], encoding: Any, row: int = 0) -> tuple[tuple[int, ...], ...]:
    """For each word the positions of the tokens that hold any of its characters, in order, in row
    ``row`` of a fast tokenizer's output.

    ``encoding``: what ``tokenizer(texts, ...)`` gave (a ``BatchEncoding``), padded or cut off as
    the model takes it. A word that was cut off has no tokens; one that was cut in two has those
    that are left. A token of two words (``'t`` where ``'`` and ``t`` are words) is in both. Special
    tokens are in none. Raises ``InputError`` if the tokenizer does not say where in the text its
    tokens are.
    """
    records = getattr(encoding, "encodings", None)
    if not records:
        then = [
            "AutoTokenizer.from_pretrained(name, use_fast=True)",
            "tokenizer(texts, ...)   # its whole output, not only input_ids",
        ]
        fact = "the tokenizer does not say which characters its tokens are made of"
        raise InputError(f"{fact}: it is no fast one", then=then)
    if not 0 <= row < len(records):
        raise InputError(f"row {row} of an encoding of {len(records)} texts")
    at = _tokens_at(records[row])
    return tuple(
        tuple(sorted({t for c in range(w.start, w.end) for t in at.get((w.text, c), ())}))
        for w in words
    )


def _tokens_at(record: Any) -> dict[tuple[int, int], list[int]]:
    """By text and character the tokens that hold it."""
    at: dict[tuple[int, int], list[int]] = defaultdict(list)
    places = zip(record.sequence_ids, record.offsets, strict=True)
    for token, (number, (start, end)) in enumerate(places):
        if number is not None:
            for character in range(start, end):
                at[number, character].append(token)
    return at
