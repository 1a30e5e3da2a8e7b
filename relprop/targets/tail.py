"""Targets given as a callable ``output of one sample -> scalar``: a program of their own, the tail,
follows the model's.

A sum or difference of k outputs or log-probabilities is explained term by term (``linear.py``). Any
other function starts with 1 at its scalar, and relevance walks through its own operations first;
one of logarithms has no start, and is for methods that need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, fx

from relprop.errors import OptionError, TargetError
from relprop.interpreter.batch import propagate
from relprop.interpreter.forms import gradient_forms
from relprop.interpreter.points import Made
from relprop.plan import make_plan
from relprop.rollup import rollup_plan_through
from relprop.rules import RuleSet
from relprop.rules.presets import gradient_name
from relprop.targets.linear import at_logits, is_sum, linear_start, marks, takes_logarithms, words
from relprop.targets.outputs import has_batch_axis
from relprop.targets.start import Context, NoStart, Start, Term, all_of, field_of
from relprop.targets.traced import called, traced
from relprop.tracer.binding import Inputs
from relprop.tracer.facts import is_batched, shape
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
    """The start of a callable target. Raises ``TargetError`` if its result is no scalar that
    depends on the outputs, ``NoStart`` if relevance is to start and cannot."""
    inputs = _outputs_as_inputs(context)
    scalars = called(target, context, inputs)
    slopes = _slopes(scalars, inputs, context)
    label = (getattr(target, "__name__", type(target).__name__),) * context.inputs.batch

    def again(outputs: Mapping[fx.Node, Made]) -> Tensor:
        other = replace(context, outputs=outputs)
        return called(target, other, _outputs_as_inputs(other))

    tail: Program | None = None
    start: Start | None = None
    try:
        tail = traced(target, context, inputs)
        start = _at_elements(tail, label, scalars, inputs, context)
    except TargetError:
        if context.walks:
            raise
    if start is None and not context.walks:
        start = Start(label, scalars, (), marks(slopes), is_sum=False, at_elements=False)
    if start is None:
        assert tail is not None, "what cannot be followed was refused"
        start = _walked(tail, label, scalars, inputs, context)
    by_forms = None if tail is None else partial(_by_forms, tail, inputs)
    return replace(start, again=again, by_forms=by_forms)


def _by_forms(tail: Program, inputs: Inputs, rules: RuleSet) -> Tensor:
    """The tail's scalars with the gradient forms of a rule set in place of its own calls. Raises
    ``OptionError`` where there are none."""
    scalar = tail.output_nodes[0]
    plan = make_plan(tail, None, rules, (scalar,), frozenset(tail.leaves.values()))
    forms = gradient_forms(plan, frozenset())
    if isinstance(forms, str):
        fact = f"gradient={gradient_name(rules)!r}, in the target callable: {forms}"
        raise OptionError(fact, then=["gradient='model'"])
    found: Tensor = execute(tail, None, inputs, {scalar}, attached=True, forms=forms)[scalar]
    return found.reshape(inputs.batch)


def _at_elements(
    tail: Program, label: tuple[object, ...], scalars: Tensor, inputs: Inputs, context: Context
) -> Start | None:
    """The start at the elements of which y_t is a sum, log-probabilities standing for their logits;
    ``None`` where it is none."""
    found = words(tail)
    if found.get(tail.output_nodes[0]) != "logarithm":
        return None
    samples = (inputs.samples(i, i + 1) for i in range(inputs.batch))
    whole = torch.cat([at_logits(tail, one, found).reshape(1) for one in samples])
    weights = gradients_of(whole, inputs, context)
    return linear_start(label, scalars, weights, is_sum=is_sum(found))


def _slopes(scalars: Tensor, inputs: Inputs, context: Context) -> dict[fx.Node, Tensor]:
    """∂y_t/∂ every output. Raises ``TargetError`` where there is none."""
    found = gradients_of(scalars, inputs, context)
    if found:
        return found
    if scalars.requires_grad:
        raise TargetError(
            "the target does not depend on the input: no output of the model changes the target "
            "callable, its gradient is 0 everywhere"
        )
    fact = "the target callable does not depend on the model's output"
    then = ["make its result of the output by tensor operations, without .item() or .detach()"]
    raise TargetError(fact, then=then)


def _walked(
    tail: Program, label: tuple[object, ...], scalars: Tensor, inputs: Inputs, context: Context
) -> Start:
    """The start where y_t is no sum of elements: what of a relevance of 1 at the tail's scalar
    arrives at each output of the model, and the roll-up's field there."""
    if name := takes_logarithms(tail):
        raise NoStart(f"{label[0]!r} is no sum of logits, log-probabilities or losses ({name})")
    scalar = tail.output_nodes[0]
    values = execute(tail, None, inputs, set(tail.graph.nodes), attached=True)
    ones = torch.ones_like(values[scalar])
    detached = {n: v.detach() if isinstance(v, Tensor) else v for n, v in values.items()}
    plan = make_plan(tail, None, context.rules, (scalar,), frozenset(tail.leaves.values()))
    relevance = propagate(plan, detached, {scalar: ones}, account=False).found
    rollup = rollup_plan_through(tail, (scalar,))
    field = propagate(rollup, detached, {scalar: field_of(ones)}, account=False).found
    nodes = dict(zip(tail.placeholders, context.program.output_nodes, strict=True))
    seeds = {nodes[leaf]: _as_output(r, nodes[leaf]) for leaf, r in relevance.items()}
    if not any(bool(seed.any()) for seed in seeds.values()):
        raise TargetError(NOTHING_ARRIVES, then=[TURN_SIGNS])
    starts = {nodes[leaf]: _as_output(f, nodes[leaf], axis=2) for leaf, f in field.items()}
    return Start(label, scalars, (Term(1.0, seeds),), starts, is_sum=False, at_elements=False)


def _as_output(value: Tensor, node: fx.Node, axis: int = 1) -> Tensor:
    """A value of the tail's input in the shape of the model's output: without the sample's 1 at
    ``axis``, where that output has none."""
    return value if has_batch_axis(node) else value.squeeze(axis)


def _outputs_as_inputs(context: Context) -> Inputs:
    """The model's outputs as the inputs of the tail, floating ones with gradients."""
    tensors = []
    for node in context.program.output_nodes:
        value = all_of(context.outputs[node])
        if value.dim() == len(shape(node)):  # made once for all samples
            value = value.expand(context.inputs.batch, *value.shape)
        value = value[:, 0] if has_batch_axis(node) else value
        if is_batched(node) and value.is_floating_point() and not value.requires_grad:
            value = value.detach().requires_grad_()
        tensors.append(value)
    names, every = context.program.outputs.names, (True,) * len(tensors)
    return Inputs(names, tuple(tensors), lambda t: (t, {}), every, context.inputs.batch)


def gradients_of(scalars: Tensor, inputs: Inputs, context: Context) -> dict[fx.Node, Tensor]:
    """The gradient of every sample's scalar at each output that it depends on, (batch, *size)."""
    both = zip(context.program.output_nodes, inputs.tensors, strict=True)  # one may be there twice
    floating = [(n, t) for n, t in both if t.is_floating_point() and t.requires_grad]
    if not floating or not scalars.requires_grad:
        return {}
    tensors = [tensor for _, tensor in floating]
    found = torch.autograd.grad(scalars.sum(), tensors, retain_graph=True, allow_unused=True)
    gradients: dict[fx.Node, Tensor] = {}
    for (node, _), gradient in zip(floating, found, strict=True):
        if gradient is not None and bool((gradient != 0).any()):
            gradients[node] = gradients[node] + gradient if node in gradients else gradient
    return gradients
