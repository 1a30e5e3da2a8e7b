"""The backward walk of one sample: relevance from the start down to where it is wanted, by the
plan's rules. It knows no operation, no transformer and no batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor, fx
from torch.utils._pytree import register_dataclass

from relprop.errors import RelpropError, RuleError, first_line, message
from relprop.interpreter.accounts import Account, LedgerBuilder, added, added_accounts
from relprop.numerics import at_least_float32
from relprop.operations import Value
from relprop.plan import Edge, Plan, Step
from relprop.rules.call import Call, Split, ZeroPadded, as_tensors, whole
from relprop.rules.rule import Relevance
from relprop.tracer.calls import HoldsTensors, Values, call_node, each_tensor, together
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.program import describe

#: Relevance on its way: what has arrived at each output of a node, part by part.
Pending = dict[Edge, list[Tensor]]
#: The same within a walk, where parts may stand for tensors of mostly zeros.
_Waiting = dict[Edge, list[Tensor | ZeroPadded]]


@dataclass
class Walk(HoldsTensors):
    """What a walk hands out: the relevance at every wanted node, each step's account (if asked
    for), and the sums where it ended."""

    found: dict[fx.Node, Tensor] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    ended: dict[fx.Node, Tensor] = field(default_factory=dict)

    def with_tensors(self, made: Callable[[Tensor], Tensor]) -> Walk:
        """The same walk in other tensors."""
        return Walk(
            each_tensor(self.found, made),
            [a.with_tensors(made) for a in self.accounts],
            each_tensor(self.ended, made),
        )

    def __add__(self, other: Walk) -> Walk:
        """Two walks over one plan, as if they had been one."""
        return Walk(
            added(self.found, other.found),
            added_accounts(self.accounts, other.accounts),
            added(self.ended, other.ended),
        )

    def __rmul__(self, factor: float) -> Walk:
        """The walk of a start ``factor`` times as large."""
        if factor == 1:
            return self
        tensors = Walk(self.found, [], self.ended).with_tensors(lambda r: factor * r)
        return replace(tensors, accounts=[factor * a for a in self.accounts])


register_dataclass(Walk)


def walk(
    plan: Plan,
    nodes: Sequence[fx.Node],
    values: Values,
    pending: Pending,
    extras: Mapping[fx.Node, Tensor],
    account: bool,
) -> Walk:
    """Take what is ``pending`` through ``nodes``, in their order: each hands out what is wanted
    there, and the rest on by its rule, into ``pending``."""
    done, ledger, again = Walk(), LedgerBuilder(), Values()
    waiting: _Waiting = {edge: [*parts] for edge, parts in pending.items()}
    for node in nodes:
        relevance = _arrived(plan, node, values, waiting)
        if relevance is None:
            continue
        if node in plan.wanted:
            done.found[node] = relevance
        step = plan.step_at.get(node)
        if step is None:
            if account:
                ledger.end(node, relevance)
            continue
        read = read_by(plan, step, values, again)
        relevance, read, extra = together(node, (relevance, read, extras.get(node)))
        split = apply(step, relevance, read, extra)
        if account:
            ledger.note(step, relevance, split)
        for edge, share in zip(step.edges, split.shares, strict=True):
            if edge is not None and isinstance(share, (Tensor, ZeroPadded)):
                waiting.setdefault(edge, []).append(share)
    done.accounts, done.ended = ledger.closed()
    pending.clear()
    pending.update((edge, _tensors(plan, parts)) for edge, parts in waiting.items())
    return done


def read_by(plan: Plan, step: Step, values: Values, again: Values) -> Values:
    """What there is of the values that a step names; those that the plan has made again are made,
    and stand in ``again`` until a later step reads them no more."""
    found = {n: values[n] for n in (step.node, *step.operands) if n in values}
    for node in step.read & plan.again.keys() - found.keys() if plan.again else ():
        found[node] = again[node] if node in again else _made(plan, node, values)
        again[node] = found[node]
        if plan.last_read[node] is step.node:
            del again[node]
    return found


def _made(plan: Plan, node: fx.Node, values: Values) -> Value:
    above = {n: values[n] if n in values else _made(plan, n, values) for n in tensor_inputs(node)}
    return call_node(node, above, plan.program.dtype)


def _arrived(plan: Plan, node: fx.Node, values: Values, waiting: _Waiting) -> Value:
    """All relevance of a node: a tensor, or of an operation with several outputs a tuple with one
    per floating output; ``None`` if none has arrived."""
    outputs = val(node)
    if isinstance(outputs, Tensor):
        return join(plan, node, values, _tensors(plan, waiting.pop((node, 0), [])))
    parts = {i: _tensors(plan, waiting.pop((node, i), [])) for i in range(len(outputs))}
    parts = together(node, parts)
    sums = {i: sum(p[1:], p[0]) for i, p in parts.items() if p}
    if not sums:
        return None
    like = next(iter(sums.values()))
    dtype = at_least_float32(like.dtype)
    return tuple(
        sums.get(i, torch.zeros(v.shape, dtype=dtype, device=like.device))
        for i, v in enumerate(outputs)
        if v.is_floating_point()
    )


def _tensors(plan: Plan, parts: list[Tensor | ZeroPadded]) -> list[Tensor]:
    """What has arrived as tensors; a rule for fan-out sees the part of each reader."""
    return as_tensors(parts) if plan.rules.fan_out is None else [whole(p) for p in parts]


def join(plan: Plan, node: fx.Node, values: Values, parts: list[Tensor]) -> Tensor | None:
    """A value used k times receives the sum of k relevances, or what the rule set makes of them;
    ``None`` of none."""
    if len(parts) > 1 and plan.rules.fan_out is not None:
        value, parts = together(node, (values.get(node), parts))
        return plan.rules.fan_out(value, tuple(parts))  # type: ignore[arg-type]  # a field's reads none
    parts = together(node, parts)
    return sum(parts[1:], parts[0]) if parts else None


def apply(step: Step, relevance: Relevance, values: Values, extra: Tensor | None) -> Split:
    """One rule on one sample."""
    call = call_of(step, relevance, values, extra)
    try:
        return step.rule.split(relevance, call)
    except RelpropError as error:
        raise type(error)(message(str(error), at=describe(step.node))) from error
    except Exception as error:  # a user's rule may raise anything
        why = first_line(error)
        raise RuleError(
            f"rule {step.rule.name!r} failed on {step.op}: {why}", at=describe(step.node)
        ) from error


def call_of(step: Step, relevance: Relevance, values: Values, extra: Tensor | None) -> Call:
    """What a step's rule is told of one sample."""
    first = relevance[0] if isinstance(relevance, tuple) else relevance
    dtype, output = at_least_float32(first.dtype), values.get(step.node)
    device = first.device
    tensors = tuple([_operand(node, values, dtype, device) for node in step.operands])
    call = step.call(tensors, output, extra).widened(dtype)
    rounded = isinstance(output, Tensor) and output.is_floating_point() and output.dtype != dtype
    if step.rule.divides_by_output and rounded:  # shares of its terms would not sum to it
        return replace(call, output=call.apply(*call.inputs))
    return call


def _operand(node: fx.Node, values: Values, dtype: torch.dtype, device: torch.device) -> Value:
    """A kept value; for one that the rule does not read, a zero of its shape that takes no
    memory."""
    if node in values:
        return values[node]
    meta = val(node)
    if not isinstance(meta, Tensor):
        return meta
    kind = dtype if meta.is_floating_point() else meta.dtype
    plain = torch._C._len_torch_dispatch_stack() == 0  # else something else than a tensor is made
    return (_zeros if plain else _zeros.__wrapped__)(meta.shape, kind, device)


@lru_cache(1024)
def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros((), dtype=dtype, device=device).expand(shape)
