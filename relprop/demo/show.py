"""``relprop demo``: one picture, two classes, two maps, what they say and what they cost."""

from __future__ import annotations

import timeit
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relprop.api.explain import explain_many
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import Scenes, make_scenes
from relprop.errors import writable
from relprop.explanation import Explanation
from relprop.views.overlay import blended

SIDE, GAP, LETTERS = 320, 16, 18  # pixels of a panel, between panels, of the titles


def run_demo(out: Path, seed: int) -> str:
    """Explain scene ``seed`` for both digits, write the picture to ``out``, and return the
    report. Raises ``InputError`` where no file can be written."""
    writable(out)
    model, scenes = digit_scene_model(), make_scenes(1, seed=seed)
    digits = scenes.digits[0].tolist()
    explanations = explain_many(model, scenes.images, digits)
    draw(scenes, explanations, out)
    with torch.no_grad():
        probabilities = model(scenes.images).sigmoid()[0]
        forward = min(timeit.repeat(lambda: model(scenes.images), number=1))
    one = timeit.repeat(lambda: explain_many(model, scenes.images, digits[:1]), number=1)
    says = ", ".join(f"{d}: {probabilities[d]:.2f}" for d in digits)
    seen = f"scene {seed}: a {digits[0]} and a {digits[1]}, never seen in training"
    lines = [f"{seen}; the model's probabilities are {says}"]
    for which, e in enumerate(explanations):
        on, other = share_on(e, scenes, which), share_on(e, scenes, 1 - which)
        this, that = digits[which], digits[1 - which]
        share = f"{on:.0%} of the score lies on the {this}, {other:.0%} on the {that}"
        lines.append(f"why {this}? {share}")
    ledgers = [e.ledger for e in explanations if e.ledger is not None]
    worst = max(ledger.worst() for ledger in ledgers)
    lines.append(f"relevance adds up at every operation of the model, to {worst:.0e} of it")
    times = f"one explanation takes as long as {min(one) / forward:.0f} forward passes"
    lines.append(f"{times} (one picture, best of 5, this machine)")
    return "\n".join([*lines, f"picture: {out}"])


def share_on(e: Explanation, scenes: Scenes, which: int) -> float:
    """The share of the heat map's positive part on digit number ``which`` (mean over the batch)."""
    heat = e.heatmap().clamp(min=0)
    return float(((heat * scenes.mask(which)).sum((1, 2)) / heat.sum((1, 2))).mean())


def draw(scenes: Scenes, explanations: list[Explanation], out: Path) -> None:
    """Input, the map for each class, and both over one picture (red: first class, blue: second)."""
    from PIL import Image, ImageDraw, ImageFont

    image, digits = scenes.images[0], scenes.digits[0].tolist()
    panels = [np.repeat(image.movedim(0, -1).numpy(), 3, -1)]
    for e in explanations:
        shares = e.heatmap()[0].numpy()
        panels.append(blended(shares / np.abs(shares).max(), image[0].numpy()) / 255)
    panels.append(_two_colours(image, explanations).movedim(0, -1).numpy())
    titles = ["input", *(f"why {d}?" for d in digits), f"{digits[0]} red, {digits[1]} blue"]
    sheet = Image.new("RGB", (len(panels) * (SIDE + GAP) + GAP, SIDE + 3 * GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        shown = Image.fromarray((panel * 255).round().astype(np.uint8))
        left = GAP + i * (SIDE + GAP)
        sheet.paste(shown.resize((SIDE, SIDE), Image.Resampling.NEAREST), (left, 2 * GAP))
        place = (left + SIDE // 2, GAP)
        pen.text(place, title, "black", anchor="mm", font=ImageFont.load_default(LETTERS))
    sheet.save(out, "PNG")


def _two_colours(image: Tensor, explanations: list[Explanation]) -> Tensor:
    first, second = (e.heatmap()[0].clamp(min=0) for e in explanations)
    first, second = first / first.max().clamp(min=1e-12), second / second.max().clamp(min=1e-12)
    grey = image[0] * 0.45
    return torch.stack([grey + 0.55 * first, grey, grey + 0.55 * second]).clamp(0, 1)
