"""Log-probabilities as the logits they are of.

log p(t) = z_t − log Σ_k exp z_k. Relevance of a sum of log-probabilities starts at the logits z_t;
the normaliser, in which every class has a part, gets none. So it is for any way of writing one:
``log_softmax``, ``cross_entropy``, the logarithm of a softmax, z − logsumexp. Which it is, is read
off the callable's graph by two words: a value there is a *logarithm* (an output, and what is linear
in logarithms) or an *exponential* (``exp`` or ``softmax`` of one, moved or summed). Of two classes
with one logit between them, z/2 and −z/2 are the logits: log σ(z) = z/2 − log(2 cosh(z/2)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, argument, is_call, kind, operand
from relprop.targets.linear import is_linear
from relprop.tracer.calls import Values, call_node
from relprop.tracer.editing import aten, tensor_inputs
from relprop.tracer.facts import is_floating, role
from relprop.tracer.program import Program

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
