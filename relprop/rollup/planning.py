"""The plan of the roll-up walk: from the target's field to the token tensors, which sources a field
is on its way to, what each operand then carries of it, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, fx

from relprop.errors import RollUpError
from relprop.operations import Kind, kind
from relprop.plan import Plan, Step, flowing, make_field_plan
from relprop.rollup.heads import lies_beside
from relprop.rollup.merges import PLACED, Merges
from relprop.rollup.notes import rollup_notes
from relprop.rollup.present import ANY
from relprop.rollup.sources import FIRST_ALONE, Sources, all_of, bits_of
from relprop.rollup.streams import Stream, streams
from relprop.rules.mixing import mixed, weighed
from relprop.rules.notes import (
    FieldNote,
    Folded,
    LinearNote,
    ProductNote,
    SiteNote,
)
from relprop.rules.presets import PAPER
from relprop.rules.rollup import ROLLUP
from relprop.rules.shares import Carry, Level, Share, Weight, sharing
from relprop.tracer.atoms import Axes
from relprop.tracer.editing import val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, describe

#: A set of sources, which of the reader's parts it was in there, its weight, and among which
#: operands of a ``cat`` along features that is a mean.
_Some = tuple[int, int, Weight, tuple[int, ...]]
#: An operand of a node, by its position.
_Place = tuple[fx.Node, int]


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
        unlisted = step.rule.name == ROLLUP.generic.name and any(
            n and val(o).shape != val(step.node).shape
            for o, n in zip(step.operands, step.needed, strict=True)
        )
        if unlisted or "prod" in step.node.args:  # products by index
            raise RollUpError(
                f"the roll-up cannot pass {step.op}: it is in no list of operations "
                "and changes the shape",
                at=describe(step.node),
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
    plan = replace(plan, steps=tuple(map(_with_own_rule, plan.steps)))
    sources = Sources(plan.steps, flow, sites, ends)
    parts = _Parts(plan, starts, Merges(flow, program.axes, sources))
    steps = tuple(s for step in plan.steps if (s := parts.step(step)) is not None)
    begins = {n: parts.begin(n, starts) for n in starts if n in parts.at}
    keep = replace(plan, steps=steps).keep_outside(()).union(*map(_read, steps))
    made = (plan.starts, steps, plan.wanted, keep, plan.joined, plan.findings, plan.sites)
    return RollUpPlan(program, plan.rules, *made, begins=begins)


def _with_own_rule(step: Step) -> Step:
    """Pooling by a mask, and layers over tokens, have rules that look at values."""
    if isinstance(step.note, FieldNote) and step.note.weighed is not None:
        return replace(step, rule=weighed)
    mixes = isinstance(step.note, LinearNote) and step.note.mixes
    return replace(step, rule=mixed) if mixes else step


def _read(step: Step) -> set[fx.Node]:
    """The values that its rule looks at beside those that every such operation reads: of pooling by
    a mask the mask, of a layer over tokens its weight, of a product that is no attention site the
    operands that say how it mixes."""
    note, roles = step.note, zip(step.operands, step.roles, strict=True)
    if isinstance(note, FieldNote) and note.weighed is not None:
        return {o for o, role in roles if role != "activation"}
    if isinstance(note, LinearNote) and note.mixes:
        return {step.operands[1]}
    if isinstance(note, ProductNote):
        return {o for i, o in enumerate(step.operands) if note.reads(i)}
    return set()


# -- parts: sets of sources that agree on all weights so far


class _Parts:
    """Which parts a field has at each node, and what goes on of them along each edge."""

    def __init__(self, plan: Plan, starts: tuple[fx.Node, ...], merges: Merges) -> None:
        self.merges, self.sources = merges, merges.sources
        self.at: dict[fx.Node, list[int]] = {}
        self.arriving: dict[fx.Node, dict[_Place | None, list[_Some]]] = {}
        for node in starts:
            alike: dict[tuple[fx.Node, ...], int] = {}
            for bit in bits_of(self.sources.of(node)):
                same = tuple(n for n in starts if self.sources.of(n) & bit)
                alike[same] = alike.get(same, 0) | bit
            begun: list[_Some] = [(mask, k, 1.0, ()) for k, mask in enumerate(alike.values())]
            self.arriving.setdefault(node, {})[None] = begun
        for node in plan.order:
            if node in self.arriving and self.sources.of(node):
                self._pass(node, plan.step_at.get(node))

    def _pass(self, node: fx.Node, step: Step | None) -> None:
        """What arrives at a node in parts, and what goes on."""
        sources, ends = self.sources, node in self.sources.bits
        arrived = self.arriving[node].values()
        self.at[node] = [sources.bits[node]] if ends else _split(sources.of(node), arrived)
        if step is not None and (not ends or node in sources.sites):
            for i, some in _handed_on(step, self.at[node], self.merges).items():
                self.arriving.setdefault(step.operands[i], {})[node, i] = some

    def step(self, step: Step) -> Step | None:
        """A step with what its operands carry; ``None``: no field arrives, or none goes on."""
        if step.node not in self.at:
            return None
        shares = tuple(self._share(step.node, i, o) for i, o in enumerate(step.operands))
        level = None
        if kind(step.node) in PLACED and sum(s is not None for s in shares) > 1:
            level, shares = self._placed(step, shares)
        needed = tuple(s is not None for s in shares)
        plain = all(s is None or s.is_plain for s in shares)
        beside = lies_beside(step.node, self.merges.axes)
        rule, note = step.rule, step.note
        if isinstance(note, SiteNote):
            note = replace(note, share=None if plain else next(s for s in shares if s is not None))
        elif not plain:
            rule = sharing(rule, shares, level, beside and sum(needed) > 1)
        lone = isinstance(note, LinearNote) and all(tokens == 1 for _, tokens in note.folded)
        if isinstance(note, FieldNote) and kind(step.node) in FIRST_ALONE and not lone:
            note = replace(note, there=self.merges.present.at(step.operands[0], ANY))
        return replace(step, rule=rule, needed=needed, note=note) if any(needed) else None

    def begin(self, node: fx.Node, starts: tuple[fx.Node, ...]) -> Begin:
        """How a field begins at a start."""
        of = self.sources.of
        alike = tuple(tuple(n for n in starts if of(n) & mask) for mask in self.at[node])
        return Begin(alike, self.level(node), self._meets(node))

    def _meets(self, node: fx.Node) -> bool:
        """Whether several fields arrive at a node, or one that has heads."""
        return len(self.arriving[node]) > 1 or node in self.sources.sites

    def _share(self, node: fx.Node, i: int, operand: fx.Node) -> Share | None:
        """What an operand carries, in its own parts; ``None``: nothing."""
        some = self.arriving.get(operand, {}).get((node, i))
        if some is None or operand not in self.at:
            return None
        nothing: _Some = (0, 0, 0.0, ())
        found = [next((s for s in some if s[0] & part), nothing) for part in self.at[operand]]
        _, of, weights, groups = zip(*found, strict=True)
        meets = self._meets(operand) and isinstance(val(operand), Tensor)
        carry = Carry(len(self.at[node]), of, weights, groups)
        return Share(carry, self.level(operand) if meets else None)

    def _placed(
        self, step: Step, shares: tuple[Share | None, ...]
    ) -> tuple[Level, tuple[Share | None, ...]]:
        """Operands that stand beside each other in one tensor, place by place: where that is at
        some features of a token and at others, each has its part of them."""

        def features(node: fx.Node) -> int:
            return math.prod(val(node).shape[i] for i in self.level(node).plain)

        whole = max(features(step.node), 1)
        own = [
            s and replace(s, level=self.level(o), placed=features(o) / whole)
            for s, o in zip(shares, step.operands, strict=True)
        ]
        return self.level(step.node), tuple(own)

    def level(self, node: fx.Node) -> Level:
        return level_of(self.merges.axes.get(node, ()))


def level_of(axes: Axes) -> Level:
    """Which axes of a tensor hold features alone, or one thing many times; what else is unknown may
    be tokens."""
    features = [
        [a.kind != "token" and (a.repeated or a.kind == "feature") for a in axis] for axis in axes
    ]
    mixed = tuple(
        Folded(i, tuple(a.size for a in axes[i]), tuple(not f for f in own))
        for i, own in enumerate(features)
        if any(own) and not all(own)
    )
    return Level(tuple(i for i, own in enumerate(features) if all(own)), mixed)


def _split(whole: int, arriving: Iterable[list[_Some]]) -> list[int]:
    """A set of sources as the largest sets that arrived together everywhere."""
    parts = [whole]
    for some in arriving:
        masks = [mask for mask, *_ in some]
        masks.append(whole & ~all_of(masks))
        parts = [m for part in parts for mask in masks if (m := part & mask)]
    return parts


def _handed_on(step: Step, parts: list[int], merges: Merges) -> dict[int, list[_Some]]:
    """Which sets of sources go on to each operand, and what that carries of each."""
    sources, node = merges.sources, step.node
    taken = [i for i, takes in enumerate(sources.taken[node]) if takes]
    if node in sources.sites:
        return {i: [(sources.of(step.operands[i]), 0, 1.0, ())] for i in taken}
    if len(taken) == 1 and kind(node) not in (Kind.LINEAR, Kind.JOIN, Kind.SUM):
        return {taken[0]: [(mask, k, 1.0, ()) for k, mask in enumerate(parts)]}
    beside = lies_beside(node, merges.axes)
    found: dict[int, dict[tuple[int, Weight, tuple[int, ...]], int]] = {}
    for k, part in enumerate(parts):
        for bit in bits_of(part):
            weights = {i: w for i, w in merges.weights(step, bit).items() if w != 0}
            group = tuple(weights) if beside and len(weights) > 1 else ()
            for i, weight in weights.items():
                own = found.setdefault(i, {})
                own[k, weight, group] = own.get((k, weight, group), 0) | bit
    return {i: [(mask, *key) for key, mask in own.items()] for i, own in found.items()}
