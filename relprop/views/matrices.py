"""Token × token matrices, layer × token maps, and a block's heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relprop.errors import OptionError, message
from relprop.views.figure import (
    GREY,
    TICK,
    TITLE,
    add_scale,
    bare,
    given,
    room_for,
    scale_of,
    several,
    write_ticks,
    write_title,
)
from relprop.views.shown import checked, only, target_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from relprop.explanation import Block, Explanation

KINDS = {"attention": "A", "gradient": "∇A", "relevance": "R"}


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
    if block is None:
        if head is not None:
            raise OptionError(
                message(
                    f"matrix(head={head}) needs a block",
                    then=["relprop.plot.matrix(explanation, block=-1, head=0)"],
                )
            )
        values, caption = (
            _need(only(explanation, "matrix()").matrix, "matrix()", "matrix")[sample],
            "C",
        )
    else:
        chosen, number = _block(explanation, block, "matrix()")
        maps = _of_kind(chosen, kind, sample)
        if head is not None and not -len(maps) <= head < len(maps):
            raise OptionError(f"head={head}: {chosen.path} has {len(maps)} heads")
        values = maps.mean(0) if head is None else maps[head]
        caption = (
            f"{chosen.path or f'block {number}'}\n{KINDS[kind]}, "
            f"{'mean over heads' if head is None else f'head {head % len(maps)}'}"
        )
    shown = _numbers(values)
    known = (
        next(iter(explanation.streams.values())).tokens if len(explanation.streams) == 1 else None
    )
    room = 0.4 if known is None else room_for(known[sample])
    side = min(max(2.0, 0.17 * max(shown.shape)), 7.0 if known is not None else 3.6) + room + 0.4
    axes = given(ax, side + 0.6, max(side * shown.shape[0] / max(shown.shape), room + 1.2))
    strongest = _off_diagonal(shown) if block is None else None
    drawn = axes.imshow(shown, **scale_of(shown, strongest=strongest))
    _label_tokens(axes, explanation, sample, shown.shape)
    write_title(
        axes, f"{caption}, target {target_of(explanation, sample)}" if title is None else title
    )
    axes.spines[:].set_visible(False)
    if colorbar:
        add_scale(
            drawn,
            axes,
            "",
            extend="neither" if strongest is None or strongest >= shown.max() else "max",
        )
    return axes


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
    parts = _numbers(_need(stream.layers, "layers()", "layers")[sample])
    whole = _numbers(stream.scores[sample])
    rows = np.concatenate([parts, np.full((1, parts.shape[1]), np.nan), whole[None]])
    summed = np.allclose(parts.sum(0), whole, rtol=1e-4, atol=1e-6 * np.abs(whole).max())
    names = [*(f"L{i}" for i in range(len(parts))), "", "Σ" if summed else "scores"]
    labels = stream.tokens[sample] if stream.tokens is not None else None
    axes = given(
        ax,
        min(max(4.0, 0.26 * rows.shape[1] + 1.6), 11.0),
        0.22 * len(rows) + 0.6 + room_for(labels or ["000"]),
    )
    drawn = axes.imshow(rows, aspect="auto", **scale_of(rows[~np.isnan(rows)], light=True))
    _ticks_of_tokens(axes, "x", labels, rows.shape[1])
    write_ticks(axes, "y", names)
    axes.spines[:].set_visible(False)
    write_title(
        axes,
        f"{explanation.method}, target {target_of(explanation, sample)}"
        if title is None
        else title,
    )
    if colorbar:
        add_scale(drawn, axes, "score", shrink=1.0, aspect=15)
    return axes


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
    chosen, number = _block(explanation, block, "heads()")
    maps = _numbers(_of_kind(chosen, kind, sample))
    if columns < 1:
        raise OptionError(f"columns={columns}: at least 1")
    columns = min(columns, len(maps))
    grid = [
        axes for row in several(ax, -(-len(maps) // columns), columns, 1.9, 2.05) for axes in row
    ]
    scale = scale_of(maps)
    for i, (axes, values) in enumerate(zip(grid, maps, strict=False)):
        drawn = axes.imshow(values, **scale)
        write_title(axes, f"head {i}")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set(color=GREY, linewidth=0.5)
    for axes in grid[len(maps) :]:
        axes.set_axis_off()
    if ax is None:
        caption = (
            f"{KINDS[kind]} of {chosen.path or f'block {number}'}, target "
            f"{target_of(explanation, sample)}"
        )
        grid[0].figure.suptitle(caption, fontsize=TITLE).set_parse_math(False)
    if colorbar:
        add_scale(drawn, grid, "")
    return grid[: len(maps)]


def bars(
    explanation: Explanation,
    labels: list[str],
    scores: list[float],
    content: list[bool],
    axes: Axes,
) -> None:
    """A bar per token: orange for the target, blue against it, grey for what is no content."""
    from relprop.views.colours import hexadecimal, shade

    colours = [
        "lightgrey" if not c else hexadecimal(shade(0.75 if s >= 0 else -0.75))
        for s, c in zip(scores, content, strict=True)
    ]
    axes.bar(range(len(scores)), scores, color=colours)
    axes.axhline(0, color=GREY, linewidth=0.6)
    write_ticks(axes, "x", labels, rotation=90, most=10_000)
    axes.set_ylabel("score", fontsize=TICK)
    bare(axes)


def _off_diagonal(values: np.ndarray) -> float | None:
    """The largest |number| off the diagonal; ``None`` if there is none but 0."""
    rows, columns = np.indices(values.shape)
    off = np.abs(values[rows != columns])
    return float(off.max()) if off.size and off.max() > 0 else None


def _need(kept: Tensor | None, what: str, keep: str) -> Tensor:
    if kept is None:
        raise OptionError(
            message(
                f"{what} needs what this explanation did not keep",
                then=[f"relprop.explain(..., keep={keep!r})"],
            )
        )
    return kept


def _block(explanation: Explanation, block: int, what: str) -> tuple[Block, int]:
    blocks = explanation.blocks
    if blocks is None:
        raise OptionError(
            message(
                f"{what} needs what this explanation did not keep",
                then=["relprop.explain(..., keep='blocks')"],
            )
        )
    if not isinstance(block, int) or not -len(blocks) <= block < len(blocks):
        raise OptionError(
            f"block={block!r}: the explanation has {len(blocks)}, 0 to {len(blocks) - 1} "
            "in forward order"
        )
    return blocks[block], block % len(blocks)


def _of_kind(block: Block, kind: str, sample: int) -> Tensor:
    """(heads, queries, keys) of one sample."""
    if kind not in KINDS:
        raise OptionError(f"kind={kind!r}: one of {', '.join(map(repr, KINDS))}")
    found: Tensor | None = getattr(block, kind)
    if found is None:
        raise OptionError(
            message(
                f"this method computed no {kind} at {block.path}",
                then=["method='transformer_attribution' has attention, gradient and relevance"],
            )
        )
    if found.dim() != 4:
        raise OptionError(
            message(
                (
                    f"{block.path} attends within parts of the input: its {kind} is "
                    f"{list(found.shape[1:])} per sample"
                ),
                then=["explanation.blocks[...] has the numbers"],
            )
        )
    return found[sample]


def _numbers(values: Tensor) -> np.ndarray:
    found: np.ndarray = (
        values.detach()
        .to(torch.float64 if values.device.type != "mps" else torch.float32)
        .cpu()
        .numpy()
    )
    return found


def _label_tokens(
    axes: Axes, explanation: Explanation, sample: int, shape: tuple[int, ...]
) -> None:
    stream = next(iter(explanation.streams.values())) if len(explanation.streams) == 1 else None
    known = stream.tokens[sample] if stream is not None and stream.tokens is not None else None
    for which, count in (("y", shape[0]), ("x", shape[1])):
        _ticks_of_tokens(axes, which, known, count)
    axes.set_xlabel("from", fontsize=TICK)
    axes.set_ylabel("to", fontsize=TICK)


def _ticks_of_tokens(axes: Axes, which: str, known: list[str] | None, count: int) -> None:
    """Labels where there is one per token; else plain numbers, sparse."""
    if known is not None and len(known) == count:
        write_ticks(axes, which, known, rotation=90 if which == "x" else 0)
    else:
        step = max(1, 10 ** int(np.log10(max(count, 1))) // (2 if count < 50 else 1))
        (axes.set_xticks if which == "x" else axes.set_yticks)(list(range(0, count, step)))
        (axes.xaxis if which == "x" else axes.yaxis).set_tick_params(labelsize=TICK, length=2)
