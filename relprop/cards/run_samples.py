"""One sample of a run as HTML: its row in the table, and what is seen once the row is opened."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from relprop.cards.base import map_uri, stack
from relprop.cards.run_checks import CERTAIN, DOUBTFUL, NOT_JUDGED, CheckedMap
from relprop.cards.trials import ORDERS, listed
from relprop.explanation import Explanation
from relprop.views.escape import markup
from relprop.views.overlay import full_colour
from relprop.views.shown import named, target_of, units

THUMBNAIL, LONGEST, MAP = 96, 448, 112  # pixels of the longer side
MARKS = {CERTAIN: "✓", DOUBTFUL: "!", NOT_JUDGED: "–"}
#: The table's columns, each with what it means.
COLUMNS = {
    "Nr": "its place in the data set, from 0",
    "Sample": "its file or key; opens its map",
    "Map": "whether the map can be trusted; it is no verdict of the model",
    "Class": "what was explained",
    "Probability": "how likely the model finds this class",
    "Concerns": "how many things speak against the map",
    "Stability": "rank correlation with the same map in float64",
    "Strongest fifth covered": "the probability that is left",
    "Random fifth covered": f"the probability that is left: mean and range of {ORDERS}",
}


@dataclass(frozen=True, eq=False)
class Entry:
    """One sample: its place, its name, the picture (bytes, (H, W, 3) or (H, W)) or the words it is
    of, what the model itself says where that was not explained, and its map by each method."""

    index: int
    key: str
    image: np.ndarray | None
    words: str
    instead: str
    found: Sequence[CheckedMap]


def row_of(entry: Entry) -> str:
    """A sample's row; ``data-v`` is what its cell is sorted by."""
    one = entry.found[0]
    verdict, reason = one.verdict
    equal = "all scores are equal" if one.stability is not None else one.why.get("stability", "")
    instead = f"the model says {entry.instead}" if entry.instead else ""
    begins = textwrap.shorten(entry.words, 60, placeholder=" …")
    image = "" if entry.image is None else _uri(entry.image, THUMBNAIL)
    image = image and f'<img class="thumbnail" alt="" loading="lazy" src="{image}">'
    low, high = (min(one.covered[1:]), max(one.covered[1:])) if one.covered else (0.0, 0.0)
    strongest, chance = (one.covered[0], one.chance) if one.covered else (None, None)
    why, target = one.why.get("covering", ""), target_of(one.explanation, 0)
    mark = f'<span class="verdict" aria-hidden="true">{MARKS[verdict]}</span> {verdict}'
    cells = [
        _cell(f"{image}{entry.index}", entry.index),
        _cell(
            f'<button type="button">{markup(entry.key, 120)}</button>{_small(begins)}', entry.key
        ),
        _cell(mark + _small("" if verdict == CERTAIN else reason), verdict),
        _cell(markup(target, 60) + _small(instead), target),
        _number(one.probability, "what was explained is no single class", digits=4),
        _cell(f"{len(one.concerns)}", len(one.concerns), " ".join(one.concerns)),
        _number(one.stability, equal),
        _number(strongest, why),
        _number(chance, why, f" ({low:.2f} to {high:.2f})"),
    ]
    return f'<tr data-verdict="{verdict}">{"".join(cells)}</tr>'


def _small(text: str) -> str:
    return f"<small>{markup(text, 300)}</small>" if text else ""


def _cell(shown: str, value: object, title: str = "") -> str:
    says = f' title="{markup(title, 400)}"' if title else ""
    return f'<td data-v="{markup(str(value), 200)}"{says}>{shown}</td>'


def _number(value: float | None, why: str, after: str = "", digits: int = 2) -> str:
    """A number's cell, or ``–`` with the reason."""
    if value is None or math.isnan(value):
        return _cell("–", "", why or "unknown")
    return _cell(f"{value:.{digits}f}{after}", f"{value:.9g}")


