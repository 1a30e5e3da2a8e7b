"""The map, the scale and the mask of an attention, found by values that are one in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.operations.vocabulary import Held
from relprop.tracer.editing import aten, emit, shape_of, val
from relprop.tracer.passes.attention.axes import Letters, letters_of
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.parts import Maker, Piece, rounded, slope_of

MOST_RUNS = 64  # of a part, by which its map is read off


def attention(part: Piece) -> Maker | None:
    """softmax(c·q·kᵀ + m)·v, m a constant."""
    drawn = part.draw(0)
    y = part(*drawn)
    if not isinstance(y, Tensor) or list(y.shape) != shape_of(part.output) or y.isnan().any():
        return None
    for v in range(3):
        doubled = tuple(2 * t if i == v else t for i, t in enumerate(drawn))
        if not same(part(*doubled), 2 * y):
            continue
        for q, k in ((a, b) for a in range(3) for b in range(3) if len({a, b, v}) == 3):
            for letters in letters_of(part, drawn, y, q, k, v):
                named = _Named(part, letters, (q, k, v))
                if (found := _fit(named)) is not None:
                    return lambda at: _emit_attention(replace(named, part=at), *found)
    return None


@dataclass(frozen=True)
class _Named:
    """A part whose sources are queries, keys and values, with a letter for every axis of these and
    of the result; ``order``: which source is which."""

    part: Piece
    letters: Letters
    order: tuple[int, int, int]

    @property
    def batch(self) -> str:
        """The letters of the axes that are treated apart."""
        return "".join(c for c in self.letters[3] if c not in "ne")

    def laid(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values with their batch axes in front."""
        (q, k, v), (q_name, k_name, v_name, _) = (tensors[i] for i in self.order), self.letters
        return (
            _canon(q, q_name, self.batch, "nd"),
            _canon(k, k_name, self.batch, "md"),
            _canon(v, v_name, self.batch, "me"),
        )

    def map_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The map itself: what comes out for values that are one in one place."""
        given, name = list(tensors), self.letters[2]
        v = given[self.order[2]] = torch.zeros_like(given[self.order[2]])
        keys, width = v.shape[name.index("m")], v.shape[name.index("e")]
        if -(-keys // width) > MOST_RUNS:
            raise ValueError("too many keys for one trial")
        columns = []
        for first in range(0, keys, width):
            some = range(first, min(first + width, keys))
            v.zero_()
            view = _canon(v, name, self.batch, "me")
            for j, m in enumerate(some):
                view[..., m, j] = 1
            made = _canon(self.part(*given), self.letters[3], self.batch, "ne")
            columns.append(made[..., : len(some)])
        return torch.cat(columns, -1)

    def usual(self, scale: float, bias: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """What an attention gives."""
        q, k, v = self.laid(tensors)
        found = F.softmax(scale * (q @ k.mT) + bias, -1) @ v
        return found.permute([(self.batch + "ne").index(a) for a in self.letters[3]])


def _canon(t: Tensor, letters: str, batch: str, last: str) -> Tensor:
    """Axes in the order of ``batch``, then ``last``; one of length 1 where a letter is missing."""
    t = t.permute([letters.index(c) for c in batch + last if c in letters])
    for i, c in enumerate(batch):
        t = t if c in letters else t.unsqueeze(i)
    return t


def _fit(named: _Named) -> tuple[float, Tensor | None] | None:
    """The scale, and what is added to the scores."""
    drawn = named.part.draw(1)
    still = tuple(torch.zeros_like(t) if i == named.order[0] else t for i, t in enumerate(drawn))
    bias = named.map_of(still).log()
    if bias.isnan().any() or (bias == -torch.inf).all(-1).any():
        return None
    c = _scale_in(named, drawn, bias)
    if c is None:
        return None
    top = bias.amax(-1, keepdim=True)
    bias = torch.where((bias - top).abs() < 1e-12, 0.0, bias - top)

    def usual(*tensors: Tensor) -> Tensor:
        return named.usual(c, bias, tensors)

    if not named.part.agrees(usual, (1.0, 2.0), 1e-9, far=10.0):
        return None
    return c, bias if bool((bias != 0).any()) else None


def _scale_in(named: _Named, drawn: tuple[Tensor, ...], bias: Tensor) -> float | None:
    """What the products of queries and keys are multiplied with in the map's logarithm."""
    q, k, _ = named.laid(drawn)
    if q.shape[-1] != k.shape[-1]:
        return None
    logs, hidden = named.map_of(drawn).log() - bias, bias == -torch.inf
    scores = (q @ k.mT).expand_as(logs)
    c = slope_of(scores, torch.where(hidden, 0.0, logs), hidden, -1)
    return None if c is None else rounded(c, q.shape[-1] ** -0.5, 1 / q.shape[-1])


def _emit_attention(named: _Named, c: float, bias: Tensor | None) -> fx.Node:
    at, batch = named.part.output, named.batch
    q, k, v = (named.part.sources[i] for i in named.order)
    q_name, k_name, v_name, o_name = named.letters
    q, k = _emit_laid(at, q, q_name, batch, "nd"), _emit_laid(at, k, k_name, batch, "dm")
    scores = emit(at, aten.matmul.default, q, k)
    scores = scores if c == 1 else emit(at, aten.mul.Tensor, scores, c)
    if bias is not None:
        scores = _emit_bias(at, scores, bias, named.part.constants.device)
    weights = emit(at, aten.softmax.int, scores, -1)
    found = emit(at, aten.matmul.default, weights, _emit_laid(at, v, v_name, batch, "me"))
    return emit(at, aten.permute.default, found, [(batch + "ne").index(a) for a in o_name])


def _emit_laid(at: fx.Node, x: fx.Node, name: str, batch: str, last: str) -> fx.Node:
    """What ``_canon`` makes of a tensor, in the graph."""
    x = emit(at, aten.permute.default, x, [name.index(a) for a in batch + last if a in name])
    for i, a in enumerate(batch):
        x = x if a in name else emit(at, aten.unsqueeze.default, x, i)
    return x


def _emit_bias(at: fx.Node, scores: fx.Node, bias: Tensor, device: torch.device) -> fx.Node:
    """Scores hidden where a bias is −∞, if it does nothing else; else with it added."""
    hides = bias == -torch.inf
    if bool(((bias == 0) | hides).all()):
        held = emit(at, Held(hides.to(device)))
        return emit(at, aten.masked_fill.Scalar, scores, held, -torch.inf)
    held = emit(at, Held(bias.to(val(scores).dtype).to(device)))
    return emit(at, aten.add.Tensor, scores, held)
