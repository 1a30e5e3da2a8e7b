"""A generation as one HTML file: whichever generated token is pointed at (or reached by the
keyboard), the tokens before it are shaded by its scores, and its maps lie over the pictures beside
them. Nothing is loaded; all text is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.views.beside import Maps, columns, maps_of
from relprop.views.colours import colours, hexadecimal, ink, shade
from relprop.views.escape import markup
from relprop.views.generations import shares, steps_of
from relprop.views.overlay import grey, opacity
from relprop.views.page import png
from relprop.writing import written

if TYPE_CHECKING:
    from relprop.explanation import Generation

SAMPLES = 8  # in a notebook
SHADES = 50  # of each sign
STYLE = (
    "body{font:16px/1.9 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#111;"
    "background:#fff}section{margin-bottom:2.5em}.tokens{overflow-wrap:anywhere}"
    "bdi{padding:1px 3px;border-radius:3px;white-space:pre-wrap}.aside{color:#6b6b6b}"
    "button{font:inherit;padding:1px 3px;margin:0 1px;border:1px solid #999;border-radius:3px;"
    "background:#fff;color:#111;cursor:pointer;white-space:pre-wrap}"
    "button[aria-pressed=true]{background:#111;color:#fff}"
    ".maps{display:flex;flex-wrap:wrap;gap:1em}.map{position:relative;width:224px;"
    "border:1px solid #999;line-height:0}.map img,.map canvas{width:100%;image-rendering:pixelated}"
    ".map img+canvas{position:absolute;inset:0;height:100%}"
)
SCRIPT = """
const data = JSON.parse(document.getElementById("scores").textContent);
for (const section of document.querySelectorAll("section")) {
  const rows = data.rows[Number(section.dataset.sample)];
  const maps = data.maps[Number(section.dataset.sample)] ?? [];
  const buttons = [...section.querySelectorAll("button")];
  const places = [...section.querySelectorAll("[data-input]")];
  let held = null;
  const paint = step => {
    buttons.forEach((b, k) => b.setAttribute("aria-pressed", String(k === step)));
    section.querySelectorAll("canvas").forEach((canvas, m) => {
      const pen = canvas.getContext("2d");
      pen.clearRect(0, 0, canvas.width, canvas.height);
      maps[m][step].forEach((share, cell) => {
        pen.fillStyle = data.shades[share + data.most][0];
        pen.globalAlpha = canvas.previousElementSibling ? data.opacity[Math.abs(share)] : 1;
        pen.fillRect(cell % canvas.width, Math.floor(cell / canvas.width), 1, 1);
      });
    });
    for (const [name, row] of Object.entries(rows)) {
      const place = places.find(p => p.dataset.input === name);
      const tokens = [...place.querySelectorAll("bdi, button")];
      const before = place.dataset.prompt === undefined
        ? tokens.length : Number(place.dataset.prompt) + step;
      tokens.forEach((token, t) => {
        token.style.cssText = "";
        if (t >= before || token.classList.contains("aside")) return;
        [token.style.background, token.style.color] = data.shades[row[step][t] + data.most];
      });
    }
  };
  buttons.forEach((button, k) => {
    button.addEventListener("mouseenter", () => { if (held === null) paint(k); });
    button.addEventListener("focus", () => { if (held === null) paint(k); });
    button.addEventListener("click", () => { held = held === k ? null : k; paint(k); });
  });
  if (buttons.length) paint(0);
}
"""


def write(generation: Generation, path: str | Path, *, title: str | None) -> Path:
    """Write the page. Raises ``InputError`` where no file can be written."""
    page = _page(generation, title or "What each generated token rests on")
    with written(path, "the page") as beside:
        Path(beside).write_text(page, encoding="utf-8")
    return Path(path)


def _page(generation: Generation, title: str) -> str:
    samples, texts = range(len(generation)), _texts(generation)
    maps = [maps_of(generation, i, steps_of(generation, i)) for i in samples]
    first = generation.steps[0]
    return page(
        title,
        "Point at a generated token, or reach it by the keyboard; a click holds it.",
        f"{first.method}, rules {first.rules}",
        [_section(generation, i, maps[i]) for i in samples],
        [{name: _whole(shares(generation, name, i)) for name in texts} for i in samples],
        [[_whole(one.shares.reshape(len(one.shares), -1)) for one in some] for some in maps],
    )


def page(
    title: str,
    how: str,
    about: str,
    sections: Sequence[str],
    rows: Sequence[Mapping[str, list[list[int]]]],
    maps: Sequence[Sequence[list[list[int]]]] = (),
) -> str:
    """A page on which buttons shade what stands in front of them: of each section and each input a
    row of shades per button, and of each section's pictures a map per button."""
    shown = [round(float(o), 3) for o in opacity(np.arange(SHADES + 1) / SHADES)]
    data = {"most": SHADES, "shades": _shades(), "opacity": shown, "rows": rows, "maps": maps}
    tables = [*(t for row in rows for t in row.values()), *(m for some in maps for m in some)]
    least = min((number for table in tables for line in table for number in line), default=0)
    against = ", blue against it" if least < 0 else ""
    scores = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{markup(title, 200)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{markup(title, 200)}</h1><p>{markup(how, 200)} Orange speaks for it{against}. "
        f"<small>{markup(about, 200)}</small></p>"
        f'{"".join(sections)}<script type="application/json" id="scores">{scores}</script>'
        f"<script>{SCRIPT}</script></html>"
    )


