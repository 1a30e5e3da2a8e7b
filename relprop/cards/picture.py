"""A picture's card: where its map lies, outlined, in words, and what the model says when that part
is covered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relprop.cards.base import Card, data_uri
from relprop.cards.trials import Deletion, deleted
from relprop.views.colours import ramps
from relprop.views.escape import markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The outlined share of the picture, how many other places its shape is laid, and how many times
#: the mean its heat must be for the map to be more than spread evenly.
REGION, PLACES, EVEN = 0.2, 20, 1.25
SAME = 0.005  # a smaller difference of two probabilities is none
CELLS = 16  # parts along a side that are covered one after another
NAMES = (
    ("top left", "top middle", "top right"),
    ("middle left", "centre", "middle right"),
    ("bottom left", "bottom middle", "bottom right"),
)


@dataclass(frozen=True)
class Cover:
    """p of the explained class: ``before``; ``after`` the region was covered by the picture's mean
    colour; ``elsewhere``, the same shape at ``PLACES`` other places. ``what``: what p is."""

    before: float
    after: float
    elsewhere: tuple[float, ...]
    what: str

    @property
    def interval(self) -> tuple[float, float, float]:
        """Median, 5 % and 95 % of the other places."""
        low, middle, high = np.quantile(self.elsewhere, (0.05, 0.5, 0.95)).tolist()
        return middle, low, high

    @property
    def sentence(self) -> str:
        """What covering says, and whether it says anything."""
        middle, low, high = self.interval
        other = (
            f"the same shape at {len(self.elsewhere)} other places gives {middle:.2f} "
            f"(5 to 95 %: {low:.2f} to {high:.2f})"
        )
        fact = f"Covering the outlined part takes the {self.what} from {self.before:.2f} to "
        if low - SAME <= self.after <= high + SAME:
            return f"{fact}{self.after:.2f}. That proves nothing: {other}."
        side = "less than almost anywhere else" if self.after < low else "more than elsewhere"
        return f"{fact}{self.after:.2f}, {side}: {other}."


@dataclass(frozen=True, eq=False, repr=False)
class PictureCard(Card):
    """``picture``: bytes (H, W, 3). ``heat``: (H, W), the map on it. ``region``: (H, W), bool, the
    fifth of what the model saw with the most of the map; ``None`` of a map that is spread evenly.
    ``cover``: what covering it does, or ``why_no_cover``."""

    picture: np.ndarray
    heat: np.ndarray
    region: np.ndarray | None
    cover: Cover | None
    why_no_cover: str = ""

    def _scripts(self) -> tuple[str, ...]:
        return ("picture.js",)

    @property
    def _shares(self) -> np.ndarray:
        """The map as it is coloured: from its least to its most; of a signed one, about 0."""
        low, high = float(self.heat.min()), float(self.heat.max())
        if low < 0:
            return self.heat / max(-low, high)
        shares: np.ndarray = (self.heat - low) / ((high - low) or 1.0)
        return shares

    def _data(self) -> Mapping[str, Any]:
        shares = self._shares
        levels = np.round(shares * 127 + 128) if self.heat.min() < 0 else np.round(shares * 255)
        return {
            "map": data_uri(levels.astype(np.uint8)),
            "signed": bool(self.heat.min() < 0),
            "colours": ramps()["light"],
            "flat": self.region is None,
        }

    def _body(self) -> str:
        height, width = self.heat.shape
        shown = f'<img alt="the picture" src="{data_uri(self.picture)}">'
        size = f'style="aspect-ratio:{width}/{height}"'
        with_map = (
            "<p>The map is spread evenly over the picture, so none is drawn.</p>"
            if self.region is None
            else f'<figure><div class="stack" {size}>{shown}<canvas id="heat" width="{width}" '
            f'height="{height}" role="img" aria-label="{markup(self.said, 300)}"></canvas>'
            f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">'
            f'<path class="under" d="{outline(self.region)}"/><path d="{outline(self.region)}"/>'
            "</svg></div><figcaption>Orange counts for the "
            f"answer{', blue against it' if self.heat.min() < 0 else ''}. Outlined: the fifth of "
            'the picture where the map is strongest.</figcaption><p><label for="least">Show the '
            'strongest <output id="shown">100 %</output> of the picture</label><br><input '
            'id="least" type="range" min="1" max="100" value="100"></p></figure>'
        )
        cover = self.cover.sentence if self.cover else f"Nothing was covered: {self.why_no_cover}."
        return (
            f'<section class="side"><figure><div class="stack" {size}>{shown}</div><figcaption>'
            f"What the model saw.</figcaption></figure>{with_map}</section><section><h2>Cover it "
            f"and ask again</h2><p>{markup(cover, 600)}</p>{self._bars()}</section>"
        )

    def _bars(self) -> str:
        """p as it was, after covering, and elsewhere, as bars from 0 to the largest."""
        if self.cover is None:
            return ""
        middle, low, high = self.cover.interval
        rows = (
            ("as it is", self.cover.before, f"{self.cover.before:.2f}"),
            ("outlined part covered", self.cover.after, f"{self.cover.after:.2f}"),
            ("same shape elsewhere", middle, f"{middle:.2f} ({low:.2f} to {high:.2f})"),
        )
        most = max(1.0, *(value for _, value, _ in rows))
        return "".join(
            f'<div class="bar"><span>{name}</span><span class="track"><span '
            f'style="width:{100 * max(0.0, value) / most:.1f}%"></span></span><b>{text}</b></div>'
            for name, value, text in rows
        )

    def _figure(self) -> Figure:
        from relprop.views.figure import figure, scale_of, show_heatmap, show_image

        fig, (left, right) = figure(2)
        show_image(left, self.picture / 255, "what the model saw")
        if self.region is None:
            show_image(right, self.picture / 255, "spread evenly: no map is drawn")
        else:
            heat = torch.from_numpy(self._shares)
            under = self.picture / 255
            show_heatmap(right, heat, "outlined: the strongest fifth", under, scale=scale_of(heat))
            right.contour(self.region.astype(float), [0.5], colors=["#000000"])
        fig.suptitle(f"{self.title}\n{self.said}", wrap=True, fontsize=9).set_parse_math(False)
        if self.cover is not None:
            note = fig.supxlabel(self.cover.sentence, wrap=True, fontsize=8)
            note.set_parse_math(False)
        return fig


def strongest_part(heat: np.ndarray, seen: np.ndarray) -> np.ndarray | None:
    """(H, W), bool: the fifth of the positions that are ``seen`` with the highest numbers; ``None``
    where none stands out."""
    inside = heat[seen]
    least = float(np.quantile(inside, 1 - REGION))
    region: np.ndarray = seen & (heat >= least)
    if region.sum() > 1.5 * REGION * seen.sum():  # many equal numbers
        region = seen & (heat > least)
    positive = inside.clip(0)
    if not region.any() or heat[region].clip(0).mean() <= EVEN * positive.mean():
        return None
    return region


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


def covers(
    image: Tensor,
    heat: Tensor,
    answers: Callable[[Tensor], Tensor],
    what: str,
    parts: tuple[int, int],
) -> tuple[Cover | None, Deletion]:
    """What covering does. ``image`` (C, H, W), as the model takes it; ``heat`` (H, W), its map;
    ``answers``: p of images (runs, C, H, W). ``parts``: (rows, columns) of what is covered one
    after another."""
    mean = image.mean((-2, -1), keepdim=True)

    def covered(masks: Tensor) -> Tensor:
        """p with what the masks (runs, H, W) say covered."""
        here = masks[:, None].to(image.device)
        return answers(torch.where(here, mean, image))

    region = strongest_part(heat.numpy(), np.ones(heat.shape, bool))
    cover = None
    if region is not None:
        generator = torch.Generator().manual_seed(0)
        shape = torch.from_numpy(region)
        draws = [
            [
                int(torch.randint(1, n, (1,), generator=generator)) if n > 1 else 0
                for n in shape.shape
            ]
            for _ in range(PLACES)
        ]
        moved = [shape.roll(shift, (0, 1)) for shift in draws]
        found = covered(torch.stack([torch.zeros_like(shape), shape, *moved])).tolist()
        cover = Cover(found[0], found[1], tuple(found[2:]), what)
    rows, columns = (torch.arange(n) * k // n for n, k in zip(heat.shape, parts, strict=True))
    scores = torch.zeros(parts, dtype=torch.float64)
    scores.index_put_((rows[:, None], columns[None]), heat.double(), accumulate=True)

    def by_parts(masks: Tensor) -> Tensor:
        return covered(masks.view(-1, *parts)[:, rows][:, :, columns])

    return cover, deleted(scores.flatten(), by_parts, what, "picture")
