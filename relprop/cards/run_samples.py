"""One sample of a run as HTML: its row in the table, and what is seen once the row is opened."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from relprop.cards.base import data_uri
from relprop.cards.judged import CERTAIN, DOUBTFUL, NOT_JUDGED, Judged
from relprop.cards.trials import ORDERS
from relprop.explanation import Explanation
from relprop.views.escape import markup
from relprop.views.overlay import full_colour
from relprop.views.pixels import pixels
from relprop.views.shown import named, target_of, units

THUMBNAIL, LONGEST, MAP = 96, 448, 112  # pixels of the longer side
MARKS = {CERTAIN: "✓", DOUBTFUL: "!", NOT_JUDGED: "–"}
#: The table's columns, each with what it means.
COLUMNS = {
    "Nr": "its place in the data set, from 0",
    "Sample": "its file or key; opens its map",
    "Verdict": "of the map, not of the model",
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
    found: Sequence[Judged]


def row_of(entry: Entry) -> str:
    """A sample's row; ``data-v`` is what its cell is sorted by."""
    j, e = entry.found[0], entry.found[0].explanation
    verdict, reason = j.verdict
    no_class = "what was explained is no single class"
    equal = "all scores are equal" if j.stability is not None else j.why.get("stability", "")
    instead = f"<small>the model says {markup(entry.instead, 60)}</small>" if entry.instead else ""
    thumbnail = "" if entry.image is None else _uri(entry.image, THUMBNAIL)
    if thumbnail:
        lazy = 'alt="" loading="lazy" decoding="async"'
        thumbnail = f'<img class="thumbnail" {lazy} src="{thumbnail}">'
    first = (
        f"<small>{markup(textwrap.shorten(entry.words, 60, placeholder=' …'))}</small>"
        if entry.words
        else ""
    )
    low, high = (min(j.covered[1:]), max(j.covered[1:])) if j.covered else (0.0, 0.0)
    covered = (j.covered[0], j.chance) if j.covered else (None, None)
    why = j.why.get("covering", "")
    doubt = "" if verdict == CERTAIN else f"<small>{markup(reason, 300)}</small>"
    mark = f'<span class="verdict" aria-hidden="true">{MARKS[verdict]}</span> '
    cells = [
        _cell(f"{thumbnail}{entry.index}", entry.index),
        _cell(f'<button type="button">{markup(entry.key, 120)}</button>{first}', entry.key),
        _cell(f"{mark}{verdict}{doubt}", verdict),
        _cell(f"{markup(target_of(e, 0), 60)}{instead}", target_of(e, 0)),
        _number(j.probability, no_class),
        _cell(f"{len(j.concerns)}", len(j.concerns), " ".join(j.concerns)),
        _number(j.stability, equal),
        _number(covered[0], why),
        _number(covered[1], why, f" ({low:.2f} to {high:.2f})"),
    ]
    return f'<tr data-verdict="{verdict}">{"".join(cells)}</tr>'


def _cell(shown: str, value: object, title: str = "") -> str:
    says = f' title="{markup(title, 400)}"' if title else ""
    return f'<td data-v="{markup(str(value), 200)}"{says}>{shown}</td>'


def _number(value: float | None, why: str, after: str = "") -> str:
    """A number's cell, or ``–`` with the reason."""
    if value is None or math.isnan(value):
        return _cell("–", "", why or "unknown")
    return _cell(f"{value:.2f}{after}", f"{value:.9g}")


def template_of(entry: Entry) -> str:
    """What is shown of a sample once it is opened: nothing of it is decoded before."""
    parts = [f'<h2 id="detail-title">{markup(entry.key, 200)}</h2><div class="side">']
    uri = "" if entry.image is None else _uri(entry.image, LONGEST)
    if uri:
        parts.append(f'<figure><img alt="the picture" src="{uri}"></figure>')
    several = len(entry.found) > 1
    parts += [_map(j, uri) for j in entry.found]
    parts.append("</div>")
    parts += [_said(j, several) for j in entry.found]
    return f"<template>{''.join(parts)}</template>"


def _map(judged: Judged, uri: str) -> str:
    """A method's map: over its picture, or in its words."""
    e = judged.explanation
    caption = f"<figcaption>{markup(e.method)}: orange for the class, blue against it</figcaption>"
    if uri and len(e.streams) == 1 and len(e.grid or ()) == 2:
        map_uri = data_uri(_grey(e))
        label = f"map of {e.method}: {_sentence(e)}"
        return (
            f'<figure><div class="map"><img alt="" src="{uri}"><canvas role="img" aria-label='
            f'"{markup(label, 400)}" data-map="{map_uri}"></canvas></div>{caption}</figure>'
        )
    return f"<figure><p>{_words(e)}</p>{caption}</figure>"


