"""Heat maps over their images, and several explanations side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.views.figure import (
    Panels,
    add_scale,
    axes_or_new,
    room_for,
    scale_of,
    several,
    show_heatmap,
    write_ticks,
    write_title,
)
from relprop.views.overlay import full_colour, heatmap_and_image
from relprop.views.sequences import show_time
from relprop.views.shown import Units, checked, named, only, pairs_of, target_of, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from relprop.explanation import Explanation

SCALES = (None, "shared", "own")
ABREAST, IN_A_LINE = 4, 28  # maps beside each other, words in a line of rows


@guarded
def heatmap(
    explanation: Explanation,
    image: Any = None,
    *,
    sample: int = 0,
    ax: Axes | None = None,
    title: str | None = None,
    colorbar: bool = True,
    strongest: float | None = None,
) -> Axes:
    """One sample's heat map, over its image if that is given: the stronger, the more opaque. A
    signed map diverges about 0, orange for the target.

    Args:
        image: a PIL picture, or (C, H, W), (H, W) or (H, W, C) in [0, 1] or bytes: the model's own
            image, or the picture it was made from, if the explanation knows that one; the map lies
            where the model's image was cut. ``None``: the picture that was kept, if one was;
            ``False``: none.
        strongest: the score at the scale's end, for maps on one scale; ``None``: this map's largest
            |score|, where every pixel has a score that which one pixel in a hundred exceeds.

    Raises ``OptionError`` for what is no image, ``InputError`` for an image whose size is neither
    the model's nor the picture's, or of the wrong range.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> e = relprop.explain(digit_scene_model(), torch.rand(1, 1, 32, 32), target=3)
    >>> relprop.plot.heatmap(e, torch.rand(1, 32, 32)).get_title()
    'target 3'
    """
    sample = checked(explanation, sample)
    heat, image = heatmap_and_image(explanation, sample, image)
    height = 3.2 * heat.shape[0] / heat.shape[1]
    axes = axes_or_new(ax, 4.0, min(max(height, 1.2), 5.0) + 0.4)
    title = f"target {target_of(explanation, sample)}" if title is None else title
    stream = only(explanation, "heatmap()")
    strongest = full_colour(heat, stream) if strongest is None else strongest
    drawn = show_heatmap(axes, heat, title, image, scale=scale_of(heat, strongest=strongest))
    show_time(axes, stream)
    if colorbar:
        add_scale(drawn, axes, "score")
    return axes


@guarded
def compare(
    explanations: Any,
    image: Any = None,
    *,
    sample: int = 0,
    labels: Iterable[str] | None = None,
    scale: str | None = None,
    ax: Any = None,
    colorbar: bool = True,
) -> list[Axes]:
    """Several targets or methods of one sample side by side on one scale: a heat map each, four
    abreast, or, of texts, a row of shaded words each, broken into lines.

    Args:
        explanations: a list, a mapping from labels, or what ``relprop.compare`` returned.
        labels: a heading for each; ``None``: the mapping's keys, else the targets of one method, or
            the methods.
        scale: ``"shared"``: the scores themselves. ``"own"``: each divided by its own strongest,
            since units of two methods have nothing in common. ``None``: shared among explanations
            by one method and rule set, else own.
        ax: as many axes as explanations (one for texts), to draw in.

    Returns the axes. Raises ``OptionError`` for none, for images mixed with texts, and for texts of
    different words.
    """
    found = _labelled(explanations, labels, sample)
    if scale not in SCALES:
        raise OptionError(f"scale={scale!r}: one of {', '.join(map(repr, SCALES))}")
    shared = _of_one_method(found) if scale is None else scale == "shared"
    images = [only(e, "compare()").grid is not None for e in found.values()]
    if all(images):
        return Panels(_compare_maps(found, image, sample, shared, ax, colorbar))
    if any(images):
        raise OptionError("compare(): some explanations are of images and some of texts")
    return Panels(_compare_rows(found, sample, shared, ax, colorbar))


def _of_one_method(found: Mapping[str, Explanation]) -> bool:
    """Whether one method, with the same rules and options, made all of them."""
    return len({(e.method, e.rules, str(e.facts.get("options"))) for e in found.values()}) == 1


def _labelled(
    explanations: Any, labels: Iterable[str] | None, sample: int
) -> dict[str, Explanation]:
    """Explanations by their headings; equal headings are told apart by number."""
    needed = "a Comparison, a list or a dict of explanations"
    pairs = pairs_of(explanations, "compare()", needed)
    if not pairs:
        raise OptionError("compare(): no explanations")
    parts = [part for _, part in pairs]
    for part in parts:
        checked(part, sample)
    names = list(labels) if labels is not None else [str(k) for k, _ in pairs if k is not None]
    names = names or _headings(parts, sample)
    if len(names) != len(parts):
        raise OptionError(f"labels has {len(names)} entries for {len(parts)} explanations")
    return {
        name if names.count(name) == 1 else f"{name} ({i + 1})": part
        for i, (name, part) in enumerate(zip(names, parts, strict=True))
    }


def _headings(parts: list[Explanation], sample: int) -> list[str]:
    """The targets of one method, or the methods."""
    if len({part.method for part in parts}) == 1:
        return [f"target {target_of(part, sample)}" for part in parts]
    return [part.method for part in parts]


def _compare_maps(
    found: Mapping[str, Explanation], image: Any, sample: int, shared: bool, ax: Any, colorbar: bool
) -> list[Axes]:
    both = [heatmap_and_image(e, sample, image) for e in found.values()]
    heats, under = [heat for heat, _ in both], [picture for _, picture in both]
    streams = [only(e, "compare()") for e in found.values()]
    full = [full_colour(heat, s) for heat, s in zip(heats, streams, strict=True)]
    if not shared:
        heats = [heat / most for heat, most in zip(heats, full, strict=True)]
    axes = _panels(ax, len(heats), 2.3 * heats[0].shape[0] / heats[0].shape[1] + 0.25)
    common = scale_of(*heats, strongest=max(full) if shared else 1.0)
    for panel, label, heat, picture in zip(axes, found, heats, under, strict=True):
        drawn = show_heatmap(panel, heat, label, picture, scale=common)
        show_time(panel, streams[0])
    if colorbar:
        add_scale(drawn, axes, "score" if shared else "share of each map's strongest", shrink=0.7)
    return axes


def _panels(ax: Any, count: int, height: float) -> list[Axes]:
    """So many axes, in rows of about the same length in a figure of their own."""
    if ax is not None:
        return several(ax, 1, count, 0, 0)[0]
    rows = -(-count // ABREAST)
    columns = -(-count // rows)
    panels = [panel for row in several(None, rows, columns, 2.3, height) for panel in row]
    for panel in panels[count:]:
        panel.remove()
    return panels[:count]


def _compare_rows(
    found: Mapping[str, Explanation], sample: int, shared: bool, ax: Any, colorbar: bool
) -> list[Axes]:
    rows = _rows_of(found, sample)
    values = np.array([row.scores if shared else row.relative() for row in rows.values()])
    labels = [named(name) for name in next(iter(rows.values())).names]
    scale = scale_of(values, strongest=None if shared else 1.0)
    starts = range(0, len(labels), len(labels) if ax is not None else min(len(labels), IN_A_LINE))
    width = max(4.0, 0.34 * min(len(labels), starts.step) + 0.8 + room_for(list(rows)))
    height = 0.3 * len(rows) + 0.5 + room_for(labels[: starts.step])
    lines = [axes for (axes,) in several(ax, len(starts), 1, width, height)]
    for axes, start in zip(lines, starts, strict=True):
        words = labels[start : start + starts.step]
        padded = np.full((len(values), starts.step), np.nan)
        padded[:, : len(words)] = values[:, start : start + starts.step]
        drawn = axes.imshow(padded, aspect="auto", **scale)
        write_ticks(axes, "x", words, rotation=90)
        write_ticks(axes, "y", list(rows))
        axes.spines[:].set_visible(False)
    targets = {target_of(e, sample) for e in found.values()}
    write_title(lines[0], f"target {targets.pop()}" if len(targets) == 1 else "")
    if colorbar:
        add_scale(drawn, lines, "score" if shared else "share of strongest", shrink=1.0, aspect=12)
    return lines


def _rows_of(found: Mapping[str, Explanation], sample: int) -> dict[str, Units]:
    """The words of each explanation, or the tokens where not all know words. Raises ``OptionError``
    where they are not the same."""
    words = all(only(e, "compare()").words is not None for e in found.values())
    rows = {label: units(e, sample, "words" if words else "tokens") for label, e in found.items()}
    first, *_ = rows
    others = [label for label, row in rows.items() if row.names != rows[first].names]
    if others:
        raise OptionError(
            f"compare(): {', '.join(others)} scores other tokens than {first}",
            then=["compare those that score the same tokens with each other"],
        )
    return rows
