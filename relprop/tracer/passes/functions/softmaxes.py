"""Softmaxes that are written out: exponentials of a row, each divided by the sum of all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.operations import Kind, is_call, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, emit, expanded, rank, shape_of, val
from relprop.tracer.passes.trials.comparison import Trial, equal_functions, trials
from relprop.tracer.passes.trials.subgraphs import Subgraph


def softmax_in(subgraph: Subgraph) -> Kind | float | None:
    """Whether a subgraph gives what a softmax gives, or its logarithm, or shares of the total that
    its masks leave; a number: that of a softmax of the row and one more score, which is left out
    afterwards."""
    if len(subgraph.axes) != 1:
        return None
    axis, given = subgraph.axes[0], trials(subgraph)
    probes = [t.x for t in given]
    if not subgraph.parameters:
        if equal_functions(subgraph, lambda t: F.softmax(t, axis), probes):
            return Kind.SOFTMAX
        if equal_functions(subgraph, lambda t: F.log_softmax(t, axis), probes):
            return Kind.LOG_SOFTMAX
        if (beside := _beside(subgraph, axis, probes)) is not None:
            return beside
    return Kind.TOTAL if all(_is_share(subgraph, t, axis) for t in given) else None


def _beside(subgraph: Subgraph, axis: int, probes: list[Tensor]) -> float | None:
    """The score that a softmax sees beside each row, if a subgraph, with the exponential above it,
    is one that leaves it out."""

    def found(t: Tensor) -> Tensor:
        return subgraph(t.exp() if is_call(subgraph.source, aten.exp) else t)

    total = found(probes[0]).sum(axis)
    score = float((1 / total - 1).log().flatten()[0] + probes[0].logsumexp(axis).flatten()[0])
    if not math.isfinite(score):
        return None
    score = round(score, 9) if abs(score - round(score, 9)) <= 1e-12 else score

    def wanted(t: Tensor) -> Tensor:
        return (t - t.exp().sum(axis, keepdim=True).add(math.exp(score)).log()).exp()

    return score if equal_functions(found, wanted, probes) else None


def emit_beside(subgraph: Subgraph, axis: int, score: float, constants: Constants) -> fx.Node:
    """The softmax of each row and a score beside it, without that one's weight."""
    at, x = subgraph.output, subgraph.source
    x = operand(x) if is_call(x, aten.exp) else x
    shape = shape_of(x)
    held = torch.full([1] * rank(x), score, dtype=val(x).dtype, device=constants.device)
    shape[axis], size = 1, shape[axis]
    one = expanded(at, emit(at, Held(held)), shape)
    beside = emit(at, aten.cat.default, [x, one], axis)
    made = emit(at, aten.softmax.int, beside, axis)
    return emit(at, aten.slice.Tensor, made, axis, 0, size, 1)


def _is_share(subgraph: Subgraph, trial: Trial, axis: int) -> bool:
    """Whether a subgraph gives each number's share of the sum of those that masks leave."""
    masks = [p if p.dtype == torch.bool else (p > 0).double() for p in trial.parameters]

    def share(t: Tensor) -> Tensor:
        for mask in masks:
            t = t * mask
        return t / t.sum(axis, keepdim=True)

    positive = trial.x.abs() + 0.1
    return equal_functions(lambda t: subgraph(t, *masks), share, [positive])
