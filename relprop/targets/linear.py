"""Callables that are a sum of outputs, each times a number: every output is explained by itself,
and the results are added up.

Started together, relevances that sum to 0 would be erased by the first normalisation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.interpreter.points import Points, Seed
from relprop.operations import MOVES, Kind, kind
from relprop.targets.start import Start, Term, field_of, has_batch_axis
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import is_batched, is_floating

JOINTLY = MOVES | {Kind.SUM, Kind.TOTAL, Kind.AFFINE, Kind.OUTPUT, Kind.CAST, Kind.IDENTITY}
"""Operations that are linear in everything that enters."""
ALONE = frozenset({Kind.PRODUCT, Kind.QUOTIENT, Kind.GATHER, Kind.LINEAR, Kind.MATMUL})
"""Operations that are linear in one operand alone."""
MOST_TERMS = 64

Weights = Mapping[fx.Node, Tensor]
"""Of every output a number per element: (batch, *the size of one sample's part)."""


def is_linear(node: fx.Node, active: Sequence[fx.Node]) -> bool:
    """Whether a call is linear in those of its operands that depend on an output."""
    if kind(node) is Kind.QUOTIENT and node.args[0] not in active:
        return False
    if kind(node) is Kind.CHOICE:  # linear where values have no part in the choice
        return not any(is_batched(i) and not is_floating(i) for i in tensor_inputs(node))
    return len(active) <= 1 if kind(node) in ALONE else kind(node) in JOINTLY


def linear_start(
    label: tuple[object, ...], scalars: Tensor, weights: Weights, *, is_sum: bool
) -> Start | None:
    """Σ_k c_k·(element k), c being the ``weights``: a term per element. ``is_sum``: whether y_t is
    that sum. ``None`` where every weight is 0."""
    seeds = {node: _like_output(w, node) for node, w in weights.items() if bool(w.any())}
    if not seeds:
        return None
    counts = sum((weights[n] != 0).reshape(len(scalars), -1).sum(1) for n in seeds)
    most = int(torch.as_tensor(counts).max())
    if most > MOST_TERMS:
        _refuse_cancelling([weights[node] for node in seeds])
        terms: tuple[Term, ...] = (Term(1.0, seeds),)
    else:
        terms = tuple(chain.from_iterable(_terms(weights[n], n, s) for n, s in seeds.items()))
    at_once = most if most > MOST_TERMS else 0
    return Start(
        label, scalars, terms, marks(weights), is_sum=is_sum, single=most == 1, at_once=at_once
    )


def _terms(weight: Tensor, node: fx.Node, seed: Tensor) -> list[Term]:
    """A term per element of one output; elements of different samples that have the same weight
    share one."""
    alike, before = dict[tuple[float, int], list[int]](), Counter[tuple[int, float]]()
    where = weight.nonzero()
    numbers = weight[tuple(where.unbind(1))].tolist()
    for k, number in enumerate(numbers):
        same = int(where[k, 0]), number
        alike.setdefault((number, before[same]), []).append(k)
        before[same] += 1
    return [Term(number, {node: _at(where[some], seed)}) for (number, _), some in alike.items()]


def marks(weights: Weights) -> dict[fx.Node, Seed]:
    """The roll-up's field: 1 wherever a weight is not 0."""
    found: dict[fx.Node, Seed] = {}
    for node, weight in weights.items():
        seed, count = _like_output(weight, node), int((weight != 0).sum())
        if 0 < count <= MOST_TERMS * len(weight):
            found[node] = _at(weight.nonzero(), seed).marked()
        elif count:
            found[node] = field_of(seed)
    return found


def _like_output(weight: Tensor, node: fx.Node) -> Tensor:
    """In the shape of the model's output, and at least in single precision."""
    wide = weight.unsqueeze(1) if has_batch_axis(node) else weight
    return wide.to(torch.promote_types(wide.dtype, torch.float32))


def _refuse_cancelling(weights: Sequence[Tensor]) -> None:
    """Raises ``TargetError`` where a sample's weights sum to 0."""
    flat = torch.cat([w.reshape(len(w), -1).double() for w in weights], 1)
    cancels = flat.sum(1).abs() <= 1e-6 * flat.abs().sum(1)
    if bool(cancels.any()):
        count = int((flat[cancels] != 0).sum(1)[0])
        raise TargetError(
            f"the target combines {count} outputs whose coefficients sum to 0: "
            "a start whose relevances sum to 0 would be erased by the "
            f"first normalisation, and only up to {MOST_TERMS} terms are explained one by one"
        )


def _at(where: Tensor, like: Tensor) -> Points:
    """1 at the places of an output that are named without the 1 of a single sample's call."""
    index = list(where.unbind(1))
    if like.dim() > where.shape[1]:
        index.insert(1, torch.zeros_like(index[0]))
    return Points(tuple(index), like.new_ones(len(where)), tuple(like.shape))
