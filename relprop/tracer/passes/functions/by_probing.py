"""Functions of one tensor that are recognised by their numbers alone: a softmax by running sums, a
relu by sorting, a mean by pooling.

Where nothing but one tensor decides what comes out, the graph between is run on numbers of our own.
If it gives what a norm, a softmax, an activation or a pool gives, with the same derivatives, it is
one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, fx
from torch.fx.node import Argument
from torch.nn import functional as F

from relprop.operations import ELEMENTWISE, FILLS, MOVES, Kind, Operator, kind
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    dims_of,
    emit,
    is_float,
    rank,
    reshaped,
    shape_of,
)
from relprop.tracer.passes.functions.known import known_function
from relprop.tracer.passes.trials.comparison import same
from relprop.tracer.passes.trials.links import Links
from relprop.tracer.passes.trials.parts import (
    MOST_NODES,
    MOST_NUMBERS,
    Maker,
    Piece,
    Recogniser,
    raise_parts,
    slope_of,
)
from relprop.tracer.passes.trials.subgraphs import INSIDE, flow_of

LEVELS = 12  # how many bottlenecks above a node are tried


#: What makes more of a tensor than a linear map of it.
_CURVED = frozenset(
    {Kind.FUNCTION, Kind.PRODUCT, Kind.QUOTIENT, Kind.CHOICE, Kind.EXTREMUM, Kind.LARGEST}
    | {Kind.STATISTIC, Kind.MAX_POOL, Kind.PICK, Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.INDEX}
    | {Kind.GATHER, Kind.WRITE, Kind.MATMUL, Kind.SCAN}
)


def raise_functions_by_probing(graph: fx.Graph, constants: Constants) -> None:
    """Functions of one tensor: norms, softmax, activations, pools."""
    flow = flow_of(graph)
    links = Links(flow, constants)

    def tried(output: fx.Node) -> Iterator[tuple[Piece, Recogniser]]:
        parts = list(_parts_of_one(links, output))
        yield from ((p, _norm) for p in reversed(parts) if _may_be_norm(p))
        yield from ((p, _function_of_one) for p in parts if not _is_read_by_others(p))

    raise_parts(flow.nodes, tried)


def _parts_of_one(links: Links, output: fx.Node) -> Iterator[Piece]:
    """From a bottleneck above to ``output``, the nearest first."""
    below, numbers = output, 0
    nodes: tuple[fx.Node, ...] = ()
    for _ in range(LEVELS):
        if (link := links.of(below)) is None:
            return
        below, nodes, numbers = link.source, (*link.nodes, *nodes), numbers + link.numbers
        if len(nodes) > MOST_NODES:
            return
        if not is_float(below) or numbers > MOST_NUMBERS:
            continue
        if shape_of(below) == shape_of(output) or _pooled(below, output):
            yield Piece((below,), output, nodes, links.constants)


def _may_be_norm(part: Piece) -> bool:
    kinds = {kind(n) for n in part.nodes}
    curved = bool(kinds & {Kind.FUNCTION, Kind.STATISTIC, Kind.NORM, Kind.BATCH_NORM})
    divides = kind(part.output) in (Kind.PRODUCT, Kind.QUOTIENT) or not kinds <= INSIDE
    alike = shape_of(part.source) == shape_of(part.output)
    return (
        not kinds <= ELEMENTWISE
        and curved
        and divides
        and alike
        and kind(part.source) is not Kind.SOFTMAX
    )


def _is_read_by_others(part: Piece) -> bool:
    """Whether the passes that read the operations one by one know all of these."""
    kinds = {kind(n) for n in part.nodes}
    if shape_of(part.source) != shape_of(part.output):
        left = [kind(n) for n in part.nodes if kind(n) not in (Kind.RESHAPE, Kind.PERMUTE)]
        moved = kinds <= MOVES | {Kind.AFFINE, Kind.PRODUCT}
        return moved or left in ([Kind.TOTAL], [Kind.LARGEST])
    guarded = Kind.SOFTMAX in kinds and bool(kinds & {Kind.TEST, Kind.TOTAL, Kind.STATISTIC})
    return (kinds <= INSIDE | {Kind.SOFTMAX} and not guarded) or not kinds & _CURVED


def _pooled(source: fx.Node, output: fx.Node) -> tuple[int, ...]:
    """The axes of ``source``, one or two beside each other, that ``output`` has no more, or as axes
    of length 1."""
    long, short = shape_of(source), shape_of(output)
    for width in (1, 2):
        for first in range(len(long) - width + 1):
            axes = tuple(range(first, first + width))
            kept = [1 if i in axes else s for i, s in enumerate(long)]
            gone = [s for i, s in enumerate(long) if i not in axes]
            if short in (kept, gone) and all(long[a] > 1 for a in axes):
                return axes
    return ()


def _function_of_one(part: Piece) -> Maker | None:
    (x,) = part.draw(0)
    y = part(x)
    if shape_of(part.source) != shape_of(part.output):
        return _pool(part, x, y)
    if not isinstance(y, Tensor) or y.shape != x.shape or bool(y.isnan().any()):
        return None
    if any(kind(n) is Kind.SOFTMAX for n in part.nodes) and same(y, torch.ones_like(y)):
        return _of_single_keys(part)
    return _softmax(part, x, y) or _activation(part, x, y)


def _of_single_keys(part: Piece) -> Maker | None:
    """A softmax along an axis of length 1, whose weights are 1: softmax all the same."""
    (behind,) = {d - rank(n) for n in part.nodes if kind(n) is Kind.SOFTMAX for d in dims_of(n)}
    axis = rank(part.source) + behind
    if axis < 0 or shape_of(part.source)[axis] != 1:
        return None
    return lambda at: emit(at.output, aten.softmax.int, at.source, axis)


def _softmax(part: Piece, x: Tensor, y: Tensor) -> Maker | None:
    """softmax(c·x + m) or its logarithm along an axis, m one of 0 and −∞, c a number."""
    for axis in (i for i in range(x.dim()) if x.shape[i] > 1):
        for logarithm in (False, True):
            weights = y.exp() if logarithm else y
            total = weights.sum(axis)
            if bool((weights < 0).any()) or not same(total, torch.ones_like(total)):
                continue
            c = slope_of(x, weights.log(), weights == 0, axis)
            if c is None:
                continue
            softmax = _Softmax(_softmax_op(part, logarithm), axis, c, weights == 0)
            if part.agrees(softmax):
                return softmax.emitted
    return None


def _softmax_op(part: Piece, logarithm: bool) -> Operator:
    """The operator: one that gives zeros for a row of which nothing is left, if the part does."""
    if logarithm:
        return aten.log_softmax.int
    if _guards(part):
        nothing = part(torch.full(shape_of(part.source), -torch.inf, dtype=torch.float64))
        return aten.softmax.int if nothing.isnan().any() else aten._safe_softmax.default
    return aten.softmax.int


@dataclass(frozen=True)
class _Softmax:
    """A softmax, or its logarithm, of a multiple of a tensor, of which some places are hidden."""

    op: Operator
    axis: int
    scale: float
    hidden: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        scores = (self.scale * x).masked_fill(self.hidden, -torch.inf)
        made: Tensor = self.op(scores, self.axis)
        return made

    def emitted(self, part: Piece) -> fx.Node:
        """It, in place of a part."""
        at, scores = part.output, part.source
        if self.scale != 1:
            scores = emit(at, aten.mul.Tensor, scores, self.scale)
        if bool(self.hidden.any()):
            held = emit(at, Held(self.hidden.to(part.constants.device)))
            scores = emit(at, aten.masked_fill.Scalar, scores, held, -torch.inf)
        return emit(at, self.op, scores, self.axis)


def _norm(part: Piece) -> Maker | None:
    """(x - mean)/√(variance + ε) along the last axis, or x/√(mean(x²) + ε)."""
    (x,) = part.draw(0)
    y = part(x)
    if x.shape[-1] < 2 or y.shape != x.shape or same(part(2 * x), 2 * y, 1e-6):
        return None
    for centred in (True, False):
        c = x - x.mean(-1, keepdim=True) if centred else x
        along = (y * c).sum(-1, keepdim=True) / c.square().sum(-1, keepdim=True)
        if not bool((along > 0).all()) or not same(along * c, y, 1e-8):
            continue
        eps = _epsilon(part, 1e-4 * x, centred)
        for near in (0.0, float(f"{eps:.1e}"), float(f"{eps:.3e}"), eps):
            usual = partial(_usual_norm, eps=near, centred=centred)
            if near >= 0 and part.agrees(usual, (1.0, 5.0, 1e-2, 1e-4), 1e-9):
                return partial(_emit_norm, eps=near, centred=centred)
    return None


def _usual_norm(x: Tensor, eps: float, centred: bool) -> Tensor:
    c = x - x.mean(-1, keepdim=True) if centred else x
    return c * (c.square().mean(-1, keepdim=True) + eps).rsqrt()


def _emit_norm(part: Piece, *, eps: float, centred: bool) -> fx.Node:
    at, source = part.output, part.source
    shape = shape_of(source)[-1:]
    if centred:
        return emit(at, aten.layer_norm.default, source, shape, None, None, eps)
    return emit(at, aten.rms_norm.default, source, shape, None, eps)


def _epsilon(part: Piece, small: Tensor, centred: bool) -> float:
    """ε, of which small numbers tell most."""
    c = small - small.mean(-1, keepdim=True) if centred else small
    mean = c.square().mean(-1, keepdim=True)
    scale = (part(small) * c).sum(-1, keepdim=True) / (small.shape[-1] * mean)
    return float((scale**-2 - mean).median())


def _guards(part: Piece) -> bool:
    """Whether something inside asks what the values are."""
    return any(kind(n) in (Kind.TEST, Kind.STATISTIC) for n in part.nodes)


def _pool(part: Piece, x: Tensor, y: Tensor) -> Maker | None:
    """The mean, the sum, the largest or the smallest along axes, or one position of an axis."""
    axes, shape = _pooled(part.source, part.output), shape_of(part.output)
    for op in (aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default):

        def pool(t: Tensor, op: Operator = op) -> Tensor:
            return torch.as_tensor(op(t, list(axes))).reshape(shape)

        if same(pool(x), y) and part.agrees(pool):
            if kind(part.source) in FILLS and _guards(part):  # NaN, where a mask left them out
                return None
            return partial(_laid_out, shape, op, (list(axes),))
    if len(axes) == 1:
        rows = x.movedim(axes[0], 0).flatten(1)
        near = (rows - y.reshape(1, -1)).abs().amax(1)
        i = int(near.argmin())
        if same(rows[i], y.flatten()) and part.agrees(
            lambda t: t.select(axes[0], i).reshape(shape)
        ):
            return partial(_laid_out, shape, aten.select.int, (axes[0], i))
    return None


def _laid_out(shape: list[int], op: Operator, args: tuple[Argument, ...], part: Piece) -> fx.Node:
    return reshaped(part.output, emit(part.output, op, part.source, *args), shape)


def _activation(part: Piece, x: Tensor, y: Tensor) -> Maker | None:
    """A function of each element that torch has, a multiple, or the tensor itself."""
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(3))
    shuffled = part(x.flatten()[order].reshape(x.shape))
    if not same(shuffled.flatten(), y.flatten()[order]):
        return None
    half = torch.arange(x.numel()).reshape(x.shape) % 2 == 0
    if not same(part(torch.where(half, 2 * x + 1, x))[~half], y[~half]):
        return None

    def function(t: Tensor) -> Tensor:
        rows = F.pad(t.flatten(), (0, -t.numel() % x.numel())).reshape(-1, *x.shape)
        return torch.cat([part(r).flatten() for r in rows])[: t.numel()].reshape(t.shape)

    made = known_function(function)
    return None if made is None else lambda at: made(at.output, at.source)