def _texts(generation: Generation) -> list[str]:
    """The inputs that are shown as tokens, not as pictures."""
    shown = {one.name for one in maps_of(generation, 0, [0])}
    return [name for name in generation.streams if name not in shown]


def _whole(found: Any) -> list[list[int]]:
    """Shares in whole shades."""
    numbers: list[list[int]] = np.round(np.asarray(found) * SHADES).astype(int).tolist()
    return numbers


def _shades() -> list[tuple[str, str]]:
    """Ground and letters for each shade, from most against to most for."""
    found = (shade(k / SHADES) for k in range(-SHADES, SHADES + 1))
    return [(hexadecimal(ground), hexadecimal(ink(ground))) for ground in found]


def _section(generation: Generation, sample: int, maps: list[Maps]) -> str:
    """One sample: its pictures, each input's tokens; the generated ones are buttons, behind the
    prompt."""
    parts = [f'<section data-sample="{sample}">', _pictures(maps)]
    texts = _texts(generation)
    for name in texts:
        own = name == generation.stream
        parts.append(f"<h2>{markup(name)}</h2>" if len(texts) > 1 else "")
        prompt = f' data-prompt="{generation.prompt}"' if own else ""
        parts.append(f'<p class="tokens" data-input="{markup(name)}"{prompt}>')
        parts.append(_tokens(generation, name, sample, own=own))
        parts.append("</p>")
    if generation.stream not in generation.streams:
        parts.append(f'<p class="tokens">{_buttons(generation, sample)}</p>')
    return "".join([*parts, "</section>"])


def _pictures(maps: list[Maps]) -> str:
    """Each picture, grey, and a canvas of its patches over it."""
    shown = []
    for one in maps:
        height, width = one.shares.shape[1:]
        image = "" if one.seen is None else f'<img alt="" src="{_uri(one.seen)}">'
        canvas = f'<canvas width="{width}" height="{height}" role="img" aria-label="heat map">'
        shown.append(f'<div class="map">{image}{canvas}</canvas></div>')
    return f'<div class="maps">{"".join(shown)}</div>' if shown else ""


def _uri(pixels: np.ndarray) -> str:
    """A picture without its colours, as it stands in a page."""
    shades = np.repeat(grey(pixels / 255)[..., None] * 255, 3, -1).round().astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(png(shades)).decode("ascii")


def _tokens(generation: Generation, name: str, sample: int, *, own: bool) -> str:
    stream = generation.steps[0].streams[name]
    labels, content = columns(stream, sample), stream.content[sample].tolist()
    count = generation.prompt if own else len(labels)
    before = []
    for at, (label, inside) in enumerate(zip(labels[:count], content[:count], strict=True)):
        again = not inside and at > 0 and not content[at - 1] and labels[at - 1] == label
        kind = "" if inside else ' class="aside"'
        before.append(f"<bdi{kind}{' hidden' if again else ''}>{markup(label)}</bdi>")
    return " ".join(before) + (f" {_buttons(generation, sample)}" if own else "")


def _buttons(generation: Generation, sample: int) -> str:
    labels = generation.labels[sample]
    return " ".join(
        f'<button type="button" aria-pressed="false">{markup(labels[k]) or "&nbsp;"}</button>'
        for k in steps_of(generation, sample)
    )


def _small(one: Maps, place: int, token: str) -> str:
    data = base64.b64encode(png(one.over(one.shares[place]))).decode("ascii")
    return (
        f'<img alt="heat map for {markup(token)}" width="112" src="data:image/png;base64,{data}">'
    )


def fragment(generation: Generation) -> str:
    """For a notebook, without script: the prompt shaded by the mean of all rows, and what each
    token rests on most."""
    from relprop.views.generations import terminal

    parts = []
    for i in range(min(len(generation), SAMPLES)):
        kept = steps_of(generation, i)
        found = maps_of(generation, i, kept)
        for place, step in enumerate(kept if found else ()):
            images = " ".join(_small(one, place, generation.labels[i][step]) for one in found)
            parts.append(f"<p><b>{markup(generation.labels[i][step])}</b> {images}</p>")
        for name in _texts(generation):
            stream = generation.steps[0].streams[name]
            mean = np.asarray(shares(generation, name, i)).mean(0)
            grounds = [tuple(int(c) for c in rgb) for rgb in colours(mean / (abs(mean).max() or 1))]
            spans = (
                f'<bdi style="background:{hexadecimal(g)};color:{hexadecimal(ink(g))};'  # type: ignore[arg-type]
                f'padding:1px 3px">{markup(label)}</bdi>'
                for label, g in zip(columns(stream, i), grounds, strict=True)
            )
            parts.append(f"<p>{' '.join(spans)}</p>")
        lines = (markup(line, 10_000) for line in terminal(generation, i, k=5).split("\n"))
        parts += ["<pre>", "\n".join(lines), "</pre>"]
    if len(generation) > SAMPLES:
        parts.append(f"<p>{len(generation) - SAMPLES} more samples: generation.show(sample)</p>")
    return f'<div style="font-family:sans-serif;line-height:1.7">{"".join(parts)}</div>'
