"""Callables that are a sum of outputs, each times a number: every output is explained by itself,
and the results are added up.

Started together, relevances that sum to 0 would be erased by the first normalisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.interpreter.points import Points
from relprop.operations import MOVES, Kind, kind
from relprop.targets.start import Context, Start, Term, field_of, has_batch_axis
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import role
from relprop.tracer.program import Program

JOINTLY = MOVES | {Kind.SUM, Kind.TOTAL, Kind.AFFINE, Kind.OUTPUT, Kind.CAST, Kind.IDENTITY}
"""Operations that are linear in everything that enters."""
ALONE = frozenset({Kind.PRODUCT, Kind.QUOTIENT, Kind.GATHER, Kind.LINEAR})
"""Operations that are linear in the first operand alone."""
MOST_TERMS = 64


@dataclass(frozen=True)
class Element:
    """One element of an output, by its index without the batch axis, and its coefficient."""

    node: fx.Node
    index: tuple[int, ...]
    coefficient: float


def is_linear(tail: Program) -> bool:
    """Whether the target is a linear combination of elements of the output, whatever the values."""
    return all(
        _is_linear(node)
        for node in tail.graph.nodes
        if node.op == "call_function" and role(node) == "activation"
    )


def _is_linear(node: fx.Node) -> bool:
    active = [i for i in tensor_inputs(node) if role(i) == "activation"]
    if kind(node) is Kind.QUOTIENT and node.args[0] not in active:
        return False
    return len(active) <= 1 if kind(node) in ALONE else kind(node) in JOINTLY


def linear_start(
    label: tuple[object, ...], scalars: Tensor, inputs: Inputs, context: Context
) -> Start:
    """Σ_k c_k·(element k): a term per element. One element alone starts with 1, whatever its
    coefficient."""
    gradients = _gradients(scalars, inputs, context)
    found = [
        Element(node, tuple(index), float(gradient[(0, *index)]))
        for node, gradient in gradients.items()
        for index in (gradient[0] != 0).nonzero().tolist()
    ]
    if not found:
        raise TargetError("the target callable does not depend on the model's output")
    weights = {node: _like_output(gradient, node) for node, gradient in gradients.items()}
    if len(found) > MOST_TERMS:
        _refuse_cancelling([element.coefficient for element in found])
        whole = {node: field_of(weight) for node, weight in weights.items()}
        return Start(label, scalars, (Term(1.0, weights),), whole)
    by_node = {node: [e for e in found if e.node is node] for node in weights}
    field = {node: _ones(some, weights[node]).marked() for node, some in by_node.items()}
    alone = len(found) == 1
    terms = tuple(
        Term(1.0 if alone else e.coefficient, {e.node: _ones([e], weights[e.node])}) for e in found
    )
    return Start(label, scalars, terms, field, is_sum=not alone)


def _gradients(scalars: Tensor, inputs: Inputs, context: Context) -> Mapping[fx.Node, Tensor]:
    """∂y_t/∂output of each output that the callable reads: the coefficients of its elements."""
    both = zip(
        context.program.output_nodes, inputs.tensors, strict=True
    )  # a node may be there twice
    floating = [(n, t) for n, t in both if t.is_floating_point() and t.requires_grad]
    if not floating:
        return {}
    tensors = [tensor for _, tensor in floating]
    found = torch.autograd.grad(scalars.sum(), tensors, retain_graph=True, allow_unused=True)
    return {
        node: gradient
        for (node, _), gradient in zip(floating, found, strict=True)
        if gradient is not None and bool((gradient[0] != 0).any())
    }


def _like_output(gradient: Tensor, node: fx.Node) -> Tensor:
    """In the shape of the model's output, and at least in single precision."""
    wide = gradient.unsqueeze(1) if has_batch_axis(node) else gradient
    return wide.to(torch.promote_types(wide.dtype, torch.float32))


def _refuse_cancelling(coefficients: list[float]) -> None:
    if abs(sum(coefficients)) <= 1e-6 * sum(map(abs, coefficients)):
        raise TargetError(
            f"the target combines {len(coefficients)} outputs whose coefficients sum to 0: "
            "a start whose relevances sum to 0 would be erased by the "
            f"first normalisation, and only up to {MOST_TERMS} terms are explained one by one"
        )


def _ones(elements: list[Element], like: Tensor) -> Points:
    """1 at some elements of one output, in every sample."""
    row = (0,) if has_batch_axis(elements[0].node) else ()
    where = torch.tensor(
        [[*row, *e.index] for e in elements], dtype=torch.long, device=like.device
    ).repeat(len(like), 1)
    sample = torch.arange(len(like), device=like.device).repeat_interleave(len(elements))
    return Points((sample, *where.unbind(1)), like.new_ones(len(sample)), tuple(like.shape))
