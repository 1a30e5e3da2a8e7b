"""Heat maps over their images, and several explanations side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from relprop.errors import OptionError, message
from relprop.views.figure import (
    add_scale,
    given,
    room_for,
    scale_of,
    several,
    show_heatmap,
    write_ticks,
    write_title,
)
from relprop.views.shown import Units, checked, named, only, target_of, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from relprop.explanation import Explanation

SCALES = (None, "shared", "own")


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
        image: (C, H, W), (H, W) or (H, W, C) in [0, 1] or bytes: the model's own, or the picture it
            was made from, if the explanation knows that one.
        strongest: the score at the scale's end, for maps on one scale; ``None``: this map's largest
            |score|.

    Raises ``OptionError`` for what is no image, ``InputError`` for an image of the wrong shape or
    range.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> e = relprop.explain(digit_scene_model(), torch.rand(1, 1, 32, 32), target=3)
    >>> relprop.plot.heatmap(e, torch.rand(1, 32, 32)).get_title()
    'target 3'
    """
    sample, heat = checked(explanation, sample), _heat(explanation, sample, image)
    axes = given(ax, 4.0, 3.6)
    drawn = show_heatmap(
        axes,
        heat,
        f"target {target_of(explanation, sample)}" if title is None else title,
        image,
        scale=scale_of(heat, strongest=strongest),
    )
    if colorbar:
        add_scale(drawn, axes, "score")
    return axes


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
    """Several targets or methods of one sample side by side on one scale: a heat map each, or, of
    texts, a row of shaded words each.

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
    all_of = list(found.values())
    if scale not in SCALES:
        raise OptionError(f"scale={scale!r}: one of {', '.join(map(repr, SCALES))}")
    if scale is None:
        scale = (
            "shared"
            if len({(e.method, e.rules, str(e.facts.get("options"))) for e in all_of}) == 1
            else "own"
        )
    images = [only(e, "compare()").grid is not None for e in all_of]
    if all(images):
        return _compare_maps(found, image, sample, scale, ax, colorbar)
    if any(images):
        raise OptionError("compare(): some explanations are of images and some of texts")
    return [_compare_rows(found, sample, scale, ax, colorbar)]


def _labelled(
    explanations: Any, labels: Iterable[str] | None, sample: int
) -> dict[str, Explanation]:
    given_labels = getattr(explanations, "explanations", explanations)
    parts = list(given_labels.values()) if isinstance(given_labels, Mapping) else list(given_labels)
    if not parts:
        raise OptionError("compare(): no explanations")
    for part in parts:
        checked(part, sample)
    names = (
        list(labels)
        if labels is not None
        else list(map(str, given_labels))
        if isinstance(given_labels, Mapping)
        else []
    )
    if not names:
        one_method = len({p.method for p in parts}) == 1
        names = [f"target {target_of(p, sample)}" if one_method else p.method for p in parts]
    if len(names) != len(parts):
        raise OptionError(f"labels has {len(names)} entries for {len(parts)} explanations")
    return {
        name if names.count(name) == 1 else f"{name} ({i + 1})": part
        for i, (name, part) in enumerate(zip(names, parts, strict=True))
    }


def _compare_maps(
    found: Mapping[str, Explanation], image: Any, sample: int, scale: str, ax: Any, colorbar: bool
) -> list[Axes]:
    heats = [_heat(e, sample, image) for e in found.values()]
    if scale == "own":
        heats = [heat / (heat.abs().max() or 1.0) for heat in heats]
    (axes,) = several(ax, 1, len(heats), 2.3, 2.3 * heats[0].shape[0] / heats[0].shape[1] + 0.25)
    common = scale_of(*heats) if scale == "shared" else scale_of(*heats, strongest=1.0)
    for panel, label, heat in zip(axes, found, heats, strict=False):
        drawn = show_heatmap(panel, heat, label, image, scale=common)
    if colorbar:
        add_scale(
            drawn,
            axes[: len(heats)],
            "score" if scale == "shared" else "share of each map's strongest",
            shrink=0.7,
        )
    return axes[: len(heats)]


def _compare_rows(
    found: Mapping[str, Explanation], sample: int, scale: str, ax: Any, colorbar: bool
) -> Axes:
    rows = _rows_of(found, sample)
    first = next(iter(rows.values()))
    others = [label for label, row in rows.items() if row.names != first.names]
    if others:
        raise OptionError(
            message(
                f"compare(): {', '.join(others)} scores other tokens than {next(iter(rows))}",
                then=["compare those that score the same tokens with each other"],
            )
        )
    values = np.array(
        [row.scores if scale == "shared" else row.relative() for row in rows.values()]
    )
    labels = [named(name) for name in first.names]
    ((axes,),) = several(
        ax,
        1,
        1,
        max(4.0, 0.34 * len(labels) + 0.8 + room_for(list(rows))),
        0.3 * len(rows) + 0.5 + room_for(labels),
    )
    drawn = axes.imshow(
        values,
        aspect="auto",
        **scale_of(values, strongest=None if scale == "shared" else 1.0, light=True),
    )
    write_ticks(axes, "x", labels, rotation=90)
    write_ticks(axes, "y", list(rows))
    axes.spines[:].set_visible(False)
    targets = {target_of(e, sample) for e in found.values()}
    write_title(axes, f"target {targets.pop()}" if len(targets) == 1 else "")
    if colorbar:
        add_scale(
            drawn,
            axes,
            "score" if scale == "shared" else "share of strongest",
            shrink=1.0,
            aspect=12,
        )
    return axes


def _rows_of(found: Mapping[str, Explanation], sample: int) -> dict[str, Units]:
    by = (
        "words" if all(only(e, "compare()").words is not None for e in found.values()) else "tokens"
    )
    return {label: units(e, sample, by) for label, e in found.items()}


def _heat(explanation: Explanation, sample: int, image: Any) -> torch.Tensor:
    """The map (H, W) in the model's image, or in the picture it was made from where ``image`` is
    that picture."""
    stream = only(explanation, "heatmap()")
    if stream.grid is None or stream.image is None:
        raise OptionError(
            message(
                "heatmap() is for images: this explanation has no patch grid",
                then=["relprop.plot.text(explanation)", "explanation.plot()"],
            )
        )
    if len(stream.grid) != 2:
        raise OptionError(
            message(
                f"heatmap() is for one picture: this explanation's grid is {stream.grid}",
                then=["explanation.plot()   # a map for each time"],
            )
        )
    size = tuple(getattr(image, "shape", ())[-2:])
    whole = stream.originals is not None and stream.image != size == stream.originals[sample].size
    return (
        explanation.original_heatmap(sample)
        if whole
        else explanation.heatmap()[sample].detach().cpu()
    )
