"""Which token came from where in the input: patches of an image's grid, words of a text, or a model's own prefix token.

Found by pushing position numbers, in place of values, through the few ops between the input and the token tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.rollup import Stream
from relprop.rules import operations as ops
from relprop.tracer.axes import is_token
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, packet
from relprop.tracer.run import template

LABELLED = frozenset((*ops.MOVES, *ops.FILL))


@dataclass(frozen=True)
class Layout:
    """``source`` (tokens,): the input position each token came from, −1 for the model's own (class, register) tokens.

    ``grid`` (h, w) for image patches, ``image`` (H, W) in pixels; both ``None`` otherwise.
    """

    source: Tensor
    grid: tuple[int, int] | None = None
    image: tuple[int, int] | None = None


def lay_out(program: Program, stream: Stream, flow: Flow) -> Layout:
    """The layout of one stream. Where the ops on the way are not understood, tokens are numbered as they come."""
    tokens = math.prod(stream.sizes)
    for origin in _origins(program, stream, flow):
        labels = _push(origin, stream, flow, program)
        if labels is None:
            continue
        sizes = [val(origin).shape[i] for i, axis in enumerate(program.axes[origin]) if is_token(axis)]
        pixels = val(stream.leaf).shape
        if len(sizes) == 2 and len(pixels) == 4:
            return Layout(labels, (sizes[0], sizes[1]), (pixels[-2], pixels[-1]))
        return Layout(labels)
    return Layout(torch.arange(tokens))


def _origins(program: Program, stream: Stream, flow: Flow) -> list[fx.Node]:
    """Where positions may be counted: the tensors above the token tensor whose grid (two token axes) has the last grid's size, first the
    one nearest the pixels (later ones may be transposed); without an image the leaf itself."""
    chain = [n for n in flow.nodes if flow.reaches(stream.leaf, n) and flow.reaches(n, stream.node)]
    through = [n for n in chain if flow.common_dominator([n, stream.node]) is n]
    if val(stream.leaf).dim() != 4:
        return [n for n in through if n is stream.leaf and sum(map(is_token, program.axes.get(n, ()))) == 1]
    sizes = {n: [s for s, axis in zip(val(n).shape, program.axes.get(n, ()), strict=False) if is_token(axis)] for n in through}
    grids = [n for n in through if len(sizes[n]) == 2]
    return [n for n in grids if math.prod(sizes[n]) == math.prod(sizes[grids[-1]])]


def _push(origin: fx.Node, stream: Stream, flow: Flow, program: Program) -> Tensor | None:
    """Position numbers at the token tensor, or ``None`` where an op on the way mixes positions."""
    axes = [i for i, axis in enumerate(program.axes[origin]) if is_token(axis)]
    shape = val(origin).shape
    count = math.prod(shape[i] for i in axes)
    numbers = torch.arange(count, dtype=torch.float64).reshape([shape[i] if i in axes else 1 for i in range(len(shape))])
    labels: dict[fx.Node, Tensor] = {origin: numbers.expand(shape)}
    for node in flow.between(origin, stream.node):
        if not any(i in labels for i in flow.inputs[node]):
            continue
        moved = _label(node, labels)
        if moved is None:
            return None
        labels[node] = moved
    found = labels[stream.node]
    features = [i for i in range(found.dim()) if i not in stream.token_axes]
    for axis in sorted(features, reverse=True):
        found = found.select(axis, 0)
    return found.flatten().long()


def _label(node: fx.Node, labels: dict[fx.Node, Tensor]) -> Tensor | None:
    operands, rebuild = template(node)
    if packet(node) in LABELLED:
        given = [
            labels[o] if o in labels else torch.full(val(o).shape, -1.0, dtype=torch.float64) if val(o).is_floating_point() else None
            for o in operands
        ]
        if any(g is None for g in given):
            return None
        args, kwargs = rebuild(*given)
        return node.target(*args, **kwargs)  # type: ignore[operator]
    source = next(labels[o] for o in tensor_inputs(node) if o in labels)
    shape = val(node).shape
    if source.shape == shape:
        return source
    if source.dim() == len(shape) and source.shape[:-1] == shape[:-1]:
        return source[..., :1].expand(shape)
    return None
