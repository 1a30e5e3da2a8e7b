"""Plan: Program × RuleSet, matched and checked before anything runs. All errors about rules happen
here; the run is straight-line code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, fx, nn

from relprop.numerics import at_least_float32
from relprop.operations import Kind, kind, of
from relprop.plan.again import Again, made_again, settled
from relprop.plan.gates import gate_notes
from relprop.plan.module_calls import ModuleCall, find_module_calls, module_step
from relprop.plan.positions import PositionTerms, position_terms
from relprop.plan.steps import (
    PICK,
    Finding,
    Step,
    argument_names,
    kept,
    lacking,
    no_rule,
    other_role,
    used_twice,
)
from relprop.rules.large_linear import LARGE
from relprop.rules.notes import Note
from relprop.rules.routed import for_experts
from relprop.rules.rule import Rule
from relprop.rules.ruleset import RuleSet
from relprop.tracer.calls import template
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Memo, Program, Site, is_floating


@dataclass(frozen=True)
class Plan:
    """What to do at every node, from the target down. ``steps`` run in order; ``keep`` are the
    values they read, or those of which what is in ``again`` is made again; ``wanted`` where
    relevance is handed out. ``memo``: what others worked out about this plan. ``positions``: where
    position terms enter, if relevance ends at them, too."""

    program: Program
    rules: RuleSet
    starts: tuple[fx.Node, ...]
    steps: tuple[Step, ...]
    wanted: frozenset[fx.Node]
    keep: frozenset[fx.Node]
    joined: frozenset[fx.Node]
    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]
    positions: PositionTerms = field(default_factory=dict)
    again: Again = field(default_factory=dict)
    memo: Memo = field(init=False, default_factory=Memo, repr=False, compare=False)

    @cached_property
    def step_at(self) -> dict[fx.Node, Step]:
        """The step of every node that has one."""
        return {step.node: step for step in self.steps}

    @cached_property
    def is_linear(self) -> bool:
        """Whether relevance started at several places is the sum of what starts at each."""
        return self.rules.fan_out is None and all(step.rule.is_linear for step in self.steps)

    @cached_property
    def order(self) -> tuple[fx.Node, ...]:
        """The nodes that relevance can arrive at, nearest the target first."""
        edges = (edge for step in self.steps for edge in step.edges if edge is not None)
        reached = {*self.starts, *self.step_at, *(node for node, _ in edges)}
        return tuple(n for n in reversed(self.program.graph.nodes) if n in reached)

    def read_at(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """The nodes whose values the walk may look at in passing ``nodes``."""
        here = set(nodes)
        steps = [self.step_at[n] for n in here if n in self.step_at]
        found = {n for step in steps for n in (step.node, *step.operands)} | (here & self.joined)
        return found.union(*(self.again[n] for n in found if n in self.again))

    def keep_outside(self, inside: Collection[fx.Node]) -> frozenset[fx.Node]:
        """What is kept if the steps of some nodes make themselves what they read."""
        steps = [s for s in self.steps if s.node not in inside]
        return settled(kept(steps) | self.joined.difference(inside), self.again)

    @cached_property
    def last_read(self) -> dict[fx.Node, fx.Node]:
        """At which step each value is read for the last time."""
        return {read: step.node for step in self.steps for read in step.read}

    @property
    def generic(self) -> tuple[fx.Node, ...]:
        """The nodes that fell to the generic rule."""
        return tuple(f.node for f in self.findings if f.kind == "generic")


def flowing(program: Program, rules: RuleSet) -> Flow:
    """The nodes along which relevance can travel: floating, depending on a leaf, and not stopped by
    a rule."""
    members: set[fx.Node] = set(program.leaves.values())
    for node in program.graph.nodes:
        if node.op != "call_function" or not any(i in members for i in tensor_inputs(node)):
            continue
        rule = rules.for_op(node.target)
        if (is_floating(node) or isinstance(val(node), (tuple, list)) or val(node) is None) and (
            rule is None or not rule.stops
        ):
            members.add(node)
    return Flow((n for n in program.graph.nodes if n in members), set(program.leaves.values()))


def make_plan(
    program: Program,
    model: nn.Module | None,
    rules: RuleSet,
    starts: tuple[fx.Node, ...],
    wanted: frozenset[fx.Node],
    *,
    on_unknown: str = "generic",
    positions: bool = False,
) -> Plan:
    """Match every node on the way from ``starts`` up to ``wanted`` with a rule.

    ``on_unknown="error"`` refuses an op without a rule anywhere between input and target, naming
    op, module path and source line; so does an op of which PyTorch cannot take a derivative,
    always. ``"collect"`` refuses nothing and lists these among the findings: for a report, not for
    a run. ``positions``: relevance ends at position terms, too, and is handed out where they enter.
    """
    flow = flowing(program, rules)
    findings: list[Finding] = []
    outputs, inner = find_module_calls(program, model, rules, flow, starts, findings)
    treated = inner | set(outputs)
    sites = tuple(
        s for s in program.sites if s.contraction in flow.members and s.contraction not in treated
    )
    if on_unknown == "error":
        _refuse_unknown(flow, starts, treated, rules)
    terms = position_terms(program, flow) if positions else {}
    terms = {n: found for n, found in terms.items() if n not in treated}
    seen = frozenset(w for w in {*wanted, *terms} if w in flow.members and w not in inner)
    notes = gate_notes(flow, sites)
    planning = Planning(program, rules, flow, seen, notes, on_unknown, findings, terms)
    plan = planning.plan(starts, planning.steps(starts, outputs, inner), sites)
    again = made_again(program, plan.keep - plan.joined)
    return replace(plan, keep=settled(plan.keep, again), again=again)


def make_field_plan(
    program: Program,
    rules: RuleSet,
    starts: tuple[fx.Node, ...],
    wanted: frozenset[fx.Node],
    notes: Mapping[fx.Node, Note],
) -> Plan:
    """The same for the roll-up, which passes every operation by itself, by what is noted of it.
    Where fields meet, no value is read."""
    flow = flowing(program, rules)
    seen = frozenset(w for w in wanted if w in flow.members)
    planning = Planning(program, rules, flow, seen, notes)
    sites = tuple(s for s in program.sites if s.contraction in flow.members)
    plan = planning.plan(starts, planning.steps(starts, {}, set()), sites)
    return replace(plan, keep=kept(plan.steps), joined=frozenset())


@dataclass
class Planning:
    """One plan in the making: which nodes are on the way (``needed``), and the step of each. What
    is to be said of it is added to ``findings``."""

    program: Program
    rules: RuleSet
    flow: Flow
    wanted: frozenset[fx.Node]
    notes: Mapping[fx.Node, Note]
    on_unknown: str = "generic"
    findings: list[Finding] = field(default_factory=list)
    positions: PositionTerms = field(default_factory=dict)
    needed: set[fx.Node] = field(init=False)

    def __post_init__(self) -> None:
        reaches, wanted = self.flow.reaches, self.wanted
        self.needed = {n for n in self.flow.nodes if any(reaches(w, n) for w in wanted)}

    def steps(
        self,
        starts: tuple[fx.Node, ...],
        calls: Mapping[fx.Node, ModuleCall],
        inner: set[fx.Node],
    ) -> list[Step]:
        """A step for every node between the starts and what is wanted, the target first; one for
        all of a module call with a rule of its own, at its output."""
        found = []
        for node in reversed(self.flow.nodes):
            if node in inner or node not in self.needed:
                continue
            if not any(self.flow.reaches(node, s) for s in starts):
                continue
            call = calls.get(node)
            if call is not None:
                found.append(module_step(self.program, call, self.flow, self.needed))
            elif any(i in self.needed for i in self.flow.inputs[node]):
                found.append(self._step(node))
        return [step for step in found if any(step.needed)]

    def _step(self, node: fx.Node) -> Step:
        operands, rebuild = template(node, self.program.dtype)
        terms = self.positions.get(node, ())
        flows = [o in self.flow.members or o in terms for o in operands]
        both = zip(operands, flows, strict=True)
        roles = tuple("activation" if flow else other_role(o) for o, flow in both)
        return Step(
            node,
            self._rule(node, lone=sum(flows) == 1),
            operands,
            roles,
            tuple(o in self.needed or o in terms for o in operands),
            rebuild,
            node.target,  # type: ignore[arg-type]
            node.target,
            argument_names(node, operands),
            note=self.notes.get(node),
            output=node.args[1] if kind(node) is Kind.OUTPUT else 0,  # type: ignore[arg-type]
        )

    def _rule(self, node: fx.Node, *, lone: bool) -> Rule:
        """The rule of one operation; ``lone``: only one of its operands is an activation."""
        if kind(node) is Kind.OUTPUT:
            return PICK
        rule = self.rules.for_op(node.target)
        if rule is not None and lone:
            rule = rule.for_activations(1)
        if rule is None or (rule.for_one_activation and not lone):
            return _unknown(node, self.rules, self.on_unknown, self.findings)
        rule = rule.large if rule.large is not None and _is_large(node) else rule
        return for_experts(rule) if of(node).routed else rule

    def plan(self, starts: tuple[fx.Node, ...], steps: list[Step], sites: tuple[Site, ...]) -> Plan:
        """The plan of these steps."""
        joined = used_twice(starts, steps) if self.rules.fan_out is not None else frozenset()
        return Plan(
            self.program,
            self.rules,
            starts,
            tuple(steps),
            self.wanted,
            kept(steps) | joined,
            joined,
            tuple(self.findings),
            sites,
            {n: terms for n, terms in self.positions.items() if n in {s.node for s in steps}},
        )


def _is_large(node: fx.Node) -> bool:
    """Whether a layer has many weights, and its output as many digits as relevance has."""
    output, *others = map(val, (node, *tensor_inputs(node)[1:]))
    exact = isinstance(output, Tensor) and output.dtype == at_least_float32(output.dtype)
    tables = len(others[0]) if of(node).routed else 1
    return exact and any(isinstance(v, Tensor) and v.numel() > LARGE * tables for v in others)


def _refuse_unknown(
    flow: Flow, starts: tuple[fx.Node, ...], treated: set[fx.Node], rules: RuleSet
) -> None:
    """Every op between the inputs and the target must have a rule, also where no relevance is asked
    for."""
    for node in reversed(flow.nodes):
        called = node.op == "call_function" and kind(node) is not Kind.OUTPUT
        if not called or node in treated or not flow.inputs[node]:
            continue
        if rules.for_op(node.target) is None and any(flow.reaches(node, s) for s in starts):
            _unknown(node, rules, "error", [])


def _unknown(node: fx.Node, rules: RuleSet, on_unknown: str, findings: list[Finding]) -> Rule:
    """The generic rule, reported; or the refusal that says how to write a rule."""
    if rules.fixed:
        return rules.generic
    lacks, op = lacking(node), str(node.target)
    refused = on_unknown == "error" or bool(lacks) or isinstance(val(node), (tuple, list))
    why = f", and {lacks}" if lacks else ""
    if refused and on_unknown != "collect":
        raise no_rule(node, rules, why)
    text = f"{op} has no rule{why}" if refused else f"{op} has no rule; Eq. 2 is used"
    findings.append(Finding("unknown" if refused else "generic", node, text))
    return rules.generic
