"""The plan of the roll-up walk: from the target's field to the token tensors, which sources a field
is on its way to, what each operand then carries of it, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, fx

from relprop.errors import RollUpError, message
from relprop.operations import kind
from relprop.plan import Edge, Plan, Step, flowing, make_field_plan
from relprop.rollup.merges import PLACED, Merges
from relprop.rollup.notes import rollup_notes
from relprop.rollup.present import ANY
from relprop.rollup.sources import Sources
from relprop.rollup.streams import Stream, streams
from relprop.rules.fields import Carry, Level, Share, Weight, sharing
from relprop.rules.mixing import mixed, weighed
from relprop.rules.notes import (
    ConvolutionNote,
    FieldNote,
    Folded,
    LinearNote,
    Note,
    ProductNote,
)
from relprop.rules.presets import PAPER
from relprop.rules.rollup import ROLLUP
from relprop.tracer.atoms import Axes
from relprop.tracer.editing import val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, describe

#: A set of sources, which of the reader's parts it was in there, and its weight.
_Some = tuple[int, int, Weight]


@dataclass(frozen=True)
class Begin:
    """How a field begins at a start. ``alike``: for each of its parts the starts that lead to the
    same sources. ``level``: which of its axes are tokens. ``met``: whether other fields arrive
    there."""

    alike: tuple[tuple[fx.Node, ...], ...]
    level: Level
    met: bool


@dataclass(frozen=True)
class RollUpPlan(Plan):
    """A plan of fields, and how these begin at its starts."""

    begins: Mapping[fx.Node, Begin] = field(default_factory=dict)


def rollup_plan(
    program: Program,
    starts: tuple[fx.Node, ...],
    sites: tuple[Site, ...],
    read: tuple[Stream, ...] | None = None,
) -> tuple[RollUpPlan, tuple[Stream, ...]]:
    """The plan of the roll-up walk from ``starts``, and the streams it reads (all that feed the
    sites, unless given)."""
    flow = flowing(program, PAPER)
    found = streams(program, flow, starts, sites) if read is None else read
    plan = _planned(program, flow, starts, sites, [s.node for s in found])
    for step in plan.steps:
        if step.rule.name == ROLLUP.generic.name and any(
            n and val(o).shape != val(step.node).shape
            for o, n in zip(step.operands, step.needed, strict=True)
        ):
            raise RollUpError(
                message(
                    (
                        f"the roll-up cannot pass {step.op}: it is in no list of operations "
                        "and changes the shape"
                    ),
                    at=describe(step.node),
                )
            )
    return plan, found


def rollup_plan_through(program: Program, starts: tuple[fx.Node, ...]) -> RollUpPlan:
    """The roll-up of a graph without attention (a target callable's), from ``starts`` to its
    leaves."""
    leaves = list(program.leaves.values())
    return _planned(program, flowing(program, PAPER), starts, (), leaves)


def _planned(
    program: Program,
    flow: Flow,
    starts: tuple[fx.Node, ...],
    sites: tuple[Site, ...],
    ends: list[fx.Node],
) -> RollUpPlan:
    notes = rollup_notes(program, flow, sites)
    plan = make_field_plan(program, ROLLUP, starts, frozenset(ends), notes)
    plan = _with_values(plan)
    sources = Sources(plan.steps, flow, sites, ends)
    merges = Merges(flow, program.axes, sources)
    steps, begins = _shared(plan, starts, merges)
    made = (plan.starts, steps, plan.wanted, plan.keep, plan.joined, plan.findings, plan.sites)
    return RollUpPlan(program, plan.rules, *made, begins=begins)


def _with_values(plan: Plan) -> Plan:
    """What its own steps read is kept: pooling by a mask reads that mask, and a product that is no
    attention site the operands that say how it mixes."""
    steps, keep = [], set(plan.keep_outside(()))
    for step in plan.steps:
        note = step.note
        if isinstance(note, FieldNote) and note.weighed is not None:
            keep |= {
                o for o, role in zip(step.operands, step.roles, strict=True) if role != "activation"
            }
            step = replace(step, rule=weighed)
        if isinstance(note, LinearNote) and note.mixes:
            keep.add(step.operands[1])
            step = replace(step, rule=mixed)
        if isinstance(note, ProductNote):
            keep |= {o for i, o in enumerate(step.operands) if note.reads(i)}
        steps.append(step)
    return replace(plan, steps=tuple(steps), keep=frozenset(keep))


# -- parts: sets of sources that agree on all weights so far


def _shared(
    plan: Plan, starts: tuple[fx.Node, ...], merges: Merges
) -> tuple[tuple[Step, ...], dict[fx.Node, Begin]]:
    """The steps that a field arrives at, each with what its operands carry; and how it begins."""
    sources, step_at = merges.sources, plan.step_at
    arriving: dict[fx.Node, dict[Edge | None, list[_Some]]] = {}
    begun = {n: sources.of(n) for n in starts}
    for node in starts:
        alike: dict[tuple[fx.Node, ...], int] = {}
        for bit in _bits(begun[node]):
            same = tuple(n for n in starts if begun[n] & bit)
            alike[same] = alike.get(same, 0) | bit
        arriving.setdefault(node, {})[None] = [(m, k, 1.0) for k, m in enumerate(alike.values())]
    parts: dict[fx.Node, list[int]] = {}
    carries: dict[tuple[fx.Node, int], list[_Some]] = {}
    for node in plan.order:
        found = arriving.get(node)
        if found is None or not sources.of(node):
            continue
        ends = node in sources.bits
        parts[node] = [sources.bits[node]] if ends else _split(sources.of(node), found.values())
        if node not in step_at or (ends and node not in sources.sites):
            continue
        for i, some in _handed_on(step_at[node], parts[node], merges).items():
            carries[node, i] = some
            operand = step_at[node].operands[i]
            arriving.setdefault(operand, {})[node, i] = some
    steps = []
    for step in plan.steps:
        if step.node not in parts:
            continue
        shares = tuple(
            _share(merges, parts, carries.get((step.node, i)), (step.node, o), arriving)
            for i, o in enumerate(step.operands)
        )
        needed = tuple(s is not None for s in shares)
        if not any(needed):
            continue
        level = None
        if kind(step.node) in PLACED and sum(needed) > 1:
            level, shares = _placed(step, shares, merges)
        plain = all(s is None or s.is_plain for s in shares)
        rule = step.rule if plain else sharing(step.rule, shares, level)
        steps.append(replace(step, rule=rule, needed=needed, note=_present(step, merges)))
    begins = {
        node: Begin(
            tuple(tuple(n for n in starts if begun[n] & m) for m in parts[node]),
            _level(merges.axes.get(node), tuple(val(node).shape)),
            len(arriving[node]) > 1 or node in sources.sites,
        )
        for node in starts
        if node in parts
    }
    return tuple(steps), begins


def _bits(sets: int) -> Iterable[int]:
    while sets:
        yield sets & -sets
        sets &= sets - 1


def _split(whole: int, arriving: Iterable[list[_Some]]) -> list[int]:
    """A set of sources as the largest sets that arrived together everywhere."""
    parts = [whole]
    for some in arriving:
        masks = [mask for mask, _, _ in some]
        masks.append(whole & ~_all(masks))
        parts = [m for part in parts for mask in masks if (m := part & mask)]
    return parts


def _all(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _handed_on(step: Step, parts: list[int], merges: Merges) -> dict[int, list[_Some]]:
    """Which sets of sources go on to each operand, and what that carries of each."""
    sources, node = merges.sources, step.node
    taken = [i for i, takes in enumerate(sources.taken[node]) if takes]
    if node in sources.sites:
        return {i: [(sources.of(step.operands[i]), 0, 1.0)] for i in taken}
    found: dict[int, dict[tuple[int, Weight], int]] = {}
    for k, part in enumerate(parts):
        for bit in _bits(part):
            for i, weight in merges.weights(step, bit).items():
                if weight != 0:
                    own = found.setdefault(i, {})
                    own[k, weight] = own.get((k, weight), 0) | bit
    return {i: [(m, k, w) for (k, w), m in own.items()] for i, own in found.items()}


def _share(
    merges: Merges,
    parts: Mapping[fx.Node, list[int]],
    some: list[_Some] | None,
    edge: tuple[fx.Node, fx.Node],
    arriving: Mapping[fx.Node, Mapping[Edge | None, list[_Some]]],
) -> Share | None:
    """What an operand carries, in its own parts; ``None``: nothing."""
    node, operand = edge
    if some is None or operand not in parts:
        return None
    of, weights = [], []
    for part in parts[operand]:
        found = next(((k, w) for m, k, w in some if m & part), (0, 0.0))
        of.append(found[0])
        weights.append(found[1])
    level = None
    meets = len(arriving[operand]) > 1 or operand in merges.sources.sites
    if meets and isinstance(val(operand), Tensor):
        level = _level(merges.axes.get(operand), tuple(val(operand).shape))
    return Share(Carry(len(parts[node]), tuple(of), tuple(weights)), level)


def _placed(
    step: Step, shares: tuple[Share | None, ...], merges: Merges
) -> tuple[Level, tuple[Share | None, ...]]:
    """Operands that stand beside each other in one tensor, place by place: where that is at some
    features of a token and at others, each has its part of them."""

    def level_of(node: fx.Node) -> Level:
        return _level(merges.axes.get(node), tuple(val(node).shape))

    def features(node: fx.Node) -> int:
        return math.prod(val(node).shape[i] for i in level_of(node).plain)

    whole = max(features(step.node), 1)
    own = [
        s and replace(s, level=level_of(o), placed=features(o) / whole)
        for s, o in zip(shares, step.operands, strict=True)
    ]
    return level_of(step.node), tuple(own)


def _level(axes: Axes | None, shape: tuple[int, ...]) -> Level:
    if axes is None or len(axes) != len(shape):
        return Level()
    of_features = [
        [a.kind == "feature" for a in axis] for axis in axes
    ]  # what is unknown may be tokens
    plain = tuple(i for i, features in enumerate(of_features) if all(features))
    mixed = tuple(
        Folded(i, tuple(a.size for a in axes[i]), tuple(not feature for feature in features))
        for i, features in enumerate(of_features)
        if any(features) and not all(features)
    )
    return Level(plain, mixed)


def _present(step: Step, merges: Merges) -> Note | None:
    """What is noted of a step, and where windows look at padding that was put there before."""
    note = step.note
    if isinstance(note, ConvolutionNote):
        there = merges.present.at(step.operands[0], ANY)
        return note if there is None else replace(note, there=there)
    return note
