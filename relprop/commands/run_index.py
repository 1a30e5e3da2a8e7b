"""An index of a run folder: its first samples with their maps, as one HTML page or one picture."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from relprop.adapters import adapter_for
from relprop.commands.showing import texts
from relprop.data import Source
from relprop.explanation import Explanation
from relprop.opening.wrapped import base_model
from relprop.runs import RunResults, explanation_of
from relprop.views.escape import markup
from relprop.views.overlay import full_colour, laid
from relprop.views.page import heat_png, page, png
from relprop.views.pixels import pixels
from relprop.writing import written

PAGE, PICTURE = 200, 16
"""How many samples a page and a picture show."""


@dataclass(frozen=True)
class Entry:
    """A sample's name, its image if it has one, and its explanation by each method."""

    key: str
    image: Tensor | None
    found: list[Explanation]


def write_index(path: Path, results: RunResults, source: Source, model: nn.Module) -> None:
    """Write the first samples of a run of ``ExplainWork`` as ``.html`` or ``.png``, by the path's
    ending."""
    picture = path.suffix.lower() == ".png"
    entries = list(_entries(results, source, model, PICTURE if picture else PAGE))
    with written(path, "the index") as beside:
        if picture:
            _figure(entries).savefig(beside, dpi=80)
        else:
            beside.write_text(_page(results, entries), encoding="utf-8")


def _entries(results: RunResults, source: Source, model: nn.Module, most: int) -> Iterator[Entry]:
    labels = tuple(adapter_for(base_model(model)).labels(base_model(model)))
    done = (i for i in range(results.samples) if i not in results.failed)
    for _, index in zip(range(most), done, strict=False):
        rows = results.rows_of(index)
        found = [explanation_of(results, index, row["method"]) for row in rows]
        inputs = source[index].inputs if found[0].grid is not None else None
        image = inputs if isinstance(inputs, Tensor) else None
        yield Entry(rows[0]["key"], image, [_named(e, labels) for e in found])


def _named(e: Explanation, labels: tuple[str, ...]) -> Explanation:
    """The explanation with its class's label, where the model has one."""
    target = e.target[0]
    known = isinstance(target, int) and 0 <= target < len(labels)
    return replace(e, labels=(labels[target],)) if known else e


def _page(results: RunResults, entries: list[Entry]) -> str:
    left = results.done - len(entries)
    failed = f", {len(results.failed)} failed" if results.failed else ""
    more = f"; the first {len(entries)} are shown" if left > 0 else ""
    title = f"{results.folder.name}: {results.done} samples{failed}{more}"
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        "<style>body{font-family:sans-serif;margin:1rem;color:#111;background:#fff}"
        "section{border-top:1px solid #bbb;overflow-wrap:anywhere}"
        "img{height:160px;margin-right:8px;image-rendering:pixelated}</style></head><body><main>"
    )
    body = "".join(f"<section><h2>{markup(e.key, 200)}</h2>{_shown(e)}</section>" for e in entries)
    return f"{head}<h1>{html.escape(title)}</h1>{body}</main></body></html>\n"


def _shown(entry: Entry) -> str:
    """The image, and each method's map over it, or its words."""
    if entry.image is None:
        return "".join(page(e) for e in entry.found)
    shown = np.asarray(pixels(entry.image))
    colour = shown if shown.ndim == 3 else np.repeat(shown[..., None], 3, -1)
    parts = [_img((colour * 255).round().astype(np.uint8), f"{entry.key}, the image")]
    parts += [_img(heat_png(e, 0, entry.image), f"{e.method}, heat map") for e in entry.found]
    said = "".join(f"<p>{markup(f'{e.method}: {e.summary()}', 400)}</p>" for e in entry.found)
    return f"<p>{''.join(parts)}</p>{said}"


def _img(picture: np.ndarray | bytes, says: str) -> str:
    data = picture if isinstance(picture, bytes) else png(picture)
    text = base64.b64encode(data).decode("ascii")
    return f'<img alt="{markup(says, 200)}" src="data:image/png;base64,{text}">'


def _figure(entries: list[Entry]) -> Any:
    """A row for each sample: its image and its maps, or its words."""
    from relprop.views.figure import scale_of, several
    from relprop.views.plot import show_heatmap, show_image

    if any(e.image is None for e in entries):
        named = {f"{e.key}, {one.method}": one for e in entries for one in e.found}
        return texts(named)
    rows = several(None, len(entries), 1 + max(len(e.found) for e in entries), 2.4, 2.6)
    for axes, entry in zip(rows, entries, strict=True):
        show_image(axes[0], entry.image, entry.key)
        for panel, e in zip(axes[1:], entry.found, strict=False):
            heat = laid(e, 0, False)[0]
            scale = scale_of(heat, strongest=full_colour(heat, next(iter(e.streams.values()))))
            show_heatmap(panel, heat, e.method, entry.image, scale=scale)
    return rows[0][0].figure
