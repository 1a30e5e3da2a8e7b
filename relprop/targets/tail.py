"""Targets given as a callable ``output of one sample -> scalar``: a program of their own, the tail,
follows the model's.

A sum or difference of k outputs or log-probabilities is explained term by term (``linear.py``). Any
other function starts with 1 at its scalar, and relevance walks through its own operations first;
one of logarithms has no start, and is for methods that need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.errors import OptionError, RelpropError, TargetError, first_line
from relprop.interpreter.batch import propagate
from relprop.interpreter.forms import gradient_forms
from relprop.interpreter.points import Made
from relprop.operations import Kind, is_call, kind
from relprop.plan import make_plan
from relprop.rollup import rollup_plan_through
from relprop.rules import RuleSet
from relprop.rules.presets import gradient_name
from relprop.targets.linear import at_logits, is_sum, linear_start, marks, takes_logarithms, words
from relprop.targets.outputs import has_batch_axis
from relprop.targets.start import Context, NoStart, Start, Term, all_of, field_of
from relprop.tracer.assemble import assemble
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, import_graph
from relprop.tracer.editing import aten, tensor_inputs, val
from relprop.tracer.facts import is_batched, shape
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import OutputTree, Program
from relprop.tracer.run import execute
from relprop.tracer.surroundings import TRACING

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


HOW_IT_IS_CALLED = (
    "it is called with the output of one sample (batch dimension 1) and must return a scalar by "
    "tensor operations; where relevance starts at it, without .item() or branches on values"
)


def traced(target: Callable[..., Tensor], context: Context, inputs: Inputs) -> Program:
    """The callable's program. Raises ``TargetError`` if it cannot be traced, or if its result is no
    scalar."""
    sample = [tensor[:1].detach() for tensor in inputs.tensors]
    with _failing("cannot be traced"), TRACING:
        call = _on_tensors(target, context)
        module = make_fx(call, tracing_mode="real", pre_dispatch=True)(*sample)
    then = "write it with other tensor operations, for example sums of products"
    with _failing("cannot be followed", then, str):
        graph, constants = import_graph(module, None)
        with TRACING:
            canonicalise(graph, sample[0].device, constants)
        capture = Capture(graph, constants, OutputTree(("target",), next), "concrete")
        both = zip(inputs.names, inputs.tensors, strict=True)
        program = assemble(capture, inputs.names, tuple(n for n, t in both if t.requires_grad))
    for node in program.graph.nodes:
        _refuse_choice(node)
    return program


def called(target: Callable[..., Tensor], context: Context, inputs: Inputs) -> Tensor:
    """What the callable says of every sample, (batch,), attached to autograd. Raises
    ``TargetError`` for what is no scalar, or if it fails."""
    call = _on_tensors(target, context)
    with _failing("fails on one sample's output"):
        return torch.cat([call(*inputs.samples(i, i + 1))[0] for i in range(inputs.batch)])


@contextmanager
def _failing(
    what: str, then: str = HOW_IT_IS_CALLED, says: Callable[[Exception], str] = first_line
) -> Iterator[None]:
    """What nobody foresaw in a callable as a ``TargetError`` that says ``what`` it does."""
    try:
        yield
    except RelpropError:
        raise
    except Exception as error:
        fact = f"the target callable {what}: {type(error).__name__}: {says(error)}"
        raise TargetError(fact, then=[then]) from error


def _on_tensors(target: Callable[..., Tensor], context: Context) -> Callable[..., tuple[Tensor]]:
    """The callable as a function of the model's output tensors, one after the other."""
    whole = [has_batch_axis(node) for node in context.program.output_nodes]

    def call(*tensors: Tensor) -> tuple[Tensor]:
        given = [t if has_row else t[0] for t, has_row in zip(tensors, whole, strict=True)]
        result = target(context.program.outputs(given))
        _refuse_no_scalar(result)
        return (result.reshape(1),)

    return call


def _refuse_no_scalar(result: object) -> None:
    if not isinstance(result, Tensor):
        raise TargetError(
            f"the target callable returned {type(result).__name__}, not a scalar tensor"
        )
    if result.numel() != 1 or not result.is_floating_point():
        dtype = str(result.dtype).removeprefix("torch.")
        raise TargetError(
            f"the target callable returned {dtype} {list(result.shape)} for one "
            "sample, not one floating scalar"
        )


def _refuse_choice(node: fx.Node) -> None:
    """How many elements a mask of values picks differs from sample to sample, so that no graph can
    hold it."""
    by_mask = kind(node) is Kind.INDEX and any(
        is_batched(i) and val(i).dtype == torch.bool for i in tensor_inputs(node)
    )
    if by_mask or is_call(node, aten.nonzero, aten.masked_select):
        fact = (
            "the target callable picks elements by their values: how many "
            "differs from sample to sample"
        )
        then = ["weigh them: torch.where(mask, values, 0).sum()"]
        raise TargetError(fact, then=then)
