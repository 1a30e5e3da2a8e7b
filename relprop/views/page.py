"""An explanation in a notebook: shaded words as HTML, a heat map as a PNG inside it. No script, no
style sheet, and all text is escaped."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np

from relprop.views.audit import concerns, heading, said_instead
from relprop.views.colours import hexadecimal, ink, shade
from relprop.views.escape import markup
from relprop.views.overlay import blended, full_colour, heatmap_and_image, turned
from relprop.views.shown import named, only, units

if TYPE_CHECKING:
    from relprop.explanation import Explanation

SAMPLES = 8  # a batch of hundreds would drown the notebook
WORDS = 600
SIDE = 224  # pixels of a map's longer side, where no picture was kept


def page(explanation: Explanation) -> str:
    """The first samples, each with what was explained, its words or map, and its concerns."""
    parts = [_sample(explanation, i) for i in range(min(len(explanation), SAMPLES))]
    left = len(explanation) - SAMPLES
    if left > 0:
        parts.append(
            f"<p>{left} more samples: explanation.show(sample), "
            "relprop.plot.text(explanation, sample=...)</p>"
        )
    return f'<div style="font-family:sans-serif;line-height:1.7">{"".join(parts)}</div>'


def picture(explanation: Explanation) -> bytes | None:
    """The first sample's heat map as PNG; ``None`` for what is no image."""
    stream = next(iter(explanation.streams.values()))
    if stream.grid is None or len(stream.grid) != 2 or len(explanation.streams) > 1:
        return None
    return png(_heat_pixels(explanation, 0))


def _sample(explanation: Explanation, sample: int) -> str:
    how = markup(f"{explanation.method}, rules {explanation.rules}", 200)
    parts = [f"<p><b>{markup(heading(explanation, sample), 200)}</b> <small>{how}</small></p>"]
    for name in explanation.streams:
        one = explanation[name]
        if len(explanation.streams) > 1:
            parts.append(f"<p><small>{markup(name)}</small></p>")
        draw = _image if one.grid is not None and len(one.grid) == 2 else _words
        parts.append(draw(one, sample))
    if own := said_instead(explanation, sample):
        parts.insert(1, f"<p>{markup(own, 200)}</p>")
    parts += [
        f'<p style="color:#8a3b00">⚠ {markup(line, 300)}</p>'
        for line in concerns(explanation, sample)
    ]
    return "".join(parts)


def _words(explanation: Explanation, sample: int) -> str:
    found = units(explanation, sample)
    shown = list(zip(found.names, found.scores, found.relative(), found.content, strict=True))
    spans = [
        _shaded(named(name), score, share if content else 0.0, content)
        for name, score, share, content in shown[:WORDS]
    ]
    more = f" <small>and {len(shown) - WORDS} more</small>" if len(shown) > WORDS else ""
    return f"<p>{' '.join(spans)}{more}</p>"


def _shaded(text: str, score: float, share: float, content: bool) -> str:
    ground = shade(share)
    style = (
        f"background:{hexadecimal(ground)};color:{hexadecimal(ink(ground))}"
        if content
        else "color:#767676;background:#fff"
    )
    return (
        f'<bdi style="{style};padding:1px 3px;border-radius:3px;unicode-bidi:isolate" '
        f'title="{score:.4g}">{markup(text) or "&nbsp;"}</bdi>'
    )


def _image(explanation: Explanation, sample: int) -> str:
    return f'<img alt="heat map of the scores" src="{data_uri(_heat_pixels(explanation, sample))}">'


def _heat_pixels(explanation: Explanation, sample: int) -> np.ndarray:
    """One sample's heat map, over the picture that was kept."""
    stream, (values, picture) = (
        only(explanation, "heatmap()"),
        heatmap_and_image(explanation, sample, None),
    )
    if picture is None:
        scale = SIDE / max(values.shape)
        size = [max(1, round(n * scale)) for n in stream.image or ()]
        values = turned(explanation.heatmap((size[0], size[1]))[sample].cpu(), stream)
    shares = values.double().numpy() / full_colour(values, stream)
    return blended(shares, picture)


def data_uri(pixels: np.ndarray) -> str:
    """A picture in a page: bytes (H, W, 3), or (H, W) of one grey channel."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def png(rgb: np.ndarray) -> bytes:
    """A PNG file (8 bits) of pixels (H, W, 3), or (H, W) of one grey channel."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(rgb).save(file, "PNG")
    return file.getvalue()
