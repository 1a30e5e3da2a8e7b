"""Words from a tokenizer's pieces: which pieces make one word, and the word as text.

Where a word begins is asked of the tokenizer, never looked up by its kind: its record of the text
(``Encoding.word_ids``) if there is one, and its own way back to text: two pieces belong to two
words if they come back with a space between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Word = tuple[str, list[int]]
STARTS, ENDS, CONTINUES = ("▁", "Ġ"), "</w>", "##"  # common signs, where only the pieces are known


@dataclass
class Pieces:
    """One sample's pieces. ``special``: which are no part of the text. ``ids``: the tokenizer's own
    word of each, if known."""

    pieces: Sequence[str]
    special: Sequence[bool]
    ids: Sequence[Any] | None = None
    tokenizer: Any = None

    def __post_init__(self) -> None:
        self.spaced = self.tokenizer is not None and " " in self.text(["x", "y"])
        self.starts = any(p.startswith(STARTS) for p in self.pieces)
        self.ends = any(p.endswith(ENDS) for p in self.pieces)

    def words(self) -> list[Word]:
        """The words in order, each with the positions of its pieces."""
        groups: list[list[int]] = []
        for i, special in enumerate(self.special):
            if special:
                continue
            if not groups or groups[-1][-1] != i - 1 or self.begins(i):
                groups.append([])
            groups[-1].append(i)
        return [(self.word([self.pieces[i] for i in group]), group) for group in groups]

    def word(self, pieces: list[str]) -> str:
        """The pieces of one word as text; by common signs where the tokenizer would put spaces
        inside it."""
        text = self.text(pieces).strip()
        return _joined(pieces).strip() if len(pieces) > 1 and re.search(r"\s", text) else text

    def begins(self, i: int) -> bool:
        """Whether piece ``i`` begins a word, given that the piece before it is text."""
        if self.ids is not None and self.ids[i] != self.ids[i - 1]:
            return True
        before, piece = self.pieces[i - 1], self.pieces[i]
        if self.tokenizer is None and (self.starts or self.ends or self.ids is not None):
            return piece.startswith(STARTS) or before.endswith(ENDS)
        if self.tokenizer is None:
            return not piece.startswith(CONTINUES)
        if self.spaced:
            # a piece is a word of its own unless its text, beside another, has lost its sign
            return self.ids is None and piece in self.text(["x", piece])
        return self._apart(before, piece)

    def _apart(self, before: str, piece: str) -> bool:
        """Whether the tokenizer puts a space between two pieces."""
        left, right = self.text([before]).strip(), self.text([piece]).strip()
        if not left or not right:
            return not right
        spaced = re.escape(left) + r"\s+" + re.escape(right)
        return re.fullmatch(spaced, self.text([before, piece]).strip()) is not None

    def text(self, pieces: list[str]) -> str:
        """Pieces back to text: by the tokenizer, else by the signs that pieces commonly bear."""
        if self.tokenizer is None:
            return _joined(pieces)
        return str(self.tokenizer.convert_tokens_to_string(pieces))


def _joined(pieces: list[str]) -> str:
    joined = "".join(p.removeprefix(CONTINUES) if i else p for i, p in enumerate(pieces))
    for sign in STARTS:
        joined = joined.replace(sign, " ")
    return joined.replace(ENDS, " ")


def words_from_record(encoding: Any, special: Sequence[bool], tokenizer: Any = None) -> list[Word]:
    """The words of a tokenizer's record of one sample: its pieces (``tokens``) and, from a fast
    one, the words they are of."""
    ids = None
    if hasattr(encoding, "word_ids"):
        ids = list(zip(encoding.sequence_ids, encoding.word_ids, strict=True))
    return Pieces(encoding.tokens, special, ids, tokenizer).words()


def words_from_ids(ids: Sequence[int], special: Sequence[bool], tokenizer: Any) -> list[Word]:
    """The words of one sample of which only the ids are known."""
    return Pieces(pieces_of(ids, tokenizer), special, None, tokenizer).words()


def pieces_of(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The pieces that ids stand for; of an id that the tokenizer has none for, as models have whose
    vocabulary is longer, the number."""
    found = zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)
    return [f"<{i}>" if piece is None else str(piece) for i, piece in found]
