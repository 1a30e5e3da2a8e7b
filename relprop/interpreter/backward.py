"""The backward walk: relevance from the start down to where it is wanted, by the plan's rules. It
knows no op and no transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import RelpropError, RuleError, first_line, message
from relprop.interpreter.ledger import Account
from relprop.numerics import at_least_float32, total
from relprop.operations import Kind, kind
from relprop.plan import Plan, Step
from relprop.rules.call import Split, Total
from relprop.tracer.editing import val
from relprop.tracer.program import describe, place
from relprop.tracer.run import Values, per_sample

Hook = Callable[[Tensor], Tensor | None]
Pending = dict[fx.Node, list[Any]]


@dataclass
class Walk:
    """What a walk hands out: the relevance at every wanted node; each step's account (if asked
    for), and the sums where it ended."""

    found: dict[fx.Node, Tensor] = field(default_factory=dict)
    accounts: list[Account] = field(default_factory=list)
    ended: dict[fx.Node, Tensor] = field(default_factory=dict)


def propagate(
    plan: Plan,
    values: Values,
    starts: Mapping[fx.Node, Tensor],
    *,
    extras: Mapping[fx.Node, Tensor] | None = None,
    account: bool = True,
    hooks: Mapping[fx.Node, Hook] | None = None,
) -> Walk:
    """Relevance ``starts`` (at each start node: batch, *its shape) down through every step.

    ``extras`` are tensors a method attaches to nodes, batch first. ``hooks[node](relevance)`` sees
    the joined relevance of a node, batch first, and may return another. The walk is one ``vmap``
    from hook to hook: a rule sees one sample, an op is called once.
    """
    hooks, walk = hooks or {}, Walk()
    pending: Pending = {node: [start] for node, start in starts.items()}
    for nodes in _sections(plan, hooks):
        hook = hooks.get(nodes[0])
        if hook is not None and nodes[0] in pending:
            joined = _join(plan, nodes[0], pending[nodes[0]], values)
            replaced = hook(joined)
            pending[nodes[0]] = [joined if replaced is None else replaced]
        pending = _walk_section(plan, nodes, values, pending, extras or {}, walk, account)
    return walk


def _sections(plan: Plan, hooks: Mapping[fx.Node, Hook]) -> list[list[fx.Node]]:
    """The nodes in order, cut before each hooked one."""
    sections: list[list[fx.Node]] = [[]]
    for node in _order(plan):
        if node in hooks and sections[-1]:
            sections.append([])
        sections[-1].append(node)
    return sections


def _walk_section(
    plan: Plan,
    nodes: list[fx.Node],
    values: Values,
    pending: Pending,
    extras: Mapping[fx.Node, Tensor],
    walk: Walk,
    account: bool,
) -> Pending:
    """Some nodes of the walk for the whole batch; returns what has arrived at nodes of later
    sections."""
    here = set(nodes)
    steps = {step.node: step for step in plan.steps if step.node in here}
    used = {n for step in steps.values() for n in (step.node, *step.operands)} | (
        here & plan.joined
    )
    batched = [n for n in values if n in used and n.meta["batched"]]
    attached = [n for n in extras if n in steps]
    arrivals = [(node, part) for node, parts in pending.items() for part in parts]
    out: dict[str, list[Any]] = {}

    def section(parts: list[Tensor], given: list[Any], added: list[Tensor]) -> list[list[Any]]:
        env = {
            **{n: v for n, v in values.items() if n in used and not n.meta["batched"]},
            **dict(zip(batched, given, strict=True)),
        }
        arrived: Pending = {}
        for (node, original), part in zip(arrivals, parts, strict=True):
            arrived.setdefault(node, []).append(
                (original[0], part) if isinstance(original, tuple) else part
            )
        mine = Walk()
        books: list[tuple[Step, dict[str, Tensor]]] = []
        extra = dict(zip(attached, added, strict=True))
        for node in nodes:
            if node in arrived:
                relevance = _join(plan, node, arrived.pop(node), env)
                _visit(
                    plan,
                    node,
                    relevance,
                    steps.get(node),
                    env,
                    extra.get(node),
                    mine,
                    arrived,
                    books if account else None,
                )
        left = [(n, p) for n, parts in arrived.items() for p in parts]
        out["found"], out["ended"], out["left"], out["books"] = (
            list(mine.found),
            list(mine.ended),
            left,
            books,
        )
        sums = [list(b.values()) for _, b in books]
        return [
            list(mine.found.values()),
            list(mine.ended.values()),
            [p[1] if isinstance(p, tuple) else p for _, p in left],
            sums,
        ]

    tensors = [part[1] if isinstance(part, tuple) else part for _, part in arrivals]
    if not tensors:
        return {}
    found, ended, left, sums = per_sample(
        section, tensors, [values[n] for n in batched], [extras[n] for n in attached]
    )
    walk.found.update(zip(out["found"], found, strict=True))
    walk.ended.update(zip(out["ended"], ended, strict=True))
    walk.accounts += [
        _account(step, dict(zip(keys, amounts, strict=True)))
        for (step, keys), amounts in zip(out["books"], sums, strict=True)
    ]
    later: Pending = {}
    for (node, part), value in zip(out["left"], left, strict=True):
        later.setdefault(node, []).append((part[0], value) if isinstance(part, tuple) else value)
    return later


def _visit(
    plan: Plan,
    node: fx.Node,
    relevance: Any,
    step: Step | None,
    env: Values,
    extra: Tensor | None,
    walk: Walk,
    arrived: Pending,
    books: list[tuple[Step, dict[str, Tensor]]] | None,
) -> None:
    """One node: hand its relevance out if it is wanted, and on by its rule."""
    if node in plan.wanted:
        walk.found[node] = relevance
    if step is None:
        if books is not None and isinstance(relevance, Tensor):
            walk.ended[node] = total(relevance)
        return
    split, given = _apply(step, relevance, env, extra)
    if books is not None:
        books.append((step, _books(step, given, split)))
    for operand, needed, share in zip(step.operands, step.needed, split.shares, strict=True):
        if needed and isinstance(share, Tensor):
            arrived.setdefault(operand, []).append(
                (step.node.args[1], share) if kind(step.node) is Kind.OUTPUT else share
            )


def _order(plan: Plan) -> list[fx.Node]:
    """The nodes relevance can arrive at, nearest the target first."""
    reached = {
        *plan.starts,
        *(s.node for s in plan.steps),
        *(o for s in plan.steps for o, n in zip(s.operands, s.needed, strict=True) if n),
    }
    return [n for n in reversed(plan.program.graph.nodes) if n in reached]


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


def _apply(step: Step, relevance: Any, env: Values, extra: Tensor | None) -> tuple[Split, Any]:
    """One rule on one sample, and the relevance it was given."""
    first = next(iter(relevance.values())) if isinstance(relevance, dict) else relevance
    dtype, device = at_least_float32(first.dtype), first.device
    tensors = tuple(_operand(node, env, dtype, device) for node in step.operands)
    call = step.call(tensors, env.get(step.node), extra).widened(dtype)
    if _rounded(step, env.get(step.node), dtype):
        call = replace(call, output=call.apply(*call.inputs))
    given = _all_outputs(step, relevance, dtype) if isinstance(relevance, dict) else relevance
    try:
        return step.rule(given, call), given  # type: ignore[arg-type]
    except RelpropError as error:
        raise type(error)(message(str(error), at=describe(step.node))) from error
    except Exception as error:  # a user's rule may raise anything
        said = first_line(error)
        raise RuleError(
            message(f"rule {step.rule.name!r} failed on {step.op}: {said}", at=describe(step.node))
        ) from error


def _rounded(step: Step, output: Any, dtype: torch.dtype) -> bool:
    """Whether a rule divides by an output that the forward pass rounded to half precision: shares
    of its terms would not sum to it."""
    divides = step.rule.family in ("balance", "share") and step.rule.reads >= {"inputs", "output"}
    return (
        divides
        and isinstance(output, Tensor)
        and output.is_floating_point()
        and output.dtype != dtype
    )


def _operand(node: fx.Node, values: Values, dtype: torch.dtype, device: torch.device) -> Any:
    """A kept value; for one that the rule does not read, a zero of its shape that takes no
    memory."""
    if node in values:
        return values[node]
    meta = val(node)
    if not isinstance(meta, Tensor):
        return meta
    return torch.zeros(
        (), dtype=dtype if meta.is_floating_point() else meta.dtype, device=device
    ).expand(meta.shape)


def _all_outputs(step: Step, given: dict[int, Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Relevance for every floating output of a several-output op, zeros where none arrived."""
    like = next(iter(given.values()))
    return tuple(
        given.get(i, torch.zeros(v.shape, dtype=dtype, device=like.device))
        for i, v in enumerate(val(step.node))
        if v.is_floating_point()
    )


