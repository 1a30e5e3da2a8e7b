"""A picture's card: where its map lies, outlined, in words, and what the model says when that part
is covered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from relprop.cards.base import Card, map_uri, stack
from relprop.cards.trials import Comparison
from relprop.views.escape import markup
from relprop.views.page import data_uri

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from relprop.explanation import TokenScores

#: The outlined share of the picture, how many other places its shape is laid, and how many times
#: the mean its heat must be for the map to be more than spread evenly.
REGION, PLACES, EVEN = 0.2, 20, 1.25
NAMES = (
    ("top left", "top middle", "top right"),
    ("middle left", "centre", "middle right"),
    ("bottom left", "bottom middle", "bottom right"),
)


@dataclass(frozen=True, eq=False, repr=False)
class PictureCard(Card):
    """``picture``: bytes (H, W, 3). ``heat``: (H, W), the map on it. ``region``: (H, W), bool, the
    fifth of what the model saw with the most of the map; ``None`` of a map that is spread evenly.
    ``cover``: what covering it does, or why nothing was covered."""

    script: ClassVar[str] = "picture.js"
    picture: np.ndarray
    heat: np.ndarray
    region: np.ndarray | None
    cover: Comparison | str

    @property
    def _shares(self) -> np.ndarray:
        """The map as it is coloured: from its least to its most; of a signed one, about 0."""
        low, high = float(self.heat.min()), float(self.heat.max())
        if low < 0:
            return self.heat / max(-low, high)
        shares: np.ndarray = (self.heat - low) / ((high - low) or 1.0)
        return shares

    def _body(self) -> str:
        uri = data_uri(self.picture)
        if isinstance(self.cover, str):
            cover = f"<p>Nothing was covered: {markup(self.cover, 600)}.</p>"
        else:
            cover = f"<p>{markup(self.cover.sentence, 600)}</p>{_bars(self.cover)}"
        return (
            f'<section class="side"><figure>{stack(uri, self.heat.shape)}<figcaption>What the '
            f"model saw.</figcaption></figure>{self._map(uri)}</section><section><h2>Cover it and "
            f"ask again</h2>{cover}</section>"
        )

    def _map(self, uri: str) -> str:
        """The picture under its map and the outline, with a slider."""
        if self.region is None:
            return "<p>The map is spread evenly over the picture, so none is drawn.</p>"
        (height, width), line = self.heat.shape, outline(self.region)
        against = ", blue against it" if self.heat.min() < 0 else ""
        drawn = (
            f'<canvas id="heat" data-map="{map_uri(self._shares)}" role="img" '
            f'aria-label="{markup(self.said, 300)}"></canvas><svg viewBox="0 0 {width} {height}" '
            f'aria-hidden="true"><path class="under" d="{line}"/><path d="{line}"/></svg>'
        )
        return (
            f"<figure>{stack(uri, self.heat.shape, drawn)}<figcaption>Orange counts "
            f"for the answer{against}. Outlined: the fifth of the picture where "
            'the map is strongest.</figcaption><p><label for="least">Show the '
            'strongest <output id="shown">100 %</output> of the picture</label><br><input '
            'id="least" type="range" min="1" max="100" value="100"></p></figure>'
        )

    def _figure(self) -> Figure:
        from relprop.views.figure import figure, scale_of, show_heatmap, show_image

        fig, (left, right) = figure(2)
        show_image(left, self.picture / 255, "what the model saw")
        if self.region is None:
            show_image(right, self.picture / 255, "spread evenly: no map is drawn")
        else:
            heat, under = torch.from_numpy(self._shares), self.picture / 255
            show_heatmap(right, heat, "outlined: the strongest fifth", under, scale=scale_of(heat))
            right.contour(self.region.astype(float), [0.5], colors=["#000000"])
        fig.suptitle(f"{self.title}\n{self.said}", wrap=True, fontsize=9).set_parse_math(False)
        if not isinstance(self.cover, str):
            fig.supxlabel(self.cover.sentence, wrap=True, fontsize=8).set_parse_math(False)
        return fig


def _bars(cover: Comparison) -> str:
    """p as it was, after covering, and elsewhere, as bars from 0 to the largest."""
    low, middle, high = cover.interval
    rows = (
        ("as it is", cover.before, f"{cover.before:.2f}"),
        ("outlined part covered", cover.after, f"{cover.after:.2f}"),
        ("same shape elsewhere", middle, f"{middle:.2f} ({low:.2f} to {high:.2f})"),
    )
    return "".join(
        f'<div class="bar"><span>{name}</span><span class="track"><span '
        f'style="width:{value:.1%}"></span></span><b>{text}</b></div>'
        for name, value, text in rows
    )


def strongest_part(heat: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray | None:
    """(H, W), bool: the fifth of the positions that are ``seen`` (``None``: all) with the highest
    numbers; ``None`` where none stands out."""
    seen = np.ones(heat.shape, bool) if seen is None else seen
    least = float(np.quantile(heat[seen], 1 - REGION))
    region: np.ndarray = seen & (heat >= least)
    if region.sum() > 1.5 * REGION * seen.sum():  # many equal numbers
        region = seen & (heat > least)
    if not region.any() or heat[region].clip(0).mean() <= EVEN * heat[seen].clip(0).mean():
        return None
    return region


def seen_part(stream: TokenScores, size: tuple[int, ...]) -> np.ndarray | None:
    """(H, W), bool: what the model saw of a picture that is shown in this ``size``; ``None``: all
    of it."""
    if stream.originals is None:
        return None
    original, (height, width) = stream.originals[0], size
    top, left, bottom, right = original.frame
    rows = (np.arange(height) + 0.5) * original.size[0] / height
    columns = (np.arange(width) + 0.5) * original.size[1] / width
    down, across = (rows > top) & (rows < bottom), (columns > left) & (columns < right)
    seen: np.ndarray = down[:, None] & across[None]
    return seen if seen.any() else None


def in_words(heat: np.ndarray, region: np.ndarray | None) -> str:
    """Where the map lies, and how much of it: ``the middle left; a fifth of the picture holds
    74 %``."""
    if region is None:
        return "The map is spread evenly over the picture: no part of it stands out."
    positive = np.where(region, heat.clip(0), 0)
    rows, columns = (np.arange(n) * 3 // n if n >= 3 else np.ones(n, int) for n in positive.shape)
    cells = np.zeros((3, 3))
    np.add.at(cells, (rows[:, None], columns[None]), positive)
    shares = (cells / cells.sum()).ravel()
    named: list[str] = []
    held = 0.0
    for at in np.argsort(-shares, kind="stable"):
        if named and (held >= 0.6 or len(named) == 3):
            break
        named.append(NAMES[at // 3][at % 3])
        held += float(shares[at])
    where = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    share = positive.sum() / heat.clip(0).sum()
    return f"Mostly {where}: a fifth of the picture holds {share:.0%} of the map."


def outline(region: np.ndarray) -> str:
    """The border of a region as an SVG path, in pixels: a line for each run of sides along it."""
    padded = np.pad(region, 1).astype(np.int8)
    lines = []
    for across, turned in ((False, padded), (True, padded.T)):
        sides = np.diff(turned, axis=0)[:, 1:-1] != 0  # between a row and the next
        for place, row in enumerate(sides):
            ends = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
            for start, stop in ends.reshape(-1, 2).tolist():
                lines.append(f"M{place},{start}V{stop}" if across else f"M{start},{place}H{stop}")
    return "".join(lines)


def cover_of(region: np.ndarray, answers: Callable[[Tensor], Tensor], what: str) -> Comparison:
    """What covering the region (H, W) does. ``answers``: what the model says with what the masks
    (runs, H, W), bool, say covered, (runs,)."""
    generator, shape = torch.Generator().manual_seed(0), torch.from_numpy(region)
    moved = []
    for _ in range(PLACES):
        by = [
            int(torch.randint(1, n, (1,), generator=generator)) if n > 1 else 0 for n in shape.shape
        ]
        moved.append(shape.roll(by, (0, 1)))
    masks = torch.stack([torch.zeros_like(shape), shape, *moved])
    before, after, *others = answers(masks).tolist()
    verdicts = (
        "The outlined part matters more than almost anywhere else.",
        "That proves nothing: elsewhere it does as much.",
        "The outlined part matters less than elsewhere.",
    )
    done = "Covering the outlined part"
    beside = f"covering the same shape at {PLACES} other places"
    return Comparison(before, after, tuple(others), what, done, beside, verdicts)
