"""Token × token matrices, layer × token maps, and a block's heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError, nearest
from relprop.views.figure import (
    GREY,
    TICK,
    TITLE,
    Panels,
    add_scale,
    axes_or_new,
    room_for,
    scale_of,
    several,
    write_ticks,
    write_title,
)
from relprop.views.shown import checked, only, target_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from relprop.explanation import Block, Explanation

Kept = TypeVar("Kept")
SYMBOLS = {"attention": "A", "gradient": "∇A", "relevance": "R"}


@guarded
def matrix(
    explanation: Explanation,
    *,
    block: int | None = None,
    head: int | None = None,
    kind: str = "attention",
    sample: int = 0,
    ax: Axes | None = None,
    title: str | None = None,
    colorbar: bool = True,
) -> Axes:
    """A token × token matrix, rows reading from columns: C (Eq. 14), or of one ``block`` its
    attention, gradient or relevance.

    C holds the identity that skip connections leave; its scale ends at the largest number off the
    diagonal, which would be invisible beside that.

    Args:
        block: an attention site in forward order, −1 the last; ``None``: C, which needs
            ``keep="matrix"``; a block needs ``keep="blocks"``.
        head: one head; ``None``: the mean over heads.
        kind: ``"attention"`` (A), ``"gradient"`` (∂y_t/∂A) or ``"relevance"`` (R).

    Raises ``OptionError`` where it was not kept, saying which ``keep=`` keeps it.
    """
    sample = checked(explanation, sample)
    if kind not in SYMBOLS:
        known = ", ".join(map(repr, SYMBOLS))
        raise OptionError(f"kind={kind!r}: one of {known}", then=nearest(kind, SYMBOLS))
    if block is None:
        values, caption = _c_matrix(explanation, head, sample), "C"
    else:
        values, caption = _site_matrix(explanation, (block, head, kind), sample)
    shown = _numbers(values)
    labels = _labels(explanation, sample)
    axes = _matrix_axes(ax, labels, shown.shape)
    strongest = _off_diagonal(shown) if block is None else None
    drawn = axes.imshow(shown, **scale_of(shown, strongest=strongest))
    for which, count in zip("yx", shown.shape, strict=True):
        _ticks_of_tokens(axes, which, labels, count)
    axes.set_xlabel("from", fontsize=TICK)
    axes.set_ylabel("to", fontsize=TICK)
    caption = f"{caption}, target {target_of(explanation, sample)}"
    write_title(axes, caption if title is None else title)
    axes.spines[:].set_visible(False)
    if colorbar:
        whole = strongest is None or strongest >= shown.max()
        add_scale(drawn, axes, "", extend="neither" if whole else "max")
    return axes


def _c_matrix(explanation: Explanation, head: int | None, sample: int) -> Tensor:
    if head is not None:
        raise OptionError(
            f"matrix(head={head}) needs a block",
            then=["relprop.plot.matrix(explanation, block=-1, head=0)"],
        )
    return _needed(only(explanation, "matrix()").matrix, "matrix()", "matrix")[sample]


def _site_matrix(
    explanation: Explanation, chosen: tuple[int, int | None, str], sample: int
) -> tuple[Tensor, str]:
    """One head of a block, or the mean over its heads, with a caption. ``chosen``: block, head and
    kind."""
    number, head, kind = chosen
    block, name = _chosen_block(explanation, number, "matrix()")
    maps = _maps_of(block, kind, sample)
    if head is None:
        return maps.mean(0), f"{name}\n{SYMBOLS[kind]}, mean over heads"
    if not -len(maps) <= head < len(maps):
        raise OptionError(f"head={head}: {block.path} has {len(maps)} heads")
    return maps[head], f"{name}\n{SYMBOLS[kind]}, head {head % len(maps)}"


def _matrix_axes(ax: Axes | None, labels: list[str] | None, shape: tuple[int, ...]) -> Axes:
    """``ax``, or a figure with room for a label at every token."""
    room = 0.4 if labels is None else room_for(labels)
    side = min(max(2.0, 0.17 * max(shape)), 3.6 if labels is None else 7.0) + room + 0.4
    return axes_or_new(ax, side + 0.6, max(side * shape[0] / max(shape), room + 1.2))


@guarded
def layers(
    explanation: Explanation,
    *,
    sample: int = 0,
    ax: Axes | None = None,
    title: str | None = None,
    colorbar: bool = True,
) -> Axes:
    """The scores' parts by layer, a row each, L0 nearest the input, and the scores below them
    (AttCAT, Qiang et al. 2022, Fig. 4).

    The last row is named Σ where the scores are the rows' sum, else "scores" (some methods take a
    mean or a maximum). Needs ``keep="layers"``; raises ``OptionError`` without it.
    """
    sample, stream = checked(explanation, sample), only(explanation, "layers()")
    parts = _numbers(_needed(stream.layers, "layers()", "layers")[sample])
    whole = _numbers(stream.scores[sample])
    rows = np.concatenate([parts, np.full((1, parts.shape[1]), np.nan), whole[None]])
    labels = _labels(explanation, sample)
    width = min(max(4.0, 0.26 * rows.shape[1] + 1.6), 11.0)
    axes = axes_or_new(ax, width, 0.22 * len(rows) + 0.6 + room_for(labels or ["000"]))
    drawn = axes.imshow(rows, aspect="auto", **scale_of(rows[~np.isnan(rows)]))
    _ticks_of_tokens(axes, "x", labels, rows.shape[1])
    summed = np.allclose(parts.sum(0), whole, rtol=1e-4, atol=1e-6 * np.abs(whole).max())
    last = "Σ" if summed else "scores"
    write_ticks(axes, "y", [*(f"L{i}" for i in range(len(parts))), "", last])
    axes.spines[:].set_visible(False)
    caption = f"{explanation.method}, target {target_of(explanation, sample)}"
    write_title(axes, caption if title is None else title)
    if colorbar:
        add_scale(drawn, axes, "score", shrink=1.0, aspect=15)
    return axes


@guarded
def heads(
    explanation: Explanation,
    *,
    block: int = -1,
    kind: str = "attention",
    sample: int = 0,
    ax: Any = None,
    columns: int = 4,
    colorbar: bool = True,
) -> list[Axes]:
    """One block's heads, a token × token map each, all on one scale: attention A, gradient ∂y_t/∂A
    or relevance R.

    Args:
        block: an attention site in forward order, −1 the last.
        kind: ``"attention"``, ``"gradient"`` or ``"relevance"``.
        columns: heads in a row.

    Returns an axes per head. Needs ``keep="blocks"``; raises ``OptionError`` without it.
    """
    sample = checked(explanation, sample)
    chosen, name = _chosen_block(explanation, block, "heads()")
    maps = _numbers(_maps_of(chosen, kind, sample))
    if columns < 1:
        raise OptionError(f"columns={columns}: at least 1")
    columns = min(columns, len(maps))
    rows = several(ax, -(-len(maps) // columns), columns, 1.9, 2.05)
    panels = [axes for row in rows for axes in row]
    scale = scale_of(maps)
    for i, (axes, values) in enumerate(zip(panels, maps, strict=False)):
        drawn = _draw_head(axes, i, values, scale)
    for axes in panels[len(maps) :]:
        axes.set_axis_off()
    if ax is None:
        caption = f"{SYMBOLS[kind]} of {name}, target {target_of(explanation, sample)}"
        panels[0].figure.suptitle(caption, fontsize=TITLE).set_parse_math(False)
    if colorbar:
        add_scale(drawn, panels, "")
    return Panels(panels[: len(maps)])


def _draw_head(axes: Axes, number: int, values: np.ndarray, scale: dict[str, Any]) -> AxesImage:
    drawn = axes.imshow(values, **scale)
    write_title(axes, f"head {number}")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(color=GREY, linewidth=0.5)
    return drawn


def _off_diagonal(values: np.ndarray) -> float | None:
    """The largest |number| off the diagonal; ``None`` if there is none but 0."""
    off = np.abs(values[np.eye(*values.shape) == 0])
    return float(off.max()) if off.size and off.max() > 0 else None


def _labels(explanation: Explanation, sample: int) -> list[str] | None:
    """The labels of a sample's tokens, if one input is explained and they are known."""
    streams = list(explanation.streams.values())
    tokens = streams[0].tokens if len(streams) == 1 else None
    return None if tokens is None else tokens[sample]


