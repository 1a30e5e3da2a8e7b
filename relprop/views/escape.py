"""Token text as it may be shown: nothing in it can act on a page, a terminal, a figure or the text
beside it.

Tokens are input, and input may be hostile: markup, terminal escapes, marks that turn the direction
of writing round, ten thousand characters.
"""

from __future__ import annotations

import html
import unicodedata

LONGEST = 80
JOINERS = "\u200c\u200d"  # zero-width joiners are letters' business (Persian, Indic scripts, emoji)
ACTING = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # kinds of characters that are no text
COMBINING = 4  # marks on one letter; no script needs more, and piles of them cover the neighbours


def visible(text: str, longest: int = LONGEST) -> str:
    r"""``text`` with every control, format, private and lone surrogate character written out
    (``\x1b``, ``\u202e``), and at most ``longest`` characters.

    The middle of a longer one is left out: ``first…last``. Spaces and letters of any script stay as
    they are.

    >>> visible("a\x1b[31mb\u202ec"), visible("x" * 10_000, 9)
    ('a\\x1b[31mb\\u202ec', 'xxxxx…xxx')
    """
    text = str(text)
    if len(text) > longest:
        text = f"{text[: (longest + 1) // 2]}…{text[len(text) - (longest - 2) // 2 :]}"
    shown, marks = [], 0
    for letter in text:
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind[0] == "M" else 0
        if marks <= COMBINING:
            shown.append(_written(letter) if kind in ACTING and letter not in JOINERS else letter)
    return "".join(shown)


def printable(text: str) -> str:
    r"""``text`` of any length, line by line as ``visible`` has it: what commands print beside the
    pictures that they draw.

    >>> printable("written: a\x1b[31m.png\nnext")
    'written: a\\x1b[31m.png\nnext'
    """
    kept = str(text)
    return "".join(
        letter if letter in "\n\t" or letter in JOINERS or not _acts(letter) else _written(letter)
        for letter in kept
    )


def _acts(letter: str) -> bool:
    return unicodedata.category(letter) in ACTING


def markup(text: str, longest: int = LONGEST) -> str:
    """``visible`` text for HTML: every character with a meaning there is escaped, quotes
    included."""
    return html.escape(visible(text, longest), quote=True)


def _written(letter: str) -> str:
    return (
        letter.encode("unicode_escape").decode("ascii")
        if ord(letter) < 0x110000 and not 0xD800 <= ord(letter) < 0xE000
        else f"\\u{ord(letter):04x}"
    )
