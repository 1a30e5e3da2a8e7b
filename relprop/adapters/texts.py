"""A sample's text, and which of its characters each position was made from: by the tokenizer's
record of it, else by the way back from ids to text. And where the turns of a chat stand in it, by
the tokenizer's own chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

Span = tuple[int, int]
UNFINISHED = "\ufffd"  # what a part of a character is decoded to
_known: dict[str, str] = {}
"""The pattern of each template that has been looked at."""
WINDOW = 6  # tokens that are decoded together with the next one
SAID = tuple(f"7{name}7" for name in ("system", "first", "answer", "second"))
"""What the turns say whose template is looked at: nothing that a template would change."""


class Text(NamedTuple):
    """``text`` of one sample; ``spans``: of each position its characters, first and one after the
    last, (0, 0) for none; ``turns``: where each turn of a chat stands."""

    text: str
    spans: list[Span]
    turns: list[Span]


def recorded(encoding: Any, text: str, row: Sequence[int] | None = None) -> Text | None:
    """A text by a fast tokenizer's record of it; ``None`` if the record is of another text.
    ``row``: the ids in which it stands, behind padding, as far as it goes; ``None`` if it does
    not."""
    spans = [(int(a), int(b)) for a, b in getattr(encoding, "offsets", ())]
    parts = {p for p in getattr(encoding, "sequence_ids", ()) if p is not None}
    fits = spans and max(b for _, b in spans) <= len(text) and parts <= {0}
    ids = list(getattr(encoding, "ids", row or ()))
    starts = range(0 if row is None else len(row) - len(ids) + 1)
    at = next((k for k in starts if row and row[k : k + len(ids)] == ids), None)
    if not fits or (row is not None and (at is None or len(set(row[:at])) > 1)):
        return None
    return Text(text, [(0, 0)] * (at or 0) + spans, [])


def written(encoding: Any, tokenizer: Any) -> str:
    """As much of a text as a fast tokenizer's record of it knows, each character where it stood:
    what no token was made from, as white space may be, is a space."""
    spans = [(int(a), int(b)) for a, b in getattr(encoding, "offsets", ())]
    made = decoded(encoding.ids, tokenizer) if spans else Text("", [], [])
    chars = [" "] * max((b for _, b in spans), default=0)
    for (a, b), (first, end) in zip(spans, made.spans, strict=True):
        piece = made.text[first:end]
        piece = piece if len(piece) <= b - a else piece.strip()
        chars[a:b] = piece.rjust(b - a) if len(piece) <= b - a else UNFINISHED * (b - a)
    return "".join(chars)


def decoded(ids: Sequence[int], tokenizer: Any, known: Text | None = None) -> Text:
    """The text that ids stand for, as it was written as far as that is ``known``."""
    text, spans, waiting = ("", list[Span](), 0) if known is None else (*known[:2], 0)
    spans = list(spans)

    def read(some: Sequence[int]) -> str:
        return str(tokenizer.decode(list(some), clean_up_tokenization_spaces=False))

    for i in range(len(spans), len(ids)):
        first = max(0, i - WINDOW)
        old, new = read(ids[first:i]).rstrip(UNFINISHED), read(ids[first : i + 1])
        added = new[_alike(old, new) :]
        done = not new.endswith(UNFINISHED)
        spans.append((len(text), len(text) + len(added) * done))
        if done:
            text += added
            spans[i - waiting : i] = [spans[i]] * waiting
        waiting = 0 if done else waiting + 1
    return Text(text, spans, [])


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with that are the same."""
    both = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(both) if a != b), min(len(one), len(other)))


def with_turns(text: Text, tokenizer: Any) -> Text:
    """The same with its turns, where the tokenizer has a chat template and the text is made by
    it."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return text
    if template not in _known:
        _known[template] = _marks(tokenizer)
    marks = _known[template]
    return text._replace(turns=_between(text.text, marks)) if marks else text


def _marks(tokenizer: Any) -> str:
    """A pattern of all that the template writes between turns, before the first and behind the
    last; "" where it writes nothing or takes no chat."""
    roles = ("system", "user", "assistant", "user")
    said = [{"role": role, "content": text} for role, text in zip(roles, SAID, strict=True)]
    chats = (said[1:], said[1:3], said[1:2], said[:2])
    both = product(chats, (False, True))
    found = {mark for chat, go_on in both for mark in _around(tokenizer, chat, go_on)}
    marks = sorted((m for m in found if not _holds_a_turn(m, found)), key=len, reverse=True)
    return "|".join(map(_loose, marks))


def _around(tokenizer: Any, chat: list[dict[str, str]], go_on: bool) -> set[str]:
    """What a template writes around the turns of a chat; nothing if it refuses the chat."""
    contents = [turn["content"] for turn in chat]
    try:
        made = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=go_on))
    except Exception:  # templates refuse chats by errors of any kind
        return set()
    if not all(text in made for text in contents):
        return set()
    return {mark for mark in re.split("|".join(contents), made) if mark.strip()}


def _holds_a_turn(mark: str, marks: set[str]) -> bool:
    """Whether a turn of the template's own stands in a mark, as a system's that nobody gave."""
    return any(
        mark.startswith(before)
        and mark.endswith(behind)
        and mark[len(before) : -len(behind)].strip()
        for before in marks - {mark}
        for behind in marks - {mark}
    )


def _loose(mark: str) -> str:
    """A pattern of a mark, whatever white space stands in it."""
    return r"\s*".join(re.escape(c) for c in mark if not c.isspace())


@lru_cache(maxsize=64)
def _between(text: str, marks: str) -> list[Span]:
    """What stands between the marks; nothing in a text without any."""
    spans, at = list[Span](), 0
    found = list(re.finditer(marks, text))
    for mark in [*found, None]:
        end = mark.start() if mark else len(text)
        piece = text[at:end]
        if piece.strip() and found:
            start = at + len(piece) - len(piece.lstrip())
            spans.append((start, start + len(piece.strip())))
        at = mark.end() if mark else end
    return spans
