"""A whole relevance pass as one gradient: where every rule of a plan has a gradient form, the graph
with these forms in place of its calls is differentiated, and relevance is value ⊙ gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from relprop.errors import OptionError
from relprop.interpreter.crossing import refusing_step
from relprop.numerics import at_least_float32, is_finite
from relprop.operations import MOVES, Kind, Value, kind
from relprop.plan import Plan, Step
from relprop.rules.call import Call
from relprop.rules.gradient_form import Form, Own, factors_of, scaled
from relprop.rules.rule import Rule
from relprop.tracer.calls import Reads, call_node, together
from relprop.tracer.chunked import kernel_at, large_attentions
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import is_batched
from relprop.tracer.forms import Factors, Forms
from relprop.tracer.kernel import Kernel
from relprop.tracer.kernels import KERNELS
from relprop.tracer.program import is_floating
from relprop.tracer.queries import Attention

Made = Callable[[Reads], Value]


class Undefined(Exception):
    """A gradient form has no value at these numbers: relevance must be walked."""


def forms_of(plan: Plan) -> Forms | str:
    """What stands in place of the graph's calls so that relevance is value ⊙ gradient; or why there
    is no such. Worked out once per plan."""
    return plan.memo.cache("forms", lambda: _why_none(plan) or _forms(plan))


def gradient_forms(plan: Plan, whole: frozenset[fx.Node]) -> Forms | str:
    """The same for gradients that methods read: what arrives at an attention map is its gradient,
    also where the map is a constant and it goes no further. ``whole``: the contractions of the
    sites at whose maps it is read."""
    found = forms_of(plan)
    if isinstance(found, str):
        return found
    return plan.memo.cache(("forms of gradients", whole), lambda: _of_gradient(plan, whole, found))


def refuse_undefined(gradient: Tensor | None) -> None:
    """Raise ``OptionError`` where a gradient by these forms is no finite number."""
    if gradient is not None and not is_finite(gradient):
        fact = "the balanced gradient is no finite number: a function that is not 0 at 0 is "
        then = ["gradient='model'", "precision='float64' if numbers overflow"]
        raise OptionError(f"{fact}given a 0, or numbers overflow", then=then)


def _of_gradient(plan: Plan, whole: frozenset[fx.Node], found: Forms) -> Forms:
    made, at_maps = dict(found.made), dict[fx.Node, float]()
    for site in plan.program.sites:
        step = plan.step_at.get(site.contraction)
        factors = None if step is None else _multiples(step)
        if step is None or factors is None:
            continue
        at = next(i for i, o in enumerate(step.operands) if o is not site.values)
        at_maps[site.contraction] = factors[at] or 1.0
        if site.contraction in whole and not factors[at]:
            made[site.contraction] = partial(_made, Own(_with_one(factors, at)), step)
            end = _softmax_of(site.attention)
            made[end] = partial(_stopped, end, plan.program.dtype)
    return replace(found, made=made, of_gradient=True, at_maps=at_maps)


def _softmax_of(attention: fx.Node) -> fx.Node:
    """The softmax that a map is, but for casts and moves; else the map."""
    node = attention
    while kind(node) in MOVES | {Kind.CAST, Kind.IDENTITY} and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node if kind(node) is Kind.SOFTMAX else attention


def _with_one(factors: tuple[float, ...], at: int) -> Callable[[Call], tuple[float, ...]]:
    given = (*factors[:at], 1.0, *factors[at + 1 :])
    return lambda _: given


def _why_none(plan: Plan) -> str:
    """Why relevance is not one gradient, or ""."""
    if plan.rules.fan_out is not None:
        return (
            "the rule set joins the relevances of a value that is used twice by a rule of its own"
        )
    for step in plan.steps:
        if len(step.inner) > 1:
            return f"rule {_rule(step).name!r} takes a whole call of {step.op_name}"
        if _form(step) is None:
            return f"rule {_rule(step).name!r} has no gradient form"
    return rounding(plan)


def rounding(plan: Plan) -> str:
    """That gradients are rounded to less than float32, or ""."""
    values = (val(step.node) for step in plan.steps if plan.program.dtype is None)
    for dtype in (v.dtype for v in values if isinstance(v, Tensor)):
        if dtype != at_least_float32(dtype):
            name = str(dtype).removeprefix("torch.")
            return f"gradients of a model in {name} are rounded to that"
    return ""


def _rule(step: Step) -> Rule:
    return step.rule.for_activations(step.roles.count("activation"))


def _form(step: Step) -> Form | None:
    return _rule(step).gradient


def _forms(plan: Plan) -> Forms:
    dtype = plan.program.dtype
    made: dict[fx.Node, Made] = {}
    for step in plan.steps:
        form = _form(step)
        if form is not None and not _is_plain(step):
            made[step.node] = partial(_made, form, step)
    passed = {*plan.step_at, *plan.program.leaves.values()}
    for node in plan.program.graph.nodes:  # where relevance ends, so does the gradient
        ends = node.op == "call_function" and node not in passed and is_batched(node)
        if ends and is_floating(node) and not passed.isdisjoint(tensor_inputs(node)):
            made[node] = partial(_stopped, node, dtype)
    sites = large_attentions(plan.program, 0)
    kernels = {end: _factors(plan, a, made) for end, a in sites.items()}
    whole = frozenset(end for end, a in sites.items() if refusing_step(plan, a) is not None)
    return Forms(made, {e: f for e, f in kernels.items() if f is not None}, whole, scaled)


def _is_plain(step: Step) -> bool:
    """Whether its form is the call as it stands."""
    factors = _multiples(step)
    return factors is not None and set(factors) <= {1.0}


def _multiples(step: Step) -> tuple[float, ...] | None:
    """By what its form multiplies the gradient at each operand; ``None`` where it is more."""
    form = _form(step)
    traced = tuple(val(o) for o in step.operands)
    return None if form is None else factors_of(form, _unmade(step, traced))


def _unmade(step: Step, tensors: tuple[Tensor, ...]) -> Call:
    """What a form is told: its call, without a result."""
    call = step.call(tensors, None, None)
    return replace(call, function=KERNELS.get(call.function, call.function))


def _made(form: Form, step: Step, values: Reads) -> Value:
    operands = tuple(values[o] for o in step.operands)
    return form(_unmade(step, together(step.node, operands)))


def _stopped(node: fx.Node, dtype: torch.dtype | None, values: Reads) -> Value:
    return tree_map_only(Tensor, torch.Tensor.detach, call_node(node, values, dtype))


def _factors(plan: Plan, attention: Attention, made: Mapping[fx.Node, Made]) -> Factors | None:
    """What becomes of the gradients of a site that the fused kernel runs; ``None`` where a form is
    more than a multiple of the gradient."""
    kernel, site = kernel_at(plan.program, attention), attention.site
    if kernel is None:
        return None
    product = _product(kernel, attention)
    if any(n in made for n in attention.nodes if n not in (product, site.contraction)):
        return None
    by = dict[fx.Node, dict[fx.Node, float]]()
    for node in (product, site.contraction):
        step = plan.step_at.get(node)
        found = () if step is None else _multiples(step)
        if found is None:
            return None
        by[node] = {} if step is None else dict(zip(step.operands, found, strict=True))
    rows = by[site.contraction].get(site.attention, 1.0)
    queries, keys = (rows * by[product].get(n, 1.0) for n in (kernel.queries, kernel.keys))
    return Factors(queries, keys, by[site.contraction].get(site.values, 1.0), rows)


def _product(kernel: Kernel, attention: Attention) -> fx.Node:
    """The call that multiplies queries and keys."""
    pair = {kernel.queries, kernel.keys}
    return next(n for n in attention.nodes if set(tensor_inputs(n)) == pair)
