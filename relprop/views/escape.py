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
        marks = marks + 1 if unicodedata.category(letter)[0] == "M" else 0
        if marks <= COMBINING:
            shown.append(_harmless(letter, JOINERS))
    return "".join(shown)


def printable(text: str) -> str:
    r"""``text`` of any length, line by line as ``visible`` has it: what commands print beside the
    pictures that they draw.

    >>> printable("written: a\x1b[31m.png\nnext")
    'written: a\\x1b[31m.png\nnext'
    """
    return "".join(_harmless(letter, f"\n\t{JOINERS}") for letter in str(text))


def markup(text: str, longest: int = LONGEST) -> str:
    """``visible`` text for HTML: every character with a meaning there is escaped, quotes
    included."""
    return html.escape(visible(text, longest), quote=True)


def _harmless(letter: str, kept: str) -> str:
    """The letter, or, where it could act and is none of ``kept``, how Python writes it."""
    acts = unicodedata.category(letter) in ACTING and letter not in kept
    return letter.encode("unicode_escape").decode("ascii") if acts else letter