def _words(e: Explanation) -> str:
    """Each input's words, the stronger the more coloured."""
    return " ".join(
        f'<span class="shade{" against" if share < 0 else ""}" style="--s:{abs(share):.0%}">'
        f"{markup(named(name))}</span>"
        for stream in e.streams
        for name, share in _shares(e[stream])
    )


def _shares(e: Explanation) -> Iterator[tuple[Any, float]]:
    found = units(e, 0)
    for name, share, content in zip(found.names, found.relative(), found.content, strict=True):
        yield name, share if content else 0.0


def _grey(e: Explanation) -> np.ndarray:
    """A map as bytes (H, W): 128 is nothing, 255 the strongest for the class, 1 against it."""
    stream = next(iter(e.streams.values()))
    height, width = stream.image or (1, 1)
    scale = min(1.0, MAP / max(height, width))
    heat = e.heatmap((max(1, round(height * scale)), max(1, round(width * scale))))[0]
    shares = (heat.double().cpu().numpy() / full_colour(heat, stream)).clip(-1, 1)
    return np.round(128 + 127 * shares).astype(np.uint8)


def _sentence(e: Explanation) -> str:
    return e.summary().partition("\n")[0]


def _said(judged: Judged, several: bool) -> str:
    """What is said of a method's map: its sentence, concerns, checks and strongest parts."""
    e = judged.explanation
    verdict, reason = judged.verdict
    checks = []
    if judged.stability is not None:
        checks.append(f"Rank correlation with float64: {judged.stability:.3f}.")
    if judged.covered:
        each = ", ".join(f"{p:.3f}" for p in judged.covered[1:])
        checks.append(
            f"Probability with the strongest fifth covered: {judged.covered[0]:.3f}; with a random "
            f"fifth: {each}."
        )
    checks += [f"No {name}: {why}." for name, why in judged.why.items()]
    lines = "".join(f"<li>{markup(line, 400)}</li>" for line in judged.concerns)
    top = [part for stream in e.streams for part in e[stream].top(5, share=True)]
    parts = "".join(f"<li>{markup(named(n), 60)}: {share:.1%}</li>" for n, share in top)
    return (
        f"{f'<h3>{markup(e.method)}</h3>' if several else ''}"
        f"<p>{markup(' '.join(map(_sentence, map(e.__getitem__, e.streams))), 600)}</p>"
        f"{f'<ul class=concerns>{lines}</ul>' if lines else ''}"
        f"<p><strong>{MARKS[verdict]} {verdict}</strong>: {markup(reason, 400)}.</p>"
        f"{''.join(f'<p class=soft>{markup(line, 400)}</p>' for line in checks)}"
        f"<h3>Strongest parts, in shares of all scores</h3><ol>{parts}</ol>"
    )


def picture_of(image: Tensor) -> np.ndarray:
    """An image of a data set, (C, H, W), as bytes (H, W, 3) or (H, W), at most ``LONGEST`` along
    each side: one that is not in [0, 1] is stretched, of 2 channels or many their mean is taken."""
    shown = image.detach().float().cpu()
    shown = shown if len(shown) in (1, 3) else shown.mean(0, keepdim=True)
    least, most = shown.min(), shown.max()
    if least < 0 or most > 1:
        shown = (shown - least) / (most - least).clamp(min=1e-12)
    return np.asarray(_at_most((pixels(shown) * 255).round().astype(np.uint8), LONGEST))


def _at_most(picture: np.ndarray, longest: int) -> Image.Image:
    """A picture (bytes) that is no longer along any side."""
    shown = Image.fromarray(picture)
    shown.thumbnail((longest, longest))
    return shown


def _uri(picture: np.ndarray, longest: int) -> str:
    """A picture as JPEG or PNG, whichever is smaller."""
    shown, found = _at_most(picture, longest), {}
    for kind in ("jpeg", "png"):
        shown.save(data := io.BytesIO(), kind, quality=85)
        found[kind] = data.getvalue()
    kind = min(found, key=lambda k: len(found[k]))
    return f"data:image/{kind};base64,{base64.b64encode(found[kind]).decode('ascii')}"
