"""An answer's card: what a model said, how sure it was of each part, what it nearly said, and the
sentences, words and pictures that each part rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from relprop.cards.base import Card, stack
from relprop.cards.recording import HIGH, WIDE, Recording
from relprop.views.escape import markup, visible
from relprop.views.page import data_uri
from relprop.views.token_maps import Maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A token of the model's own, which is no part of what was said; and several in a row.
MARK = re.compile(r"<[^\s<>]+>|\[[A-Z]+\]")
MARKS = re.compile(rf"(({MARK.pattern})\s*)+")
LONG = 10_000  # characters of a text that are shown
FEW_WORDS = 3  # that are named of a prompt of one sentence
SMALL = 0.02  # of many parts those with a smaller share are left out of a figure


@dataclass(frozen=True)
class Said:
    """A part of an answer. ``probability``: of it, given what stands before; ``others``: what else
    it might have been, each with its probability. ``shares``: of every word of the prompt, then of
    every picture and recording, then of every earlier part of the answer, whose sizes sum to 1.
    ``against``: the same by a signed method for this part rather than the first of ``others``."""

    text: str
    shares: tuple[float, ...]
    probability: float | None = None
    others: tuple[tuple[str, float], ...] = ()
    against: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Part:
    """A sentence of the prompt: its ``text`` as it was written, and which of the prompt's words it
    is made of; under a ``heading``, or none."""

    text: str
    words: tuple[int, ...]
    heading: str = ""


@dataclass(frozen=True)
class Answer:
    """One sample. ``text``: what was said, in the parts ``said``. ``words``: of the prompt;
    ``parts``: its sentences. ``maps``: of each picture and recording a map per part of the answer;
    ``whole``: the shares of the whole answer."""

    text: str
    words: tuple[str, ...]
    parts: tuple[Part, ...]
    said: tuple[Said, ...]
    maps: tuple[Maps, ...]
    whole: tuple[float, ...]

    def of_parts(self, shares: Sequence[float]) -> list[float]:
        """The shares of the sentences, then of the pictures and recordings, then of the answer's
        own words."""
        words, maps = len(self.words), len(self.maps)
        found = [sum(shares[i] for i in part.words) for part in self.parts]
        return [*found, *shares[words : words + maps], sum(shares[words + maps :])]

    def names(self) -> list[str]:
        """What the numbers of ``of_parts`` belong to."""
        maps = [f"{m.kind} {k + 1}" for k, m in enumerate(self.maps)]
        maps = [f"the {m.kind}" for m in self.maps] if len(maps) == 1 else maps
        return [*(part.text for part in self.parts), *maps, "the answer's own words"]

    @property
    def sentence(self) -> str:
        """Which part the whole answer rests on most."""
        found = self.of_parts(self.whole)
        best = max(range(len(found)), key=found.__getitem__)
        if not any(found):
            return "All scores are 0: it is not known what the answer rests on."
        total, text = sum(map(abs, self.whole)), f"“{visible(self.text, 160)}” rests mostly on"
        several = len(self.said) > 1
        text = f"As a whole, {text}" if several else text
        alone = not self.parts and len(self.maps) == 1 and not several
        if alone and isinstance(self.maps[0], Recording):
            return self.maps[0].sentence(text, self.maps[0].whole)
        if self.words and len(self.parts) + len(self.maps) == 1:
            order = sorted(range(len(self.words)), key=lambda i: -self.whole[i])[:FEW_WORDS]
            named = [f"“{visible(self.words[i], 40)}” ({self.whole[i] / total:.0%})" for i in order]
            return f"{text} {', '.join(named)}."
        name = self.names()[best]
        quoted = f"{'the prompt’s ' * several}“{visible(name, 160)}”"
        quoted = quoted if best < len(self.parts) else name
        return f"{text} {quoted} ({found[best] / total:.0%})."


@dataclass(frozen=True, eq=False, repr=False)
class AnswerCard(Card):
    """``answers``: one per sample. ``signed``: whether scores speak for and against; ``signed_by``:
    the method of "why not", where it was asked; ``why_not_unasked``: why it was not."""

    script: ClassVar[str] = "answer.js"
    answers: tuple[Answer, ...]
    signed: bool
    signed_by: str = ""
    why_not_unasked: str = ""

    def _data(self) -> Mapping[str, Any]:
        return {
            "signedBy": self.signed_by,
            "answers": [
                {
                    "whole": np.round(one.whole, 4).tolist(),
                    "parts": [list(part.words) for part in one.parts],
                    "words": len(one.words),
                    "maps": [(100 * m.shares).round().tolist() for m in one.maps],
                    "wholes": [(100 * m.whole).round(1).tolist() for m in one.maps],
                    "said": [
                        {
                            "text": visible(said.text, 200),
                            "shares": np.round(said.shares, 4).tolist(),
                            "against": said.against and np.round(said.against, 4).tolist(),
                            "says": _probabilities(said),
                            "other": visible(said.others[0][0], 60) if said.others else "",
                        }
                        for said in one.said
                    ],
                }
                for one in self.answers
            ],
        }

    def _body(self) -> str:
        return "".join(self._section(k, one) for k, one in enumerate(self.answers))

    def _section(self, number: int, one: Answer) -> str:
        chips = ""
        for k, said in enumerate(one.said):
            chance = said.probability
            chips += (
                f'<button type="button" class="chip" data-said="{k}" aria-pressed="false">'
                f"<span>{markup(said.text, LONG) or '&nbsp;'}</span>"
                f"{'' if chance is None else f'<small>{percent(chance)}</small>'}</button>"
            )
        rows = [said.shares for said in one.said] + [m.shares.ravel() for m in one.maps]
        against = self.signed and any(np.min(row, initial=0) < 0 for row in rows)
        colours = "Orange speaks for it, blue against it. " if against else ""
        if self.why_not_unasked:
            colours += f"There is no “why not”: {markup(self.why_not_unasked, 300)}."
        choose = ""
        if len(one.said) > 1:
            choose = '<p class="soft">Choose a part of it to see what that part rests on.</p>'
            chips += '<button type="button" class="chip" data-said="-1" aria-pressed="true">'
            chips += "<span>all of it</span></button>"
        return (
            f'<section data-answer="{number}"><h2>The answer</h2>{choose}'
            f'<p class="chips">{chips}</p>'
            '<div class="detail panel" aria-live="polite"><p data-says></p><p data-why hidden>'
            '<button type="button" data-mode="shares" aria-pressed="true"></button> '
            '<button type="button" data-mode="against" aria-pressed="false"></button></p>'
            f'<p data-colours class="soft">{colours}</p></div>'
            f"<h2 data-rests>What the whole answer rests on</h2>{self._maps(one)}"
            f'<div class="parts">{self._parts(one)}</div></section>'
        )

    def _parts(self, one: Answer) -> str:
        """A row for every sentence, and one for pictures and for the answer's own words; the script
        shades them."""
        found, shown, heading = one.of_parts(one.whole), [], ""
        size = sum(map(abs, one.whole)) or 1.0
        for k, (name, share) in enumerate(zip(one.names(), found, strict=True)):
            part = one.parts[k] if k < len(one.parts) else Part(name, (), heading)
            if part.heading != heading:
                heading = part.heading
                shown.append(f"<h3>{markup(heading, 200)}</h3>")
            alone = not one.parts and sum(map(bool, found)) == 1
            hidden = " hidden" if (k == len(found) - 1 and share == 0) or alone else ""
            shown.append(
                f'<div class="part" data-part{hidden}><b data-percent>{share / size:.0%}</b>'
                f'<span class="track"><span></span></span><p dir="auto">{_words(part, one)}</p>'
                "</div>"
            )
        return "".join(shown)

    def _maps(self, one: Answer) -> str:
        """Each picture, grey, under a canvas of its map; recordings below."""
        shown, heard, texts = "", "", _spoken(one)
        for m in one.maps:
            rows, columns = m.shares.shape[1:]
            canvas = f'<canvas width="{columns}" height="{rows}" role="img" '
            canvas += f'aria-label="map of {markup(m.name)}"></canvas>'
            uri, size = "" if m.seen is None else data_uri(m.seen), m.shares.shape[1:]
            if isinstance(m, Recording):
                heard += m.html(stack(uri, (HIGH, WIDE), canvas), texts)
            else:
                shown += stack(uri, size if m.seen is None else m.seen.shape, canvas)
        return (f'<div class="side">{shown}</div>' if shown else "") + heard

    def _figure(self) -> Figure:
        """The answer with its probabilities, and its prompt's sentences as bars."""
        from relprop.views.figure import TICK, blank, grid_of, show_image, write_title

        one = self.answers[0]
        found, names = one.of_parts(one.whole), one.names()
        total = sum(map(abs, one.whole)) or 1.0
        kept = [k for k in range(len(found)) if len(found) <= 20 or abs(found[k]) / total >= SMALL]
        kept = [k for k in kept if k < len(found) - 1 or found[k]]
        images = len(one.maps)
        wide = [7.0 if isinstance(m, Recording) else 2.2 for m in one.maps]
        wide = [8.0 if one.parts else 3.0, *wide]
        fig = blank(sum(wide), 1.2 + 0.3 * max(len(kept), 6 if images else 0))
        panels = grid_of(fig, 1, 1 + images, wide)[0]
        for panel, m in zip(panels[1:], one.maps, strict=True):
            show_image(panel, m.over(m.whole), m.name)
            if isinstance(m, Recording):
                m.draw_time(panel, _spoken(one))
        _draw_bars(panels[0], [names[k] for k in kept], [found[k] / total for k in kept])
        known = [(s.text, s.probability) for s in one.said]
        sure = "  ".join(f"{t} ({percent(p)})" if p is not None else t for t, p in known)
        title = f"{visible(self.title, 120)}\n{visible(sure, 300)}"
        if any(isinstance(m, Recording) for m in one.maps):  # beside its narrow bars
            fig.suptitle(title, wrap=True, fontsize=TICK + 1).set_parse_math(False)
        else:
            write_title(panels[0], title)
        return fig


