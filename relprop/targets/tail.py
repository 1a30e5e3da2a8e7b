"""Targets given as a callable ``output of one sample -> scalar``: a program of their own, the tail,
follows the model's.

A sum or difference of k outputs is explained term by term (``linear.py``). Any other function
starts with 1 at its scalar, and relevance walks through its own operations first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

from relprop.errors import TargetError, message
from relprop.interpreter.batch import propagate
from relprop.plan import make_plan
from relprop.rollup import rollup_plan_through
from relprop.targets.linear import is_linear, linear_start
from relprop.targets.start import Context, Start, Term, all_of, field_of, has_batch_axis
from relprop.targets.traced import traced
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.facts import role
from relprop.tracer.program import Program
from relprop.tracer.run import execute

NOTHING_ARRIVES = (
    "the target callable is of no use as a start: none of its relevance arrives at the model's "
    "outputs"
)
TURN_SIGNS = (
    "a sum gives relevance to its positive terms only (Eq. 5): turn the sign of the terms, not of "
    "the sum"
)


def resolve_callable(target: Callable[..., Tensor], context: Context) -> Start:
    """The start of a callable target. Raises ``TargetError`` if it is not traceable or its result
    is no scalar."""
    inputs = _outputs_as_inputs(context)
    tail = traced(target, context, inputs)
    scalar = tail.output_nodes[0]
    if role(scalar) != "activation":
        raise TargetError("the target callable does not depend on the model's output")
    values = execute(tail, None, inputs, set(tail.graph.nodes), attached=True)
    label = (getattr(target, "__name__", type(target).__name__),) * context.inputs.batch
    if is_linear(tail):
        return linear_start(label, values[scalar].flatten(), inputs, context)
    seeds, field = _walked(tail, values, context)
    if not any(bool(relevance.any()) for relevance in seeds.values()):
        raise TargetError(message(NOTHING_ARRIVES, then=[TURN_SIGNS]))
    return Start(label, values[scalar].flatten(), (Term(1.0, seeds),), field, is_sum=False)


def _walked(
    tail: Program, values: Values, context: Context
) -> tuple[dict[fx.Node, Tensor], dict[fx.Node, Tensor]]:
    """What of a relevance of 1 at the tail's scalar arrives at each output of the model, and the
    roll-up's field there."""
    scalar = tail.output_nodes[0]
    ones = torch.ones_like(values[scalar])
    detached = {n: v.detach() if isinstance(v, Tensor) else v for n, v in values.items()}
    plan = make_plan(tail, None, context.rules, (scalar,), frozenset(tail.leaves.values()))
    relevance = propagate(plan, detached, {scalar: ones}, account=False).found
    rollup = rollup_plan_through(tail, (scalar,))
    field = propagate(rollup, detached, {scalar: field_of(ones)}, account=False).found
    nodes = dict(zip(tail.placeholders, context.program.output_nodes, strict=True))
    return (
        {nodes[leaf]: _as_output(r, nodes[leaf]) for leaf, r in relevance.items()},
        {nodes[leaf]: _as_output(f, nodes[leaf], axis=2) for leaf, f in field.items()},
    )


def _as_output(value: Tensor, node: fx.Node, axis: int = 1) -> Tensor:
    """A value of the tail's input in the shape of the model's output: without the sample's 1 at
    ``axis``, where that output has none."""
    return value if has_batch_axis(node) else value.squeeze(axis)


def _outputs_as_inputs(context: Context) -> Inputs:
    """The model's outputs as the inputs of the tail, floating ones with gradients."""
    tensors = []
    for node in context.program.output_nodes:
        value = all_of(context.outputs[node])
        value = value[:, 0] if has_batch_axis(node) else value
        if value.is_floating_point() and not value.requires_grad:
            value = value.detach().requires_grad_()
        tensors.append(value)
    names, every = context.program.outputs.names, (True,) * len(tensors)
    return Inputs(names, tuple(tensors), lambda t: (t, {}), every, context.inputs.batch)
