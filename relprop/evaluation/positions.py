"""Maps as the metrics of floating-point inputs take them: a number for every position of a sample,
be it a picture, a series, a recording, a table's row or embeddings."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from relprop.errors import InputError, message
from relprop.explanation import Explanation, TokenScores
from relprop.views.shown import only

NEEDED = (
    "a map of the inputs' shape (1 along axes whose numbers go together), or of a picture's height "
    "and width"
)


def check_floating(inputs: Any) -> None:
    """Raise ``InputError`` for what is no floating-point tensor of samples."""
    if not isinstance(inputs, Tensor):
        fact = f"inputs is {type(inputs).__name__}: a floating-point tensor is needed"
        raise InputError(message(fact, then=["TextPerturbation, AOPC, LOdds   # of texts' ids"]))
    if not inputs.is_floating_point():
        fact = f"inputs: {inputs.dtype}; numbers are put in their place: floating point is needed"
        raise InputError(f"{fact} (of a text: its embeddings)")
    if inputs.dim() < 2 or not len(inputs):
        fact = f"inputs: shape {list(inputs.shape)}; (batch, ...), at least one sample, is needed"
        raise InputError(fact)


def map_of(inputs: Tensor, maps: Explanation | Tensor) -> Tensor:
    """Float64, of the inputs' shape, 1 along axes that a map does not tell apart (channels).
    Raises ``InputError``."""
    check_floating(inputs)
    if isinstance(maps, Explanation):
        stream = only(maps, "the map")
        values = maps.heatmap() if stream.grid is not None else spread(stream)
    else:
        values = maps.detach()
    if not values.isfinite().all():
        raise InputError(f"maps: {int((~values.isfinite()).sum())} values are NaN or infinite")
    return _laid(values.double(), inputs)


def spread(stream: TokenScores) -> Tensor:
    """(batch, *extent): the score of each token, in even parts at the positions it was made from,
    so that a sample's numbers sum to the scores of what lies in the input."""
    if stream.spans is None or not stream.extent:
        fact = f"of {stream.name!r} it is not known from which positions its tokens were made"
        raise InputError(message(fact, then=[f"scores=   # {NEEDED}"]))
    found = stream.scores.new_zeros(len(stream.scores), *stream.extent, dtype=torch.float64)
    for token, spans in enumerate(stream.spans.tolist()):
        ends = zip(spans, stream.extent, strict=True)
        at = tuple(slice(max(0, round(a)), min(round(b), n)) for (a, b), n in ends)
        part = found[(slice(None), *at)]
        if part[0].numel():
            share = stream.scores[:, token].double() / part[0].numel()
            part += share.reshape(-1, *(1 for _ in at))
    return found


def _laid(values: Tensor, inputs: Tensor) -> Tensor:
    """A map along those of the inputs' axes that have its lengths: the last ones of pictures,
    (batch, channels, H, W), else the only ones."""
    given, own = tuple(values.shape), tuple(inputs.shape)
    if len(given) == len(own) and all(g in (1, n) for g, n in zip(given, own, strict=True)):
        return values.to(inputs.device)
    count, axes = len(given) - 1, range(1, len(own))
    fits = [c for c in combinations(axes, count) if given[1:] == tuple(own[a] for a in c)]
    fits = fits[-1:] if count == 2 and len(own) == 4 else fits
    if given[0] != own[0] or len(fits) != 1:
        fact = f"maps are {list(given)}, inputs {list(own)}"
        several = f": it fits {len(fits)} ways" if len(fits) > 1 else ""
        raise InputError(message(f"{fact}{several}: {NEEDED}, is needed"))
    shape = [n if a in (0, *fits[0]) else 1 for a, n in enumerate(own)]
    return values.reshape(shape).to(inputs.device)
