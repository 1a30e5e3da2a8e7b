"""One operation as a whole model, so that a rule can be walked through it alone, by the same plan
and the same walk as in any other model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import InputError, RuleError
from relprop.interpreter.batch import propagate
from relprop.interpreter.forms import forms_of
from relprop.interpreter.forward import Kept, detached, forward
from relprop.interpreter.walk import Walk
from relprop.operations import Value
from relprop.plan import Plan
from relprop.rules import PAPER, Rule
from relprop.runner.conditions import Conditions
from relprop.runner.session import Session, open_session
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.facts import is_batched
from relprop.tracer.program import is_floating

Values = dict[fx.Node, Value]


class Alone(nn.Module):
    """A model that is nothing but one call. ``given``: the call's arguments; a tensor with an entry
    per sample is an input of this model, a parameter one of its own, and all else is fixed."""

    def __init__(self, called: Any, given: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.called = called
        self.given = list(given)
        self.keywords = dict(keywords)
        batch = samples_of(given)
        self.places = [i for i, g in enumerate(given) if _is_per_sample(g, batch)]
        for i, value in enumerate(given):
            if isinstance(value, Tensor) and i not in self.places:
                own = isinstance(value, nn.Parameter)
                kept = value.double() if value.is_floating_point() else value
                copied = kept.detach().clone()
                self.register_parameter(f"given_{i}", nn.Parameter(copied)) if own else (
                    self.register_buffer(f"given_{i}", copied)
                )
                self.given[i] = None

    def forward(self, *inputs: Tensor) -> Any:
        """The call, with ``inputs`` where it takes tensors per sample."""
        args = [getattr(self, f"given_{i}", value) for i, value in enumerate(self.given)]
        for place, value in zip(self.places, inputs, strict=True):
            args[place] = value
        return self.called(*args, **self.keywords)


def samples_of(given: tuple[Any, ...]) -> int:
    """How many samples a call's arguments hold: the first axis of its first floating tensor that is
    no parameter. Raises ``InputError`` where there is none."""
    for value in given:
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            continue
        if value.is_floating_point() and value.dim():
            return len(value)
    raise InputError(
        "no argument is a floating tensor with the batch first: relevance would have nowhere to go",
        then=["check_rule(rule, op, torch.randn(2, 4, 8), nn.Parameter(weight))"],
    )


def _is_per_sample(value: Any, batch: int) -> bool:
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return False
    return value.dim() > 0 and len(value) == batch


@dataclass(frozen=True)
class Subject:
    """One operation with a rule, ready to be walked: in float64, ``batch`` samples."""

    session: Session
    plan: Plan
    inputs: Inputs
    rule: Rule

    @classmethod
    def of(
        cls,
        rule: Rule | Callable[..., Any],
        called: Any,
        given: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> Subject:
        """A rule on one operator (or module), with the call's arguments. Raises ``RuleError`` where
        relevance does not come to it at all."""
        module = isinstance(called, nn.Module)
        alone = Alone(copy.deepcopy(called).double() if module else called, given, keywords).eval()
        per_sample = [_wide(_varied(given[i])) for i in alone.places]
        bound = bind(tuple(per_sample))
        named = zip(bound.names, bound.tensors, strict=True)
        explained = [name for name, tensor in named if tensor.is_floating_point()]
        key = type(called) if module else called
        rules = replace(PAPER.with_rule(key, rule), fixed=True)  # whatever else is registered
        how = Conditions(explain_inputs=explained)
        session = open_session(alone, bound, rules, how)
        starts = tuple(n for n in session.program.output_nodes if n in session.flow.members)
        if not starts:
            raise RuleError("no floating output depends on an input: no relevance can arrive")
        plan = session.plan(starts, frozenset(session.program.leaves.values()))
        return cls(session, plan, bound, rules.added[0].rule)

    @property
    def taken(self) -> bool:
        """Whether an operation takes the rule."""
        rules = set(map(id, self.rule.alternatives))
        return any(id(step.rule) in rules for step in self.plan.steps)

    @property
    def operations(self) -> list[str]:
        """What the call is captured as."""
        return sorted({step.op_name for step in self.plan.steps})

    @property
    def activations(self) -> int:
        """How many tensors relevance can travel on to, at most."""
        return max((step.roles.count("activation") for step in self.plan.steps), default=0)

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> Subject:
        """The same on other numbers: ``change`` of every floating input."""
        tensors = tuple(change(t) if t.is_floating_point() else t for t in self.inputs.tensors)
        return Subject(self.session, self.plan, bind(tensors), self.rule)

    def values(self) -> Values:
        """What the operation computed, batch first, by node."""
        nodes = set(self.session.program.graph.nodes)
        kept = Kept(nodes, ())
        done = forward(self.session.program, self.session.model, self.inputs, kept)
        return {n: detached(v) for n, v in (done.values | done.watched).items()}

    def starts(self, values: Values) -> dict[fx.Node, Tensor]:
        """Relevance of both signs at every output, another for each sample."""
        generator = torch.Generator().manual_seed(0)
        return {
            node: torch.randn(values[node].shape, generator=generator, dtype=torch.float64)
            for node in self.plan.starts
        }

    def walk(self, values: Values, starts: Mapping[fx.Node, Tensor]) -> Walk:
        """The relevance pass."""
        return propagate(self.plan, values, dict(starts))

    def alone(self, values: Values, sample: int) -> Values:
        """The values of one sample, as a batch of one."""
        return {
            n: v[sample : sample + 1] if isinstance(v, Tensor) and is_batched(n) else v
            for n, v in values.items()
        }

    def by_gradient(self, values: Values, starts: Mapping[fx.Node, Tensor]) -> Any:
        """Relevance at the inputs by the rule's gradient form, by node; or why there is none."""
        forms = forms_of(self.plan)
        if isinstance(forms, str):
            return forms
        program, leaves = self.session.program, self.session.program.leaves.values()
        kept = Kept(set(self.plan.starts), leaves)
        done = forward(program, self.session.model, self.inputs, kept, forms=forms)
        ends = [(done.values[n], start / values[n]) for n, start in starts.items()]
        with torch.enable_grad():
            scalars = sum((o * g).flatten(1).sum(1) for o, g in ends)
        found = done.gradients(scalars, leaves, again=False)
        return {n: values[n] * g for n, g in found.items()}


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()


def _varied(tensor: Tensor) -> Tensor:
    """A batch; of a single sample, it and itself turned round, which has the same numbers."""
    if len(tensor) > 1:
        return tensor
    turned = tensor.flip(*range(1, tensor.dim())) if tensor.is_floating_point() else tensor
    return torch.cat([tensor, turned])


def floating(values: Mapping[fx.Node, Value]) -> dict[fx.Node, Tensor]:
    """The floating values."""
    return {n: v for n, v in values.items() if isinstance(v, Tensor) and is_floating(n)}