def template_of(entry: Entry) -> str:
    """What is shown of a sample once it is opened: nothing of it is decoded before."""
    uri = "" if entry.image is None else _uri(entry.image, LONGEST)
    shown = uri and f'<figure><img alt="the picture" src="{uri}"></figure>'
    shown += "".join(_map(one, uri) for one in entry.found)
    said = "".join(_said(one, several=len(entry.found) > 1) for one in entry.found)
    title = f'<h2 id="detail-title">{markup(entry.key, 200)}</h2>'
    return f'<template>{title}<div class="side">{shown}</div>{said}</template>'


def _map(one: CheckedMap, uri: str) -> str:
    """A method's map: over its picture, or in its words."""
    e = one.explanation
    if uri and len(e.streams) == 1 and len(e.grid or ()) == 2:
        label = markup(f"map of {e.method}: {_sentence(e)}", 400)
        canvas = f'<canvas role="img" aria-label="{label}" data-map="{map_uri(_small_map(e))}">'
        shown = stack(uri, e.image or (1, 1), f"{canvas}</canvas>")
    else:
        shown = f"<p>{' '.join(_words(e[name]) for name in e.streams)}</p>"
    caption = f"{markup(e.method)}: orange for the class, blue against it"
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def _words(e: Explanation) -> str:
    """The words of one input, the stronger the more coloured."""
    found = units(e, 0)
    parts = zip(found.names, found.relative(), found.content, strict=True)
    return " ".join(
        f'<span class="shade{" against" if content and share < 0 else ""}" '
        f'style="--s:{abs(share) if content else 0.0:.0%}">{markup(named(name))}</span>'
        for name, share, content in parts
    )


def _small_map(e: Explanation) -> np.ndarray:
    """A map of at most ``MAP`` along each side, as shares of the strongest."""
    stream = next(iter(e.streams.values()))
    height, width = stream.image or (1, 1)
    scale = min(1.0, MAP / max(height, width))
    heat = e.heatmap((max(1, round(height * scale)), max(1, round(width * scale))))[0]
    shares: np.ndarray = heat.double().cpu().numpy() / full_colour(heat, stream)
    return shares


def _sentence(e: Explanation) -> str:
    return e.summary().partition("\n")[0]


def _said(one: CheckedMap, *, several: bool) -> str:
    """What is said of a method's map: its sentence, concerns, checks and strongest parts."""
    e, checks = one.explanation, []
    if one.stability is not None:
        checks.append(f"Rank correlation with float64: {one.stability:.3f}.")
    if one.covered:
        strongest, *others = (f"{p:.3f}" for p in one.covered)
        checks.append(
            f"Probability with the strongest fifth covered: {strongest}; with a random fifth: "
            f"{', '.join(others)}."
        )
    checks += [f"No {name}: {why}." for name, why in one.why.items()]
    verdict, reason = one.verdict
    top = [part for name in e.streams for part in e[name].top(5, share=True)]
    parts = "".join(f"<li>{markup(named(n), 60)}: {share:.1%}</li>" for n, share in top)
    return (
        f"{f'<h3>{markup(e.method)}</h3>' if several else ''}"
        f"<p>{markup(' '.join(_sentence(e[name]) for name in e.streams), 600)}</p>"
        f"{listed(one.concerns)}<p><strong>{MARKS[verdict]} {verdict}</strong>: "
        f"{markup(reason, 400)}.</p>"
        f"{''.join(f'<p class=soft>{markup(line, 400)}</p>' for line in checks)}"
        f"<h3>Strongest parts, in shares of all scores</h3><ol>{parts}</ol>"
    )


def at_most(picture: np.ndarray, longest: int) -> Image.Image:
    """A picture (bytes) that is no longer along any side."""
    shown = Image.fromarray(picture)
    shown.thumbnail((longest, longest))
    return shown


def _uri(picture: np.ndarray, longest: int) -> str:
    """A picture as JPEG or PNG, whichever is smaller."""
    shown, found = at_most(picture, longest), {}
    for kind in ("jpeg", "png"):
        shown.save(data := io.BytesIO(), kind, quality=85)
        found[kind] = data.getvalue()
    kind = min(found, key=lambda k: len(found[k]))
    return f"data:image/{kind};base64,{base64.b64encode(found[kind]).decode('ascii')}"