def _books(step: Step, relevance: Any, split: Split) -> dict[str, Tensor]:
    """This step's sums, for one sample, under keys that ``_account`` takes apart."""
    arrived = relevance if isinstance(relevance, tuple) else (relevance,)
    books = {
        "arrived": sum((total(r) for r in arrived[1:]), total(arrived[0])),
        "absolute": _magnitude(arrived, split),
    }

    def add(key: str, amount: Tensor) -> None:
        books[key] = books[key] + amount if key in books else amount

    for role, needed, operand, share in zip(
        step.roles, step.needed, step.operands, split.shares, strict=True
    ):
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


def _magnitude(arrived: tuple[Tensor, ...], split: Split) -> Tensor:
    """Σ|R| of what arrived or of what was handed on, whichever is larger: what rounding of this
    node's sums is proportional to."""
    came = sum((total(r.abs()) for r in arrived[1:]), total(arrived[0].abs()))
    handed = [total(share.abs()) for share in split.shares if isinstance(share, Tensor)]
    return torch.maximum(came, sum(handed[1:], handed[0])) if handed else came


def _account(step: Step, books: dict[str, Tensor]) -> Account:
    zero = torch.zeros_like(books["arrived"])
    named = {
        kind: {k.removeprefix(f"{kind}:"): v for k, v in books.items() if k.startswith(f"{kind}:")}
        for kind in ("absorbed", "lost")
    }
    op = (
        step.op
        if isinstance(step.op, str)
        else getattr(step.op, "__qualname__", None)
        if isinstance(step.op, type)
        else str(step.op)
    )
    return Account(
        step.node.name,
        place(step.node).call,
        str(op),
        step.rule.name,
        books["arrived"],
        books["absolute"],
        books.get("to_inputs", zero),
        books.get("unread", zero),
        named["absorbed"],
        named["lost"],
    )
