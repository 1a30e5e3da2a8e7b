"""A generation as one HTML file: whichever generated token is pointed at (or reached by the
keyboard), the tokens before it are shaded by its scores. Nothing is loaded; all text is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relprop.views.colours import colours, hexadecimal, ink, shade
from relprop.views.escape import markup
from relprop.views.generations import columns, shares, steps_of
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
)
SCRIPT = """
const data = JSON.parse(document.getElementById("scores").textContent);
for (const section of document.querySelectorAll("section")) {
  const rows = data.rows[Number(section.dataset.sample)];
  const buttons = [...section.querySelectorAll("button")];
  const places = [...section.querySelectorAll("[data-input]")];
  let held = null;
  const paint = step => {
    buttons.forEach((b, k) => b.setAttribute("aria-pressed", String(k === step)));
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
    found = [
        {name: _numbers(generation, name, i) for name in generation.streams}
        for i in range(len(generation))
    ]
    first = generation.steps[0]
    return page(
        title,
        "Point at a generated token, or reach it by the keyboard; a click holds it.",
        f"{first.method}, rules {first.rules}",
        [_section(generation, i) for i in range(len(generation))],
        found,
    )


def page(
    title: str,
    how: str,
    about: str,
    sections: Sequence[str],
    rows: Sequence[Mapping[str, list[list[int]]]],
) -> str:
    """A page on which buttons shade what stands in front of them: of each section and each input a
    row of shades per button."""
    data = {"most": SHADES, "shades": _shades(), "rows": rows}
    scores = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{markup(title, 200)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{markup(title, 200)}</h1><p>{markup(how, 200)} Orange speaks for it, blue against "
        f"it. <small>{markup(about, 200)}</small></p>"
        f'{"".join(sections)}<script type="application/json" id="scores">{scores}</script>'
        f"<script>{SCRIPT}</script></html>"
    )


def _numbers(generation: Generation, name: str, sample: int) -> list[list[int]]:
    """The shares of each step's row in whole shades."""
    rows = np.asarray(shares(generation, name, sample))
    numbers: list[list[int]] = np.round(rows * SHADES).astype(int).tolist()
    return numbers


def _shades() -> list[tuple[str, str]]:
    """Ground and letters for each shade, from most against to most for."""
    found = (shade(k / SHADES) for k in range(-SHADES, SHADES + 1))
    return [(hexadecimal(ground), hexadecimal(ink(ground))) for ground in found]


def _section(generation: Generation, sample: int) -> str:
    """One sample: each input's tokens; the generated ones are buttons, behind the prompt."""
    parts = [f'<section data-sample="{sample}">']
    for name in generation.streams:
        own = name == generation.stream
        parts.append(f"<h2>{markup(name)}</h2>" if len(generation.streams) > 1 else "")
        prompt = f' data-prompt="{generation.prompt}"' if own else ""
        parts.append(f'<p class="tokens" data-input="{markup(name)}"{prompt}>')
        parts.append(_tokens(generation, name, sample, own=own))
        parts.append("</p>")
    if generation.stream not in generation.streams:
        parts.append(f'<p class="tokens">{_buttons(generation, sample)}</p>')
    return "".join([*parts, "</section>"])


def _tokens(generation: Generation, name: str, sample: int, *, own: bool) -> str:
    stream = generation.steps[0].streams[name]
    labels, content = columns(stream, sample), stream.content[sample].tolist()
    count = generation.prompt if own else len(labels)
    before = (
        f'<bdi class="aside">{markup(label)}</bdi>' if not inside else f"<bdi>{markup(label)}</bdi>"
        for label, inside in zip(labels[:count], content[:count], strict=True)
    )
    return " ".join(before) + (f" {_buttons(generation, sample)}" if own else "")


def _buttons(generation: Generation, sample: int) -> str:
    labels = generation.labels[sample]
    return " ".join(
        f'<button type="button" aria-pressed="false">{markup(labels[k]) or "&nbsp;"}</button>'
        for k in steps_of(generation, sample)
    )


def fragment(generation: Generation) -> str:
    """For a notebook, without script: the prompt shaded by the mean of all rows, and what each
    token rests on most."""
    from relprop.views.generations import terminal

    parts = []
    for i in range(min(len(generation), SAMPLES)):
        for name, stream in generation.steps[0].streams.items():
            mean = np.asarray(shares(generation, name, i)).mean(0)
            grounds = [tuple(int(c) for c in rgb) for rgb in colours(mean / (abs(mean).max() or 1))]
            spans = (
                f'<bdi style="background:{hexadecimal(g)};color:{hexadecimal(ink(g))};'  # type: ignore[arg-type]
                f'padding:1px 3px">{markup(label)}</bdi>'
                for label, g in zip(columns(stream, i), grounds, strict=True)
            )
            parts.append(f"<p>{' '.join(spans)}</p>")
        parts.append(f"<pre>{markup(terminal(generation, i, k=5), 100_000)}</pre>")
    if len(generation) > SAMPLES:
        parts.append(f"<p>{len(generation) - SAMPLES} more samples: generation.show(sample)</p>")
    return f'<div style="font-family:sans-serif;line-height:1.7">{"".join(parts)}</div>'
