"""The map, the scale and the mask of an attention, found by values that are one in one place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.operations.vocabulary import Held
from relprop.tracer.editing import aten, emit, shape_of, val
from relprop.tracer.passes.attention.axes import Letters, letters_of
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.parts import Part, rounded, slope_of


def attention(part: Part) -> fx.Node | None:
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
                if (found := _fit(part, letters, (q, k, v))) is not None:
                    return _emit_attention(part, letters, (q, k, v), *found)
    return None


def _canon(t: Tensor, letters: str, batch: str, last: str) -> Tensor:
    """Axes in the order of ``batch``, then ``last``; one of length 1 where a letter is missing."""
    t = t.permute([letters.index(c) for c in batch + last if c in letters])
    for i, c in enumerate(batch):
        t = t if c in letters else t.unsqueeze(i)
    return t


def _fit(
    part: Part, letters: Letters, order: tuple[int, int, int]
) -> tuple[float, Tensor | None] | None:
    """The scale, and what is added to the scores."""
    q_name, k_name, v_name, o_name = letters
    batch = "".join(c for c in o_name if c not in "ne")

    def canon(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (tensors[i] for i in order)
        return (
            _canon(q, q_name, batch, "nd"),
            _canon(k, k_name, batch, "md"),
            _canon(v, v_name, batch, "me"),
        )

    def weights(tensors: Sequence[Tensor]) -> Tensor:
        """The map itself: what comes out for values that are one in one place."""
        given = list(tensors)
        v = given[order[2]] = torch.zeros_like(given[order[2]])
        keys, width = v.shape[v_name.index("m")], v.shape[v_name.index("e")]
        if -(-keys // width) > 64:
            raise ValueError("too many keys for one trial")
        columns = []
        for first in range(0, keys, width):
            v.zero_()
            view = _canon(v, v_name, batch, "me")
            some = range(first, min(first + width, keys))
            for j, m in enumerate(some):
                view[..., m, j] = 1
            columns.append(_canon(part(*given), o_name, batch, "ne")[..., : len(some)])
        return torch.cat(columns, -1)

    drawn = part.draw(1)
    still = tuple(torch.zeros_like(t) if i == order[0] else t for i, t in enumerate(drawn))
    bias = weights(still).log()
    if bias.isnan().any() or (bias == -torch.inf).all(-1).any():
        return None
    q, k, _ = canon(drawn)
    if q.shape[-1] != k.shape[-1]:
        return None
    scores = q @ k.mT
    logs, hidden = weights(drawn).log() - bias, bias == -torch.inf
    c = slope_of(scores.expand_as(logs), torch.where(hidden, 0.0, logs), hidden, -1)
    if c is None:
        return None
    c = rounded(c, q.shape[-1] ** -0.5, 1 / q.shape[-1])
    top = bias.amax(-1, keepdim=True)
    bias = torch.where((bias - top).abs() < 1e-12, 0.0, bias - top)

    def whole(*tensors: Tensor) -> Tensor:
        q, k, v = canon(tensors)
        found = F.softmax(c * (q @ k.mT) + bias, -1) @ v
        wide = batch + "ne"
        return found.permute([wide.index(a) for a in o_name])

    if not part.agrees(whole, (1.0, 2.0), 1e-9, far=10.0):
        return None
    return c, bias if bool((bias != 0).any()) else None


def _emit_attention(
    part: Part, letters: Letters, order: tuple[int, int, int], c: float, bias: Tensor | None
) -> fx.Node:
    at, device = part.output, part.constants.device
    batch = "".join(a for a in letters[3] if a not in "ne")

    def canon(node: fx.Node, name: str, last: str) -> fx.Node:
        dims = [name.index(a) for a in batch + last if a in name]
        node = emit(at, aten.permute.default, node, dims)
        for i, a in enumerate(batch):
            node = node if a in name else emit(at, aten.unsqueeze.default, node, i)
        return node

    q, k, v = (part.sources[i] for i in order)
    q, k = canon(q, letters[0], "nd"), canon(k, letters[1], "dm")
    scores = emit(at, aten.matmul.default, q, k)
    scores = scores if c == 1 else emit(at, aten.mul.Tensor, scores, c)
    if bias is not None:
        only_hides = bool(((bias == 0) | (bias == -torch.inf)).all())
        held = (bias == -torch.inf) if only_hides else bias.to(val(scores).dtype)
        given = emit(at, Held(held.to(device)))
        scores = (
            emit(at, aten.masked_fill.Scalar, scores, given, -torch.inf)
            if only_hides
            else emit(at, aten.add.Tensor, scores, given)
        )
    weights = emit(at, aten.softmax.int, scores, -1)
    found = emit(at, aten.matmul.default, weights, canon(v, letters[2], "me"))
    wide = batch + "ne"
    return emit(at, aten.permute.default, found, [wide.index(a) for a in letters[3]])
