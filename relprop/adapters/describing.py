"""What is known about the tokens of one input, from what is known about its positions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relprop.adapters.base import Adapter
from relprop.adapters.given import Given, Word
from relprop.adapters.texts import Text
from relprop.errors import InputError

if TYPE_CHECKING:
    from relprop.layout import Layout


def describe(adapter: Adapter, model: nn.Module, given: Given, places: Layout) -> dict[str, Any]:
    """The fields of ``TokenScores`` that say what the tokens are: content, padding, labels, words,
    texts, the clock, the original pictures."""
    return {
        "content": _content(adapter.content(model, given), given, places),
        "padding": _padding(adapter.padding(model, given), places),
        "tokens": _labels(_for_all(adapter, adapter.tokens(model, given), given, places), places),
        "words": _words(adapter.words(model, given), places),
        "texts": _texts(adapter.texts(model, given), places),
        "clock": _clock(adapter.clock(model, given), places),
        **_originals(given),
        **_patches(given, places),
    }


def _originals(given: Given) -> dict[str, Any]:
    """The picture each sample was made from, or the pictures."""
    known = given.prepared.originals.get(given.stream)
    if known is None or any(len(sample) > 1 for sample in known):
        return {"pictures": known}
    return {"originals": tuple(one for (one,) in known)}


def _patches(given: Given, places: Layout) -> dict[str, Any]:
    """Where the tokens are in their pictures, of an input that holds these as rows of patches:
    each token made of equally many, which are a rectangle."""
    known = given.prepared.patches.get(given.stream)
    if known is None or places.axes != (0,) or places.spans is None:
        return {}
    placed = places.source >= 0
    rows = [known.places[int(a) : int(b)] for a, b in places.spans[placed, 0].tolist()]
    first = torch.stack([row.amin(0) for row in rows])
    sizes = torch.stack([row.amax(0) for row in rows]) - first + 1
    if len(torch.unique(sizes, dim=0)) > 1 or sizes[0].prod() != len(rows[0]):
        return {}
    at, grid = first // sizes[0], (1, *known.grid)[-3:]
    grid = tuple(-(-n // size) for n, size in zip(grid, sizes[0].tolist(), strict=True))
    spans = (
        torch.stack([first, first + sizes], -1) * torch.tensor([1, known.side, known.side])[:, None]
    )
    axes = slice(int(grid[0] == 1), 3)
    source, whole = places.source.clone(), places.spans.new_zeros(len(placed), 3, 2)
    source[placed] = (at[:, 0] * grid[1] + at[:, 1]) * grid[2] + at[:, 2]
    whole[placed] = spans.to(whole)
    extent = (grid[0], known.grid[-2] * known.side, known.grid[-1] * known.side)[axes]
    return {
        "source": source,
        "grid": grid[axes],
        "image": extent,
        "spans": whole[:, axes],
        "extent": extent,
    }


def _clock(known: tuple[int, float] | None, places: Layout) -> tuple[int, float] | None:
    """The axis of positions that is time, with the seconds of a step."""
    if known is None or known[0] not in places.axes:
        return None
    return places.axes.index(known[0]), known[1]


def _content(known: Tensor | None, given: Given, places: Layout) -> Tensor:
    """Which tokens are content: those made from the input, the middle of what they were made from
    being content."""
    placed = (places.source >= 0).expand(given.batch, -1)
    if places.spans is None:
        if known is None or known[0].numel() != placed.shape[1]:
            return placed.clone()
        return placed & known.cpu().flatten(1)
    inside = (places.spans[..., 1] > 0) & (places.spans[..., 0] < torch.tensor(places.extent))
    placed = placed & inside.all(1)
    return placed if known is None else placed & _at_middles(known.cpu(), places)


def _padding(known: Tensor | None, places: Layout) -> Tensor | None:
    """Which tokens were made from padding, the middle of what they were made from being that;
    ``None`` where that or their places are not known."""
    if known is None or places.spans is None:
        return None
    return _at_middles(known, places) & (places.source >= 0)


def _at_middles(known: Tensor, places: Layout) -> Tensor:
    """What is known of positions, at the middle of the positions each token was made from."""
    assert places.spans is not None
    middle = ((places.spans.sum(-1) - 1) / 2).floor().long()
    index: list[slice | int | Tensor] = [slice(None), *([0] * (known.dim() - 1))]
    for k, axis in enumerate(places.axes):
        if 0 < axis < known.dim() and known.shape[axis] == places.extent[k]:
            index[axis] = middle[:, k].clamp(0, places.extent[k] - 1)
    found = known[tuple(index)]
    return found if found.dim() == 2 else found[:, None]


def _for_all(
    adapter: Adapter, known: list[list[str]] | None, given: Given, places: Layout
) -> list[list[str]] | None:
    """Labels as an adapter gives them. Raises ``InputError`` where a sample or a position that a
    token was made from has none."""
    one_axis = places.spans is not None and len(places.extent) == 1
    last = places.spans[:, 0].max() if one_axis and places.spans is not None else None
    count = int(places.source.max()) + 1 if last is None else min(int(last), places.extent[0])
    if known is None or (len(known) == given.batch and all(len(row) >= count for row in known)):
        return known
    name, sizes = type(adapter).__name__, [len(row) for row in known]
    raise InputError(
        f"{name}.tokens() has labels for {sizes} positions of {given.stream!r}: "
        f"{given.batch} samples of {count} positions need them",
        then=[
            "return one string for every position of every sample, padding included, or None",
            "relprop.testing.check_adapter(adapter, model, inputs) examines all that it says",
        ],
    )


def _labels(known: list[list[str]] | None, places: Layout) -> list[list[str]] | None:
    """Each token's label: that of its position, or all of those it was made from."""
    if known is None:
        return None
    spans = _positions(places)
    return [[" ".join(row[a:b]) for a, b in spans] for row in known]


def _words(known: list[list[Word]] | None, places: Layout) -> list[list[Word]] | None:
    """Words as the tokens they are made of."""
    if known is None:
        return None
    tokens = _tokens_at(places)
    return [
        [(text, sorted({t for p in positions for t in tokens[p]})) for text, positions in row]
        for row in known
    ]


def _texts(known: list[Text] | None, places: Layout) -> list[Text] | None:
    """Each token's characters: all of those that the positions it was made from have."""
    if known is None:
        return None
    spans = _positions(places)
    return [text._replace(spans=[_whole(text, *span) for span in spans]) for text in known]


def _whole(text: Text, first: int, end: int) -> tuple[int, int]:
    found = [(a, b) for a, b in text.spans[first:end] if a < b]
    return (min(a for a, _ in found), max(b for _, b in found)) if found else (0, 0)


def _positions(places: Layout) -> list[tuple[int, int]]:
    """The first position that each token was made from, and the one after the last."""
    spans = torch.stack([places.source, places.source + 1], 1)
    if places.spans is not None and len(places.extent) == 1:
        spans = places.spans[:, 0]
    return [(int(a), int(b)) for a, b in spans.clamp(min=0).tolist()]


def _tokens_at(places: Layout) -> dict[int, list[int]]:
    """The tokens that were made from each position."""
    tokens: dict[int, list[int]] = defaultdict(list)
    for token, (first, end) in enumerate(_positions(places)):
        for position in range(first, end):
            tokens[position].append(token)
    return tokens
