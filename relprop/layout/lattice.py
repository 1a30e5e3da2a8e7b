"""Which token came from where in the input: the lattice of places that the tokens' reaches make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from relprop.layout.following import indices, reaches_between
from relprop.layout.reach import Reaches, hull
from relprop.rollup import Stream
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched
from relprop.tracer.order import Flow
from relprop.tracer.program import Program


@dataclass(frozen=True)
class Layout:
    """Where the tokens of one input came from.

    ``source`` (tokens,): each token's place, −1 for the model's own (class, register) tokens. Of a
    sequence it is the position in the input; of an image the place in ``grid``, counted row by row.
    ``grid`` and ``image``: how many different places there are along each of the input's axes of
    positions, and how long these are ((h, w) patches, (H, W) pixels; with time in front for a
    video); both ``None`` for a sequence.

    ``spans`` (tokens, axes, 2): along each axis of positions, the first position and the one after
    the last that the token was computed from before any attention; empty (0, 0) for the model's own
    tokens. They reach beyond the input (below 0, above ``extent``) where the model pads it, and
    overlap where its convolutions do. ``None`` where nothing tells the tokens apart; they are then
    numbered as they come. ``extent``: how long the input is along these axes; ``axes``: which of
    its axes they are; axis 0 is the batch, or, of an input that is one sample's alone, positions
    too (pictures beside one text).
    """

    source: Tensor
    grid: tuple[int, ...] | None = None
    image: tuple[int, ...] | None = None
    spans: Tensor | None = None
    extent: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()


def lay_out(
    program: Program, stream: Stream, flow: Flow, values: Mapping[fx.Node, Tensor] | None = None
) -> Layout:
    """The layout of one stream. ``values``: those of ``placing``."""
    shape = tuple(val(stream.leaf).shape)
    embedded = stream.leaf.op != "placeholder"
    found: dict[int, tuple[Tensor, Tensor]] = {}
    first = int(shape[0] == 1)  # what is not cut into samples has no axis of them
    for axis in range(first, len(shape) - embedded):
        reaches = reaches_between(stream.leaf, stream.node, axis, flow, values or {})
        found[axis] = _read(reaches[stream.node], stream)[2:], _spans(reaches, stream, flow)
    axes = [axis for axis, (near, _) in found.items() if _differ(near)]
    axes = axes or [1] * (1 in found and embedded)
    if len(shape) == 4 and not embedded and len(set(axes) - {0}) < 2:
        axes = [*axes[: axes[:1] == [0]], *_image_axes([a for a in axes if a], shape)]
    extent = tuple(shape[axis] for axis in axes)
    layout = _lattice([found[axis] for axis in axes], extent, math.prod(stream.sizes))
    return replace(layout, axes=tuple(axes)) if axes else layout


def _differ(near: Tensor) -> bool:
    """Whether the tokens are at different places."""
    places = torch.unique(near[:, near[0] < math.inf], dim=1)
    return len(places[0]) > 1


def _image_axes(axes: list[int], shape: tuple[int, ...]) -> list[int]:
    """The two axes of an image of one row, one column or one patch."""
    others = [axis for axis in (3, 2, 1) if axis not in axes and shape[axis] > 1]
    return sorted([*axes, *others[: 2 - len(axes)]])


def placing(stream: Stream, flow: Flow) -> set[fx.Node]:
    """The constants by which the model puts the stream's tokens in their places: the layout is
    complete only with their values."""
    return {n for n in indices(stream.leaf, stream.node, flow) if not is_batched(n)}


def _lattice(found: list[tuple[Tensor, Tensor]], extent: tuple[int, ...], tokens: int) -> Layout:
    """The lattice of the tokens' places: ``found`` has for each axis where a token is (lo, hi;
    tokens) and its span."""
    if not found:
        return Layout(torch.arange(tokens))
    placed = found[0][0][0] < math.inf
    spans = torch.where(placed[:, None, None], torch.stack([span.T for _, span in found], 1), 0.0)
    counts, index = _numbered([near[:, placed] for near, _ in found])
    source = torch.full((tokens,), -1)
    if len(extent) == 1:
        near = found[0][0][:, placed]
        single = bool((near[1] - near[0] == 1).all())
        source[placed] = near[0].long() if single else index
        return Layout(source, None, None, spans, extent)
    # some places may have no token; few tokens on many rows and columns are no lattice
    if 2 * len(torch.unique(index)) < math.prod(counts):
        source[placed] = torch.arange(len(index))
        return Layout(source, None, None, spans, extent)
    source[placed] = index
    return Layout(source, counts, extent, spans, extent)


def _numbered(near: list[Tensor]) -> tuple[tuple[int, ...], Tensor]:
    """How many different places there are along each axis, and each token's number when all of them
    are counted row by row."""
    index = torch.zeros(near[0].shape[1], dtype=torch.long)
    counts = []
    for places in near:
        cells, at = torch.unique(places, dim=1, return_inverse=True)
        counts.append(cells.shape[1])
        index = index * cells.shape[1] + at
    return tuple(counts), index


def _read(reach: Tensor, stream: Stream) -> Tensor:
    """A reach at the token tensor, (4, tokens): the hull over what are no positions."""
    full = reach.expand(4, *val(stream.node).shape)
    tokens = len(stream.token_axes)
    tokens_first = full.movedim([i + 1 for i in stream.token_axes], list(range(1, 1 + tokens)))
    return hull(tokens_first.flatten(1 + tokens), (-1,)).flatten(1)


def _spans(reaches: Reaches, stream: Stream, flow: Flow) -> Tensor:
    """What each token was computed from, (2, tokens): read at the first tensor whose places are the
    tokens'. What comes after it mixes positions once more (as a convolution does that adds where
    they are), but makes no new ones."""
    final = _read(reaches[stream.node], stream)
    cells, at, placed = _places(final)
    spans = final[:2].clone()
    for node in (n for n in reaches if flow.common_dominator([n, stream.node]) is n):
        reach = reaches[node].flatten(1)
        here, among, known = _places(reach)
        if torch.equal(here, cells):
            spans[:, placed] = _hulls(reach[:2, known], among, cells.shape[1])[:, at]
            return spans
    return spans


def _hulls(reach: Tensor, among: Tensor, count: int) -> Tensor:
    """The hull of the values at each of ``count`` places, (2, places)."""
    lo, hi = (torch.full((count,), end, dtype=torch.float64) for end in (math.inf, -math.inf))
    lo = lo.scatter_reduce(0, among, reach[0], "amin")
    return torch.stack([lo, hi.scatter_reduce(0, among, reach[1], "amax")])


def _places(reach: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different places (2, n) of a flat reach, which of them each value that has one is at, and
    which values have one."""
    placed = reach[2] < math.inf
    cells, at = torch.unique(reach[2:, placed], dim=1, return_inverse=True)
    return cells, at, placed