def _draw_bars(axes: Axes, names: Sequence[str], bars: Sequence[float]) -> None:
    """A bar for each share, orange for the answer and blue against it, under one another."""
    from relprop.views.colours import hexadecimal, shade
    from relprop.views.figure import TICK

    colour = [hexadecimal(shade(0.8 if bar >= 0 else -0.8)) for bar in bars]
    axes.barh(range(len(bars)), bars, color=colour)
    axes.invert_yaxis()
    labels = [f"{visible(name, 70)}  {bar:.0%}" for name, bar in zip(names, bars, strict=True)]
    axes.set_yticks(range(len(bars)), labels, fontsize=TICK)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)


def _spoken(one: Answer) -> list[str]:
    """The parts of an answer that are heard: no signs, and no marks of the model's own."""
    texts = (s.text for s in one.said)
    return ["" if MARKS.fullmatch(t) or not any(map(str.isalnum, t)) else t for t in texts]


def _words(part: Part, one: Answer) -> str:
    """A sentence as it was written, each of its words by itself."""
    shown, at, text = "", 0, part.text
    for i in part.words:
        word = one.words[i]
        start = text.lower().find(word.lower(), at)
        if start < 0:  # a tokenizer changed it
            shown += " "
        else:
            shown += markup(text[at:start], LONG)
            at = start + len(word)
            word = text[start:at]
        shown += f'<span class="shade" data-word="{i}">{markup(word, LONG)}</span>'
    return shown + markup(text[at:] if at or not part.words else "", LONG)


def percent(share: float) -> str:
    """A share or a probability as people read it; what is neither 0 nor 1 is not written so."""
    if share < 0.0005:
        return "under 0.1%"
    if share > 0.9995:
        return "over 99.9%"
    return f"{share:.0%}" if 0.0995 <= share < 0.9895 else f"{share:.1%}"


def _probabilities(said: Said) -> str:
    """How sure the model was of a part, and what it would have said otherwise."""
    own = "" if said.probability is None else f": {percent(said.probability)}"
    others = ", ".join(f"“{visible(text, 60)}” {percent(p)}" for text, p in said.others)
    next_best = f" Next best: {others}." if others else ""
    return f"“{visible(said.text, 200)}”{own}.{next_best}"
