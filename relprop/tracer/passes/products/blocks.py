"""Matrix products of all lanes with all lanes, of which those of each lane with its own alone are
read: a product of the lanes."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, is_call, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, is_live, shape_of, swap, val
from relprop.tracer.passes.simplify.layouts import cuts, reordered
from relprop.tracer.passes.trials.parts import Piece

#: What may put numbers of several places beside each other.
_PICKS = frozenset({Kind.VIEW, Kind.INDEX, Kind.GATHER, Kind.JOIN})


def raise_blocks(graph: fx.Graph, constants: Constants) -> None:
    """Every such product, found by where what is read of it stood."""
    for node in list(graph.nodes):
        if kind(node) in _PICKS and is_live(node):
            new = _of_blocks(node, constants)
            if new is not None:
                swap(node, new)


def _of_blocks(node: fx.Node, constants: Constants) -> fx.Node | None:
    inner, sources = cuts(node, MOVES)
    product = next((n for n in sources if is_call(n, aten.matmul)), None)
    if product is None or sum(map(is_live, sources)) > 1 or not set(product.users) <= set(inner):
        return None
    x, w = arguments(product)
    part = Piece((product,), node, tuple(inner), constants)
    alike = shape_of(x)[:-2] == shape_of(w)[:-2] and val(node).dtype == val(product).dtype
    if val(node).numel() >= val(product).numel() or not alike or not part.is_small:
        return None
    own = torch.arange(val(product).numel()).reshape(shape_of(product))
    places = part(own.double() + 1).long() - 1
    found = _blocks(places, shape_of(product)) if bool((places >= 0).all()) else None
    if found is None:
        return None
    rows, columns = found
    left, right = (torch.arange(val(n).numel()).reshape(shape_of(n)) for n in (x, w))
    x = reordered(node, x, left[..., rows, :])
    w = reordered(node, w, right[..., columns].movedim(-2, -3))
    if x is None or w is None:
        return None
    made = emit(node, aten.matmul.default, x, w)
    kept = own[..., rows[:, :, None], columns[:, None, :]].flatten()
    now = torch.zeros_like(own).flatten().scatter(0, kept, torch.arange(len(kept)))
    return reordered(node, made, now[places])


def _blocks(places: Tensor, shape: list[int]) -> tuple[Tensor, Tensor] | None:
    """The rows and the columns (blocks, their number in one) of two blocks or more that are all
    that is read of a product; ``None`` where they are not of one size."""
    read = torch.zeros(shape).flatten().index_fill(0, places.flatten(), 1).reshape(-1, *shape[-2:])
    kinds, which = read[0].unique(dim=0, return_inverse=True)
    count, (rows, columns) = len(kinds), shape[-2:]
    sizes = (which.bincount() * count == rows).all() and (kinds.sum(1) * count == columns).all()
    if count < 2 or not bool(sizes & (kinds.sum(0) == 1).all() & (read == read[0]).all()):
        return None
    first = sorted(range(count), key=lambda i: int((which == i).int().argmax()))
    return (
        torch.stack([(which == i).nonzero()[:, 0] for i in first]),
        torch.stack([kinds[i].nonzero()[:, 0] for i in first]),
    )
