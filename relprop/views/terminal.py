"""An explanation in a terminal: words on shaded ground, or a map of half blocks; where there is no
colour, marks below the words or shades of ink."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.cells import cell_len

from relprop.errors import OptionError
from relprop.views.audit import concerns, heading
from relprop.views.colours import colours, ink, shade
from relprop.views.escape import visible
from relprop.views.heat import patches
from relprop.views.shown import checked, named, units

if TYPE_CHECKING:
    from relprop.explanation import Explanation

BARS, FOR, AGAINST = " ▁▂▃▄▅▆▇█", " ░▒▓█", " -=≡#"
FINEST = 48  # squares in a row
RESET = "\x1b[0m"


def terminal(
    explanation: Explanation, sample: int, *, colour: bool | None, width: int | None
) -> str:
    """The text to print: a line that says what was explained, the words or the map of each input, a
    legend, a line for each concern."""
    sample = checked(explanation, sample)
    if width is not None and (not isinstance(width, int) or width < 20):
        raise OptionError(f"terminal(width={width!r}): at least 20 columns")
    colour = has_colour() if colour is None else colour
    width = width or min(shutil.get_terminal_size((100, 24)).columns, 160)
    lines = [visible(f"{heading(explanation, sample)}, {explanation.method}", 400)]
    for name in explanation.streams:
        one = explanation[name]
        lines += [f"{visible(name)}:"] if len(explanation.streams) > 1 else []
        draw = _map if one.grid is not None and len(one.grid) == 2 else _words
        lines += draw(one, sample, colour, width)
    warnings = [visible(f"warning: {line}", 400) for line in concerns(explanation, sample)]
    return "\n".join([*lines, *warnings])


def print_text(text: str) -> None:
    """Print a text; characters that the terminal's encoding lacks become ``?``."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def has_colour() -> bool:
    """Whether standard output is a terminal that says it has 24-bit colour (``COLORTERM``), and
    nobody forbids it (``NO_COLOR``)."""
    return (
        sys.stdout.isatty()
        and os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
        and not os.environ.get("NO_COLOR")
    )


def _words(explanation: Explanation, sample: int, colour: bool, width: int) -> list[str]:
    found = units(explanation, sample).in_words()
    texts = [visible(named(name), min(40, width)) or "·" for name in found.names]
    shares = [s if c else 0.0 for s, c in zip(found.relative(), found.content, strict=True)]
    lines: list[str] = []
    for row in _broken(list(zip(texts, shares, strict=True)), width):
        if colour:
            lines.append("".join(f"{_paint(text, share)} " for text, share in row))
        else:
            lines.append(" ".join(text for text, _ in row).rstrip())
            lines.append(" ".join(_mark(s) * cell_len(text) for text, s in row).rstrip())
    return [*lines, _words_legend(colour, signed=any(s < 0 for s in found.scores))]


def _broken(words: list[tuple[str, float]], width: int) -> list[list[tuple[str, float]]]:
    """Words in rows, none of which is wider than ``width`` unless it is one word."""
    rows: list[list[tuple[str, float]]] = [[]]
    used = 0
    for text, share in words:
        cells = cell_len(text)
        if used and used + cells > width:
            rows.append([])
            used = 0
        rows[-1].append((text, share))
        used += cells + 1
    return rows


def _words_legend(colour: bool, signed: bool) -> str:
    if colour:
        against = f", {_paint(' most ', -1.0)} against it" if signed else ""
        return f"{_paint(' most ', 1.0)} for it{against}"
    against = ", v against it (V: more than half of the strongest)" if signed else ""
    return f"{BARS[1:]} from weak to strong{against}"


def _mark(share: float) -> str:
    """The height of a bar for a share of the strongest; v or V where it is negative, nothing below
    a sixteenth."""
    if abs(share) < 1 / 16:
        return " "
    return BARS[max(1, round(share * 8))] if share > 0 else "V" if share < -0.5 else "v"


def _paint(text: str, share: float) -> str:
    ground = shade(share)
    return f"{_start(ink(ground), ground)}{text}{RESET}"


def _start(*colours: Sequence[int]) -> str:
    """What gives these colours, ink and ground, to the characters that follow."""
    front, back = (";".join(map(str, colour)) for colour in colours)
    return f"\x1b[38;2;{front}m\x1b[48;2;{back}m"


def _map(explanation: Explanation, sample: int, colour: bool, width: int) -> list[str]:
    """Two patches per character, one above the other, in colour; without, two characters per patch.
    Finer maps are averaged to fit."""
    tokens = next(iter(explanation.streams.values()))
    values = coarsened(patches(tokens, sample), min(width // 2, FINEST))
    shares = values / (np.abs(values).max() or 1.0)
    if not colour:
        return _inked_map(shares, bool((values < 0).any()))
    times = 2 if 2 * shares.shape[1] <= min(width, FINEST) else 1
    tall = np.repeat(np.repeat(colours(shares), times, 1), times, 0)
    if len(tall) % 2:
        tall = np.concatenate([tall, np.zeros_like(tall[-1:])])
    pairs = zip(tall[::2].tolist(), tall[1::2].tolist(), strict=True)
    lines = ["".join(f"{_start(*two)}▀" for two in zip(*pair, strict=True)) for pair in pairs]
    return [line + RESET for line in lines]


def _inked_map(shares: np.ndarray, signed: bool) -> list[str]:
    legend = f"{FOR[1:]} from weak to strong"
    lines = [
        "".join(2 * (FOR if v >= 0 else AGAINST)[round(abs(v) * 4)] for v in row)
        for row in shares.tolist()
    ]
    return [*lines, legend + (f", {AGAINST[1:]} against it" if signed else "")]


def coarsened(values: np.ndarray, most: int) -> np.ndarray:
    """Means over squares, so that no side is longer than ``most``."""
    times = -(-max(values.shape) // most)
    if times == 1:
        return values
    whole = torch.from_numpy(values)[None]
    return torch.nn.functional.avg_pool2d(whole, times, ceil_mode=True)[0].numpy()
