"""Where the roll-up starts and ends, what each operand of a merge carries, and which axes are tokens: read off the program's structure.

The rules themselves are in ``rules/rollup.py``; this is what only the whole graph can tell them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import RollUpError, message
from relprop.plan import Plan, Step, flowing, make_plan
from relprop.rules import operations as ops
from relprop.rules.presets import PAPER
from relprop.rules.rollup import ROLLUP, mixed, number, weighed
from relprop.tracer.axes import is_token, token_count
from relprop.tracer.composites import find_composites
from relprop.tracer.editing import argument, name_of, tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, describe, packet

MERGES = frozenset((*ops.ADD, *ops.SUBTRACT, *ops.PRODUCT, *ops.CAT, *ops.packets("stack maximum minimum where")))
ONE_TO_ONE = frozenset((*ops.CARRY, *ops.ADD, *ops.SUBTRACT, *ops.MOVES, *ops.FILL))


@dataclass(frozen=True)
class Stream:
    """One input's tokens: ``node`` is the tensor whose positions are scored, ``token_axes`` which of its axes they are."""

    name: str
    leaf: fx.Node
    node: fx.Node
    token_axes: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths of the token axes."""
        return tuple(val(self.node).shape[i] for i in self.token_axes)

    def read(self, field: Tensor) -> Tensor:
        """The numbers of a field at the token tensor, (batch, channels, tokens)."""
        features = tuple(i for i in range(val(self.node).dim()) if i not in self.token_axes)
        numbers, _ = torch.func.vmap(lambda f: number(f, features))(field)
        return numbers.flatten(2)


def streams(program: Program, flow: Flow, starts: tuple[fx.Node, ...], sites: tuple[Site, ...]) -> tuple[Stream, ...]:
    """The token tensor of every leaf from which attention sites and the target descend.

    It is the last node through which every path from the leaf to the target and into any attention site passes.
    """
    found = []
    for name, leaf in program.leaves.items():
        ends = [s for s in starts if flow.reaches(leaf, s)]
        read = [s for s in sites if flow.reaches(leaf, s.contraction) and any(flow.reaches(s.contraction, e) for e in ends)]
        below = [n for s in read for n in (s.attention, s.values) if n in flow.members and flow.reaches(leaf, n)]
        if not below:
            continue
        part = Flow((n for n in flow.nodes if flow.reaches(leaf, n)), {leaf})
        node = part.common_dominator([*ends, *below])
        assert node is not None
        axes = program.axes[node]
        tokens = tuple(i for i, axis in enumerate(axes) if is_token(axis))
        if not tokens:
            raise RollUpError(message(
                f"the roll-up of input {name!r} does not arrive: the tensor all attention descends from has no axis known to hold tokens", at=describe(node),
                then=["relprop.instrument(model, inputs, target=...).relevance(...) gives relevance at any layer without a roll-up"],
            ))
        found.append(Stream(name, leaf, node, tokens))
    return tuple(found)


def rollup_plan(program: Program, model: nn.Module | None, starts: tuple[fx.Node, ...], sites: tuple[Site, ...]) -> tuple[Plan, tuple[Stream, ...]]:
    """The plan of the roll-up walk from ``starts``, and the streams it reads."""
    flow = flowing(program, PAPER)
    found = streams(program, flow, starts, sites)
    notes = rollup_notes(program, flow, sites)
    plan = make_plan(program, model, ROLLUP, starts, frozenset(s.node for s in found), notes=notes, regions=False)
    plan = _with_constants(replace(plan, steps=_reached(plan, starts, sites)))
    for step in plan.steps:
        if packet(step.node) in ops.MATMUL and not any(s.contraction is step.node for s in sites) and step.rule is not mixed:
            raise RollUpError(message("the roll-up cannot pass a product of activations that is no attention site", at=describe(step.node)))
        if step.rule is ROLLUP.generic and any(n and val(o).shape != val(step.node).shape for o, n in zip(step.operands, step.needed, strict=True)):
            raise RollUpError(message(
                f"the roll-up cannot pass {step.op}: it is in no list of operations and changes the shape", at=describe(step.node),
            ))
    return plan, found


def _with_constants(plan: Plan) -> Plan:
    """Pooling by a mask and mixing by a constant matrix read those constants, so they are kept."""
    steps, keep = [], set(plan.keep)
    for step in plan.steps:
        mixes = packet(step.node) in ops.MATMUL and step.roles in (("constant", "activation"), ("parameter", "activation"))
        rule = weighed if "weighed" in step.notes else mixed if mixes else None
        if rule is not None:
            keep |= {o for o, role in zip(step.operands, step.roles, strict=True) if role != "activation"}
        steps.append(step if rule is None else replace(step, rule=rule))
    return replace(plan, steps=tuple(steps), keep=frozenset(keep))


def rollup_plan_through(program: Program, starts: tuple[fx.Node, ...]) -> Plan:
    """The roll-up of a graph without attention (a target callable's), from ``starts`` to its leaves."""
    flow = flowing(program, PAPER)
    plan = make_plan(program, None, ROLLUP, starts, frozenset(program.leaves.values()), notes=rollup_notes(program, flow, ()), regions=False)
    return _with_constants(replace(plan, steps=_reached(plan, starts, ())))


def _reached(plan: Plan, starts: tuple[fx.Node, ...], sites: tuple[Site, ...]) -> tuple[Step, ...]:
    """The steps a field arrives at: queries and keys receive nothing, nor does an operand of weight 0."""
    values = {s.contraction: s.values for s in sites}
    reached, kept = set(starts), []
    for step in plan.steps:
        if step.node not in reached:
            continue
        weights = step.notes.get("carries", (1.0,) * len(step.operands))
        takes = tuple(
            n and bool(w) and values.get(step.node, o) is o for o, n, w in zip(step.operands, step.needed, weights, strict=True)
        )
        reached |= {o for o, t in zip(step.operands, takes, strict=True) if t}
        kept.append(replace(step, needed=takes))
    return tuple(kept)


def rollup_notes(program: Program, flow: Flow, sites: tuple[Site, ...]) -> dict[fx.Node, dict[str, Any]]:
    """What each node's roll-up rule needs to know."""
    composites = find_composites(flow)
    inside = {n for c in composites for n in c.inner}
    merges = [n for n in flow.nodes if _is_merge(n, flow)]
    notes: dict[fx.Node, dict[str, Any]] = {}
    for node in flow.nodes:
        axes = program.axes.get(node, ())
        note: dict[str, Any] = {"token_axes": tuple(is_token(axis) for axis in axes)}
        source = next((i for i in flow.inputs[node]), None)
        source_axes = program.axes.get(source, ()) if source is not None else ()
        if name_of(node) == "linear" and source_axes:
            note["folded"] = token_count(source_axes[-1])
        if name_of(node) in ("mean", "sum") and source_axes:
            note["pooled"] = _pooled_tokens(node, source_axes)
        if name_of(node) in ("conv2d", "avg_pool2d"):
            note.update(_window(node))
        notes[node] = note
    for node in flow.nodes:
        if notes[node].get("pooled", 1) > 1 and (masked := _masked(node, flow)) is not None:
            notes[masked[0]]["weighed"] = masked[1]
    for site in sites:
        if site.contraction in notes:
            notes[site.contraction]["transposed"] = site.transposed
    for composite in composites:
        for node in composite.inner:
            notes[node]["carries"] = _within(node, composite.input, composite.inner, flow)
    outer = Merges(flow, sites, inside)
    for node in merges:
        if node not in inside:
            notes[node]["carries"] = outer.carries(node)
    return notes


def _is_merge(node: fx.Node, flow: Flow) -> bool:
    if packet(node) not in MERGES or len(flow.inputs[node]) < 2:
        return False
    return True


def _within(node: fx.Node, source: fx.Node, inner: frozenset[fx.Node], flow: Flow) -> tuple[float, ...]:
    """Inside a norm written out, the field goes straight to its input: the way over statistics carries nothing."""
    operands = tensor_inputs(node)
    chain = [o for o in operands if o in flow.members]
    first = next((o for o in chain if o is source), next((o for o in chain if _pointwise_to(o, source, flow)), chain[0] if chain else None))
    taken = False
    weights = []
    for o in operands:
        weights.append(1.0 if o is first and not taken else 0.0)
        taken = taken or o is first
    return tuple(weights)


def _pointwise_to(node: fx.Node, source: fx.Node, flow: Flow) -> bool:
    return val(node).shape == val(source).shape and flow.reaches(source, node)


class Merges:
    """What the operands of merges carry: the identity once, and whatever attention has mixed in.

    Let x be the nearest common dominator of the operands. An operand is *transparent* if x reaches it by adds, moves and
    one-to-one ops alone, and *has a site* if an attention site lies on its way from x.
    """

    def __init__(self, flow: Flow, sites: tuple[Site, ...], inside: set[fx.Node]) -> None:
        self.flow, self.inside = flow, inside
        self.contractions = [s.contraction for s in sites if s.contraction in flow.members]
        self.merges = [n for n in flow.nodes if _is_merge(n, flow) and n not in inside]
        self.known = {n: self._look(n) for n in self.merges}

    def _look(self, node: fx.Node) -> tuple[fx.Node | None, dict[fx.Node, bool], dict[fx.Node, bool]]:
        operands = self.flow.inputs[node]
        x = self.flow.common_dominator(operands)
        if x is None:
            return None, {}, {}
        transparent = {o: self.flow.reached_by(x, o, self._passes) for o in operands}
        has_site = {o: any(self.flow.reaches(c, o) and self.flow.reaches(x, c) and c is not x for c in self.contractions) for o in operands}
        return x, transparent, has_site

    def _passes(self, node: fx.Node) -> bool:
        lone = packet(node) in ops.PRODUCT and len(self.flow.inputs[node]) == 1
        return packet(node) in ONE_TO_ONE or lone or node in self.inside

    def carries(self, node: fx.Node) -> tuple[float, ...]:
        """The weight of each tensor operand of ``node``, in order of appearance."""
        operands = tensor_inputs(node)
        if packet(node) in ops.CAT and not self._joins_features(node):
            return (1.0,) * len(operands)
        x, transparent, has_site = self.known[node]
        if x is None:
            return (1.0,) * len(operands)
        if packet(node) in ops.PRODUCT:
            with_site = [o for o in transparent if has_site[o]]
            share = {with_site[0]: 1.0} if len(with_site) == 1 else {o: 1 / len(transparent) for o in transparent}
            return tuple(share.get(o, 0.0) for o in operands)
        whole = [o for o in transparent if transparent[o] or has_site[o]]
        others = [o for o in transparent if o not in whole]
        nothing = any(transparent.values()) or (any(has_site.values()) and self._identity_carried_outside(node))
        share = {**dict.fromkeys(whole, 1.0), **dict.fromkeys(others, 0.0 if nothing else 1 / max(len(others), 1))}
        return tuple(share.get(o, 0.0) for o in operands)

    def identity_of(self, contraction: fx.Node) -> fx.Node | None:
        """The first merge at which the branch of a site meets an operand that is transparent: its skip connection."""
        for merge in self.merges:
            x, transparent, _ = self.known[merge]
            if x is None or not self.flow.reaches(contraction, merge):
                continue
            branch = [o for o in transparent if self.flow.reaches(contraction, o)]
            if any(transparent[o] for o in transparent if o not in branch) and not any(transparent[o] for o in branch):
                return merge
        return None

    def last_stream(self, starts: tuple[fx.Node, ...], contractions: tuple[fx.Node, ...], axes: Mapping[fx.Node, Any], sizes: tuple[int, ...]) -> fx.Node | None:
        """The first node after all the sites that every path to ``starts`` passes through and that still has the stream's token positions."""
        for node in self.flow.nodes:
            found = tuple(val(node).shape[i] for i, axis in enumerate(axes.get(node, ())) if is_token(axis))
            behind = found == sizes and all(self.flow.reaches(c, node) for c in contractions)
            if behind and all(self.flow.common_dominator([node, s]) is node for s in starts):
                return node
        return None

    def _joins_features(self, node: fx.Node) -> bool:
        dim = argument(node, 1, "dim", 0)
        return dim in (-1, val(node).dim() - 1) and val(node).dim() > 1

    def _identity_carried_outside(self, node: fx.Node) -> bool:
        """Whether an outer merge has this one on the way to an operand, and another operand that is transparent."""
        for outer in self.merges:
            x, transparent, _ = self.known[outer]
            if outer is node or x is None or not self.flow.reaches(node, outer) or not self.flow.reaches(x, node):
                continue
            holding = [o for o in transparent if self.flow.reaches(node, o)]
            if holding and not any(transparent[o] for o in holding) and any(transparent[o] for o in transparent if o not in holding):
                return True
        return False


def _pooled_tokens(node: fx.Node, axes: Any) -> int:
    dims = argument(node, 1, "dim")
    reduced = range(len(axes)) if dims is None or dims == [] else [d % len(axes) for d in ([dims] if isinstance(dims, int) else dims)]
    return math.prod(token_count(axes[i]) for i in reduced)


def _masked(pool: fx.Node, flow: Flow) -> tuple[fx.Node, tuple[int, ...]] | None:
    """The product with a constant (or the fill by one) that ``pool`` sums or averages, and over which axes."""
    node = flow.inputs[pool][0]
    while name_of(node) in ("to", "type_as") and len(flow.inputs[node]) == 1:
        node = flow.inputs[node][0]
    alone = len(flow.inputs[node]) == 1 and len(tensor_inputs(node)) > 1 and sum(u in flow.members for u in node.users) == 1
    if not alone or packet(node) not in (*ops.PRODUCT, *ops.packets("masked_fill where")):
        return None
    rank, dims = val(node).dim(), argument(pool, 1, "dim")
    return node, tuple(range(rank)) if dims is None or dims == [] else tuple(d % rank for d in ([dims] if isinstance(dims, int) else dims))


def _window(node: fx.Node) -> Mapping[str, Any]:
    """A convolution's or pool's window and its (stride, padding, dilation)."""
    def pair(x: Any) -> list[int]:
        return [x, x] if isinstance(x, int) else list(x) * (2 // len(x))

    if name_of(node) == "conv2d":
        window = list(val(node.args[1]).shape[2:])
        options = tuple(pair(argument(node, p, n, d)) for p, n, d in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1)))
        return {"window": (window, options), "mixes_channels": argument(node, 6, "groups", 1) == 1}
    window = pair(argument(node, 1, "kernel_size"))
    stride = argument(node, 2, "stride") or window
    return {"window": (window, (pair(stride), pair(argument(node, 3, "padding", 0)), [1, 1])), "mixes_channels": False}
