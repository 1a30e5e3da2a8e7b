"""The backward walk: relevance from the start down to where it is wanted, by the plan's rules. It knows no op and no transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import RuleError, message
from relprop.interpreter.ledger import Account
from relprop.numerics import at_least_float32, total
from relprop.plan import Plan, Step
from relprop.rules.call import Split, Total
from relprop.tracer.editing import name_of, val
from relprop.tracer.program import describe, place
from relprop.tracer.run import Values

Hook = Callable[[Tensor, fx.Node], Tensor | None]


@dataclass
class Walk:
    """What a walk hands out: the relevance at every wanted node; each step's account (if asked for), and the sums where it ended."""

    found: dict[fx.Node, Tensor] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    ended: dict[fx.Node, Tensor] = field(default_factory=dict)


def propagate(
    plan: Plan, values: Values, starts: Mapping[fx.Node, Tensor], *, extras: Mapping[fx.Node, Tensor] | None = None, account: bool = True, hook: Hook | None = None
) -> Walk:
    """Relevance ``starts`` (at each start node: batch, *its shape) down through every step.

    ``extras`` are tensors a method attaches to nodes, batch first. ``hook(relevance, node)`` sees the joined relevance of every
    node, batch first, and may return another.
    """
    walk = Walk()
    arrived: dict[fx.Node, list[Any]] = {node: [start] for node, start in starts.items()}
    steps = {step.node: step for step in plan.steps}
    for node in _order(plan):
        parts = arrived.pop(node, None)
        if parts is None:
            continue
        relevance = _join(plan, node, parts, values)
        if hook is not None and isinstance(relevance, Tensor) and (replaced := hook(relevance, node)) is not None:
            relevance = replaced
        if node in plan.wanted:
            walk.found[node] = relevance
        step = steps.get(node)
        if step is None:
            if account and isinstance(relevance, Tensor):
                walk.ended[node] = torch.func.vmap(total)(relevance)
            continue
        shares = _apply(step, relevance, values, (extras or {}).get(node), walk if account else None)
        for operand, needed, share in zip(step.operands, step.needed, shares, strict=True):
            if needed and share is not None:
                arrived.setdefault(operand, []).append(_indexed(step, share))
    return walk


def _order(plan: Plan) -> list[fx.Node]:
    """The nodes relevance can arrive at, nearest the target first."""
    reached = {*plan.starts, *(s.node for s in plan.steps), *(o for s in plan.steps for o, n in zip(s.operands, s.needed, strict=True) if n)}
    return [n for n in reversed(plan.program.graph.nodes) if n in reached]


def _indexed(step: Step, share: Tensor) -> Any:
    """The share of one of several outputs keeps its number."""
    return (step.node.args[1], share) if name_of(step.node) == "getitem" else share


def _join(plan: Plan, node: fx.Node, parts: list[Any], values: Values) -> Any:
    """A value used k times receives the sum of k relevances (or what the rule set says)."""
    if isinstance(parts[0], tuple):
        outputs: dict[int, Tensor] = {}
        for index, share in parts:
            outputs[index] = outputs[index] + share if index in outputs else share
        return outputs
    if len(parts) > 1 and plan.rules.fan_out is not None:
        return plan.rules.fan_out(values[node], tuple(parts))
    return sum(parts[1:], parts[0])


def _apply(step: Step, relevance: Any, values: Values, extra: Tensor | None, walk: Walk | None) -> list[Tensor | None]:
    """One rule, for the whole batch: the rule itself sees one sample."""
    first = next(iter(relevance.values())) if isinstance(relevance, dict) else relevance
    dtype, device = at_least_float32(first.dtype), first.device
    tensors = [_operand(step, node, values, dtype, device) for node in step.operands]
    dims = [0 if node in values and node.meta["batched"] else None for node in step.operands]
    output = values.get(step.node, torch.zeros((), device=device))
    present: list[int] = []
    keys: list[str] = []

    def one(given: Any, produced: Any, added: Any, *given_tensors: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        call = step.call(given_tensors, produced, added).widened(dtype)
        if isinstance(given, dict):
            given = _all_outputs(step, given, call, dtype)
        split = step.rule(given, call)
        kept = [(i, s) for i, s in enumerate(split.shares) if isinstance(s, Tensor) and step.needed[i]]
        present[:] = [i for i, _ in kept]
        books = _books(step, given, split) if walk is not None else {}
        keys[:] = list(books)
        return tuple(s for _, s in kept), tuple(books.values())

    in_dims = (0, 0 if step.node in values and step.node.meta["batched"] else None, None if extra is None else 0, *dims)
    try:
        shares, books = torch.func.vmap(one, in_dims=in_dims)(relevance, output, extra, *tensors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RuleError(message(f"rule {step.rule.name!r} failed on {step.op}: {str(error).splitlines()[0]}", at=describe(step.node))) from error
    if walk is not None:
        walk.accounts.append(_account(step, dict(zip(keys, books, strict=True))))
    placed: list[Tensor | None] = [None] * len(step.operands)
    for i, share in zip(present, shares, strict=True):
        placed[i] = share
    return placed


def _operand(step: Step, node: fx.Node, values: Values, dtype: torch.dtype, device: torch.device) -> Any:
    """A kept value; for one that the rule does not read, a zero of its shape that takes no memory."""
    if node in values:
        return values[node]
    meta = val(node)
    if not isinstance(meta, Tensor):
        return meta
    return torch.zeros((), dtype=dtype if meta.is_floating_point() else meta.dtype, device=device).expand(meta.shape)


def _all_outputs(step: Step, given: dict[int, Tensor], call: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Relevance for every floating output of a several-output op, zeros where none arrived."""
    like = next(iter(given.values()))
    return tuple(given.get(i, torch.zeros(v.shape, dtype=dtype, device=like.device)) for i, v in enumerate(val(step.node)) if v.is_floating_point())


def _books(step: Step, relevance: Any, split: Split) -> dict[str, Tensor]:
    """This step's sums, for one sample, under keys that ``_account`` takes apart."""
    arrived = relevance if isinstance(relevance, tuple) else (relevance,)
    books = {"arrived": sum((total(r) for r in arrived[1:]), total(arrived[0])), "absolute": sum((total(r.abs()) for r in arrived[1:]), total(arrived[0].abs()))}

    def add(key: str, amount: Tensor) -> None:
        books[key] = books[key] + amount if key in books else amount

    for role, needed, operand, share in zip(step.roles, step.needed, step.operands, split.shares, strict=True):
        if share is None:
            continue
        amount = share.value if isinstance(share, Total) else total(share)
        if role != "activation":
            add(f"absorbed:{operand.meta['books'] or 'a constant'}", amount)
        else:
            add("to_inputs" if needed else "unread", amount)
    for cause, amount in split.lost.items():
        add(f"lost:{cause}", amount)
    return books


def _account(step: Step, books: dict[str, Tensor]) -> Account:
    zero = torch.zeros_like(books["arrived"])
    named = {kind: {k.removeprefix(f"{kind}:"): v for k, v in books.items() if k.startswith(f"{kind}:")} for kind in ("absorbed", "lost")}
    op = step.op if isinstance(step.op, str) else getattr(step.op, "__qualname__", None) if isinstance(step.op, type) else str(step.op)
    return Account(
        step.node.name, place(step.node).call, str(op), step.rule.name, books["arrived"], books["absolute"],
        books.get("to_inputs", zero), books.get("unread", zero), named["absorbed"], named["lost"],
    )