def _ticks_of_tokens(axes: Axes, which: str, labels: list[str] | None, count: int) -> None:
    """Labels where there is one per token; else plain numbers, sparse."""
    if labels is not None and len(labels) == count:
        write_ticks(axes, which, labels, rotation=90 if which == "x" else 0)
    else:
        step = max(1, 10 ** int(np.log10(max(count, 1))) // (2 if count < 50 else 1))
        axis = axes.xaxis if which == "x" else axes.yaxis
        axis.set_ticks(range(0, count, step))
        axis.set_tick_params(labelsize=TICK, length=2)


def _needed(kept: Kept | None, what: str, keep: str) -> Kept:
    """What was kept. Raises ``OptionError`` naming the ``keep=`` that keeps it."""
    if kept is None:
        raise OptionError(
            f"{what} needs what this explanation did not keep",
            then=[f"relprop.explain(..., keep={keep!r})"],
        )
    return kept


def _chosen_block(explanation: Explanation, block: int, what: str) -> tuple[Block, str]:
    """The attention site of a number in forward order, −1 the last, and what a picture calls it.
    Raises ``OptionError``."""
    blocks = _needed(explanation.blocks, what, "blocks")
    if not isinstance(block, int) or not -len(blocks) <= block < len(blocks):
        raise OptionError(
            f"block={block!r}: the explanation has {len(blocks)}, 0 to {len(blocks) - 1} "
            "in forward order"
        )
    return blocks[block], blocks[block].path or f"block {block % len(blocks)}"


def _maps_of(block: Block, kind: str, sample: int) -> Tensor:
    """The attention, gradient or relevance of one sample, (heads, queries, keys). Raises
    ``OptionError``."""
    if kind not in SYMBOLS:
        raise OptionError(f"kind={kind!r}: one of {', '.join(map(repr, SYMBOLS))}")
    found: Tensor | None = getattr(block, kind)
    if found is None:
        raise OptionError(
            f"this method computed no {kind} at {block.path}",
            then=["method='transformer_attribution' has attention, gradient and relevance"],
        )
    if found.dim() != 4:
        fact = (
            f"{block.path} attends within parts of the input: its {kind} is "
            f"{list(found.shape[1:])} per sample"
        )
        raise OptionError(fact, then=["explanation.blocks[...] has the numbers"])
    return found[sample]


def _numbers(values: Tensor) -> np.ndarray:
    """The values as a numpy array, in double precision where the device has it."""
    precision = torch.float32 if values.device.type == "mps" else torch.float64
    return values.detach().to(precision).cpu().numpy()
