"""Callables that are a sum of outputs, each times a number, or of log-probabilities: every output
is explained by itself, and the results are added up.

Started together, relevances that sum to 0 would be erased by the first normalisation.

log p(t) = z_t − log Σ_k exp z_k. Relevance of a sum of log-probabilities starts at the logits z_t;
the normaliser, in which every class has a part, gets none. So it is for any way of writing one:
``log_softmax``, ``cross_entropy``, the logarithm of a softmax, z − logsumexp. Which it is, is read
off the callable's graph by two words: a value there is a *logarithm* (an output, and what is linear
in logarithms) or an *exponential* (``exp`` or ``softmax`` of one, moved or summed). Of two classes
with one logit between them, z/2 and −z/2 are the logits: log σ(z) = z/2 − log(2 cosh(z/2)).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.interpreter.points import Points, Seed
from relprop.operations import MOVES, Kind, argument, is_call, kind, operand
from relprop.targets.outputs import has_batch_axis
from relprop.targets.start import Start, Term, field_of
from relprop.tracer.calls import Values, call_node
from relprop.tracer.editing import aten, tensor_inputs
from relprop.tracer.facts import is_batched, is_floating, role
from relprop.tracer.program import Program

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


Word = Literal["logarithm", "exponential"]
Words = Mapping[fx.Node, Word]
HALVES = (aten.log_sigmoid, aten.softplus)
LOGS = (aten.log, aten.logsumexp, aten.log_softmax, *HALVES)


def words(tail: Program) -> Words:
    """What the values of a callable's graph are, where they are either."""
    found: dict[fx.Node, Word] = {n: "logarithm" for n in tail.placeholders if _depends(n)}
    for node in tail.graph.nodes:
        if node.op == "call_function" and _depends(node):
            active = [i for i in tensor_inputs(node) if _depends(i)]
            word = _word(node, active, {found.get(i) for i in active})
            found |= {} if word is None else {node: word}
    return found


def _depends(node: fx.Node) -> bool:
    return role(node) == "activation" and is_floating(node)


def _word(node: fx.Node, active: Sequence[fx.Node], of: set[Word | None]) -> Word | None:
    if of == {"logarithm"}:
        if kind(node) is Kind.SOFTMAX or is_call(node, aten.exp):
            return "exponential"
        whole = kind(node) in (Kind.LOG_SOFTMAX, Kind.LARGEST)
        is_log = whole or is_call(node, aten.logsumexp, *HALVES) or is_linear(node, active)
        return "logarithm" if is_log else None
    if of != {"exponential"}:
        return None
    if is_call(node, aten.log):
        return "logarithm"
    moved = kind(node) in (*MOVES, Kind.TOTAL, Kind.OUTPUT) and is_linear(node, active)
    return "exponential" if moved else None


def takes_logarithms(tail: Program) -> str:
    """The name of an operation that takes a logarithm of what depends on an output, or ""."""
    logs = (n for n in tail.graph.nodes if is_call(n, *LOGS) and _depends(n))
    return next((str(n.target).split(".")[1] for n in logs), "")


def is_sum(found: Words) -> bool:
    """Whether a graph of logarithms alone takes none itself."""
    return "exponential" not in found.values() and not any(is_call(n, *LOGS) for n in found)


def at_logits(tail: Program, outputs: Sequence[Tensor], found: Words) -> Tensor:
    """The callable of one sample's ``outputs``, every log-probability replaced by its logit and
    every normaliser by 0. What is picked by its size is what was picked of the values
    themselves."""
    values: Values = dict(zip(tail.placeholders, outputs, strict=True))
    nodes = [n for n in tail.graph.nodes if n.op in ("get_attr", "call_function")]
    for node in nodes:
        held = node.op == "get_attr"
        values[node] = tail.constants[str(node.target)] if held else call_node(node, values, None)
    logits = dict(values)
    for node in nodes:
        if node in found:
            logits[node] = _logit(node, values, logits, found[node])
    result: Tensor = logits[tail.output_nodes[0]]
    return result


def _logit(node: fx.Node, values: Values, logits: Values, word: Word) -> object:
    """What stands for a value that is a logarithm, or for an exponential's exponent."""
    if kind(node) in (Kind.SOFTMAX, Kind.LOG_SOFTMAX) or is_call(node, aten.exp, aten.log):
        return logits[operand(node)]
    if is_call(node, *HALVES):
        return logits[operand(node)] / 2
    if kind(node) is Kind.LARGEST:
        return _picked(node, values, logits)
    if is_call(node, aten.logsumexp) or (kind(node) is Kind.TOTAL and word == "exponential"):
        return torch.zeros_like(values[node])
    return call_node(node, logits, None)


def _picked(node: fx.Node, values: Values, logits: Values) -> Tensor:
    """The logits of the largest values along some axes; where several are equal, their mean."""
    x, dims, keep = operand(node), argument(node, "dim"), bool(argument(node, "keepdim"))
    whole: Tensor = values[node]
    for dim in () if keep else sorted(d % values[x].dim() for d in dims):
        whole = whole.unsqueeze(dim)
    picked = (values[x] == whole).to(whole.dtype)
    mean: Tensor = (logits[x] * picked / picked.sum(dims, keepdim=True)).sum(dims, keepdim=keep)
    return mean
