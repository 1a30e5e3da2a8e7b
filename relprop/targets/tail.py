"""Targets given as a callable ``output of one sample -> scalar``: traced as a graph of their own,
which follows the model's.

A sum or difference of k outputs is explained term by term and combined after the relevance pass:
started together, relevances that sum to 0 would be erased by the first normalisation. Any other
function starts with 1 at its scalar and walks through its own ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.errors import RelpropError, TargetError, first_line, message
from relprop.interpreter.batch import propagate
from relprop.operations import MOVES, Kind, is_call, kind
from relprop.plan import make_plan
from relprop.rollup import rollup_plan_through
from relprop.targets.start import Context, Start, Term, field_of, has_batch_axis
from relprop.tracer.assemble import assemble
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, import_graph
from relprop.tracer.editing import aten, tensor_inputs, val
from relprop.tracer.facts import is_batched, role
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import OutputTree, Program
from relprop.tracer.run import execute
from relprop.tracer.surroundings import TRACING

#: Linear in everything that enters, and linear in the first operand alone.
JOINTLY = MOVES | {Kind.SUM, Kind.TOTAL, Kind.AFFINE, Kind.OUTPUT, Kind.CAST, Kind.IDENTITY}
ALONE = frozenset({Kind.PRODUCT, Kind.QUOTIENT, Kind.GATHER, Kind.LINEAR})
MOST_TERMS = 64


def resolve_callable(target: Callable[[Any], Any], context: Context) -> Start:
    """The start of a callable target. Raises ``TargetError`` if it is not traceable or its result
    is no scalar."""
    inputs = _outputs_as_inputs(context)
    tail = _trace(target, context, inputs)
    scalar = tail.output_nodes[0]
    if role(scalar) != "activation":
        raise TargetError("the target callable does not depend on the model's output")
    values = execute(tail, None, inputs, set(tail.graph.nodes), attached=True)
    label = (getattr(target, "__name__", type(target).__name__),) * context.inputs.batch
    nodes = dict(zip(tail.placeholders, context.program.output_nodes, strict=True))
    flat = values[scalar].flatten()
    if _is_linear(tail):
        return _linear_start(label, flat, inputs, context)
    ones = torch.ones_like(values[scalar])
    plan = make_plan(tail, None, context.rules, (scalar,), frozenset(tail.leaves.values()))
    detached = {n: v.detach() if isinstance(v, Tensor) else v for n, v in values.items()}
    found = propagate(plan, detached, {scalar: ones}, account=False).found
    seeds = {nodes[leaf]: _as_output(relevance, nodes[leaf]) for leaf, relevance in found.items()}
    if not any(bool(relevance.any()) for relevance in seeds.values()):
        raise TargetError(
            message(
                (
                    "the target callable is of no use as a start: none of its relevance "
                    "arrives at the model's outputs"
                ),
                then=[
                    (
                        "a sum gives relevance to its positive terms only (Eq. 5): turn the "
                        "sign of the terms, not of the sum"
                    )
                ],
            )
        )
    rollup = rollup_plan_through(tail, (scalar,))
    fields = propagate(rollup, detached, {scalar: field_of(ones)}, account=False).found
    return Start(
        label,
        flat,
        (Term(1.0, seeds),),
        {nodes[leaf]: _as_output(f, nodes[leaf], axis=2) for leaf, f in fields.items()},
        shares=True,
    )


def _as_output(value: Tensor, node: fx.Node, axis: int = 1) -> Tensor:
    """A value of the tail's input in the shape of the model's output: without the sample's 1 at
    ``axis``, where that output has none."""
    return value if has_batch_axis(node) else value.squeeze(axis)


def _outputs_as_inputs(context: Context) -> Inputs:
    tensors = []
    for node in context.program.output_nodes:
        value = context.outputs[node]
        value = value[:, 0] if has_batch_axis(node) else value
        tensors.append(
            value.detach().requires_grad_()
            if value.is_floating_point() and not value.requires_grad
            else value
        )
    return Inputs(
        context.program.outputs.names,
        tuple(tensors),
        lambda t: (t, {}),
        (True,) * len(tensors),
        context.inputs.batch,
    )


def _trace(target: Callable[[Any], Any], context: Context, inputs: Inputs) -> Program:
    rows = [has_batch_axis(node) for node in context.program.output_nodes]

    def call(*tensors: Tensor) -> tuple[Tensor]:
        result = target(
            context.program.outputs(
                [t if whole else t[0] for t, whole in zip(tensors, rows, strict=True)]
            )
        )
        if not isinstance(result, Tensor):
            raise TargetError(
                f"the target callable returned {type(result).__name__}, not a scalar tensor"
            )
        if result.numel() != 1 or not result.is_floating_point():
            kind = str(result.dtype).removeprefix("torch.")
            raise TargetError(
                f"the target callable returned {kind} {list(result.shape)} for one "
                "sample, not one floating scalar"
            )
        return (result.reshape(1),)

    sample = [t[:1].detach() for t in inputs.tensors]
    try:
        with TRACING:
            module = make_fx(call, tracing_mode="real", pre_dispatch=True)(*sample)
    except RelpropError:
        raise
    except Exception as error:
        raise TargetError(
            message(
                (
                    f"the target callable cannot be traced: {type(error).__name__}: "
                    f"{first_line(error)}"
                ),
                then=[
                    (
                        "it is called with the output of one sample (batch dimension 1) and "
                        "must return a scalar by tensor operations, without .item() or "
                        "branches on values"
                    )
                ],
            )
        ) from error
    try:
        graph, constants = import_graph(module, None)
        with TRACING:
            canonicalise(graph, sample[0].device, constants)
        tail = assemble(
            Capture(graph, constants, OutputTree(("target",), next), "concrete"), inputs.names
        )
    except RelpropError:
        raise
    except Exception as error:
        raise TargetError(
            message(
                f"the target callable cannot be followed: {type(error).__name__}: {error}",
                then=["write it with other tensor operations, for example sums of products"],
            )
        ) from error
    _refuse_choices(tail)
    return tail


def _refuse_choices(tail: Program) -> None:
    """How many elements a mask of values picks differs from sample to sample, so that no graph can
    hold it."""
    for node in tail.graph.nodes:
        by_mask = kind(node) is Kind.INDEX and any(
            is_batched(i) and val(i).dtype == torch.bool for i in tensor_inputs(node)
        )
        if by_mask or is_call(node, aten.nonzero, aten.masked_select):
            raise TargetError(
                message(
                    (
                        "the target callable picks elements by their values: how many "
                        "differs from sample to sample"
                    ),
                    then=["weigh them: torch.where(mask, values, 0).sum()"],
                )
            )


def _is_linear(tail: Program) -> bool:
    """Whether the target is a linear combination of elements of the output, whatever the values."""
    for node in tail.graph.nodes:
        if node.op == "call_function" and role(node) == "activation":
            active = [i for i in tensor_inputs(node) if role(i) == "activation"]
            what = kind(node)
            if what not in JOINTLY | ALONE or (what in ALONE and len(active) > 1):
                return False
            if what is Kind.QUOTIENT and node.args[0] not in active:
                return False
    return True


def _linear_start(
    label: tuple[Any, ...], scalars: Tensor, inputs: Inputs, context: Context
) -> Start:
    """Σ_k c_k·(element k): a term per element. One element alone starts with 1, whatever its
    coefficient."""
    floating = [
        (node, t)
        for node, t in zip(context.program.output_nodes, inputs.tensors, strict=True)
        if t.is_floating_point() and t.requires_grad
    ]
    grads = (
        torch.autograd.grad(
            scalars.sum(), [t for _, t in floating], retain_graph=True, allow_unused=True
        )
        if floating
        else ()
    )
    parts = {
        node: g
        for (node, _), g in zip(floating, grads, strict=True)
        if g is not None and bool((g[0] != 0).any())
    }
    places = [
        (node, index) for node, g in parts.items() for index in (g[0] != 0).nonzero().tolist()
    ]
    if not places:
        raise TargetError("the target callable does not depend on the model's output")
    row = {node: (0,) if has_batch_axis(node) else () for node in parts}
    wide = {
        node: (g.unsqueeze(1) if row[node] else g).to(torch.promote_types(g.dtype, torch.float32))
        for node, g in parts.items()
    }
    field = {node: field_of(g) for node, g in wide.items()}
    if len(places) == 1:
        node = places[0][0]
        return Start(
            label,
            scalars,
            (Term(1.0, {node: (wide[node] != 0).to(wide[node].dtype)}),),
            field,
            shares=True,
        )
    coefficients = [float(parts[node][(0, *index)]) for node, index in places]
    if len(places) > MOST_TERMS:
        if abs(sum(coefficients)) <= 1e-6 * sum(map(abs, coefficients)):
            raise TargetError(
                f"the target combines {len(places)} outputs whose coefficients sum to 0: "
                "a start whose relevances sum to 0 would be erased by the "
                f"first normalisation, and only up to {MOST_TERMS} terms are explained one by one"
            )
        return Start(label, scalars, (Term(1.0, wide),), field)
    terms = []
    for (node, index), c in zip(places, coefficients, strict=True):
        seed = torch.zeros_like(wide[node])
        seed[(slice(None), *row[node], *index)] = 1.0
        terms.append(Term(c, {node: seed}))
    return Start(label, scalars, tuple(terms), field)
