"""Plan: Program × RuleSet, matched and checked before anything runs. All errors about rules happen here; the run is straight-line code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import RuleError, UnknownOperation, message
from relprop.rules.call import Call
from relprop.rules.families import carry
from relprop.rules.rule import Rule
from relprop.rules.ruleset import RuleSet
from relprop.tracer.composites import Composite, find_composites
from relprop.tracer.editing import name_of, tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, describe, is_floating, place
from relprop.tracer.run import template


@dataclass(frozen=True)
class Step:
    """One operation as the walk sees it: a node, or a region (a whole module call, or a norm written out) whose output ``node`` is."""

    node: fx.Node
    rule: Rule
    operands: tuple[fx.Node, ...]
    roles: tuple[str, ...]
    needed: tuple[bool, ...]
    rebuild: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
    function: Callable[..., Any]
    op: Any
    arguments: tuple[str, ...]
    inner: frozenset[fx.Node] = frozenset()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def call(self, tensors: tuple[Tensor, ...], output: Tensor, extra: Tensor | None) -> Call:
        """What the rule is told, for one sample's tensors."""
        from relprop.rules.call import Operand

        operands = tuple(
            Operand(t, r, n, node.meta["books"], a)  # type: ignore[arg-type]
            for t, r, n, node, a in zip(tensors, self.roles, self.needed, self.operands, self.arguments, strict=True)
        )
        return Call(self.op, operands, output, self.rebuild, self.function, place(self.node).call, extra, self.notes)


@dataclass(frozen=True)
class Finding:
    """Something ``check`` reports about a node: ``kind`` is generic, unknown, hidden site, or detached."""

    kind: str
    node: fx.Node
    text: str


@dataclass(frozen=True)
class Plan:
    """What to do at every node, from the target down. ``steps`` run in order; ``keep`` are the values they read; ``wanted`` where relevance is handed out."""

    program: Program
    rules: RuleSet
    starts: tuple[fx.Node, ...]
    steps: tuple[Step, ...]
    wanted: frozenset[fx.Node]
    keep: frozenset[fx.Node]
    joined: frozenset[fx.Node]
    findings: tuple[Finding, ...]
    sites: tuple[Site, ...]

    @property
    def generic(self) -> tuple[fx.Node, ...]:
        """The nodes that fell to the generic rule."""
        return tuple(f.node for f in self.findings if f.kind == "generic")


def flowing(program: Program, rules: RuleSet) -> Flow:
    """The nodes along which relevance can travel: floating, depending on a leaf, and not stopped by a rule."""
    members: set[fx.Node] = set(program.leaves.values())
    for node in program.graph.nodes:
        if node.op != "call_function" or not any(i in members for i in tensor_inputs(node)):
            continue
        rule = rules.for_op(node.target)
        if (is_floating(node) or isinstance(val(node), (tuple, list)) or val(node) is None) and (rule is None or rule.family != "stop"):
            members.add(node)
    return Flow((n for n in program.graph.nodes if n in members), set(program.leaves.values()))


def make_plan(
    program: Program, model: nn.Module | None, rules: RuleSet, starts: tuple[fx.Node, ...], wanted: frozenset[fx.Node], *, on_unknown: str = "generic",
    notes: Mapping[fx.Node, Mapping[str, Any]] | None = None, regions: bool = True,
) -> Plan:
    """Match every node on the way from ``starts`` up to ``wanted`` with a rule.

    ``on_unknown="error"`` refuses an op without a rule anywhere between input and target, naming op, module path and source line; so does an op of which PyTorch
    cannot take a derivative, always. ``"collect"`` refuses nothing and lists these among the findings: for a report, not for a run.
    """
    flow = flowing(program, rules)
    findings: list[Finding] = []
    outputs, inner = _regions(program, model, rules, flow, findings) if regions else ({}, set())
    sites = tuple(s for s in program.sites if s.contraction in flow.members and s.contraction not in inner and s.contraction not in outputs)
    wanted = frozenset(w for w in wanted if w in flow.members and w not in inner)
    needed = {n for n in flow.nodes if any(flow.reaches(w, n) for w in wanted)}
    if on_unknown == "error":
        _refuse_unknown(flow, starts, inner | set(outputs), rules)
    steps: list[Step] = []
    for node in reversed(flow.nodes):
        if not any(flow.reaches(node, s) for s in starts) or node in inner or node not in needed:
            continue
        if not any(i in needed for i in flow.inputs[node]) and node not in outputs:
            continue
        region = outputs.get(node)
        step = _region_step(program, region, flow, needed) if region else _op_step(program, node, rules, flow, needed, on_unknown, findings, notes or {})
        if any(step.needed):
            steps.append(step)
    uses: dict[fx.Node, int] = {}
    for step in steps:
        for operand, is_needed in zip(step.operands, step.needed, strict=True):
            uses[operand] = uses.get(operand, 0) + is_needed
    joined = frozenset(n for n, k in uses.items() if k > 1) if rules.fan_out is not None else frozenset()
    return Plan(program, rules, starts, tuple(steps), wanted, _kept(steps) | joined, joined, tuple(findings), sites)


def _refuse_unknown(flow: Flow, starts: tuple[fx.Node, ...], treated: set[fx.Node], rules: RuleSet) -> None:
    """Every op between the inputs and the target must have a rule, also where no relevance is asked for."""
    for node in reversed(flow.nodes):
        called = node.op == "call_function" and name_of(node) != "getitem" and node not in treated and flow.inputs[node]
        if called and rules.for_op(node.target) is None and any(flow.reaches(node, s) for s in starts):
            _unknown(node, rules, "error", [])


def _kept(steps: list[Step]) -> frozenset[fx.Node]:
    """What the rules read, and always what is not differentiable (indices, masks): a move needs those."""
    keep: set[fx.Node] = set()
    for step in steps:
        if "output" in step.rule.reads:
            keep.add(step.node)
        keep |= {o for o in step.operands if "inputs" in step.rule.reads or not is_floating(o)}
    return frozenset(keep)


def _op_step(
    program: Program, node: fx.Node, rules: RuleSet, flow: Flow, needed: set[fx.Node], on_unknown: str, findings: list[Finding],
    notes: Mapping[fx.Node, Mapping[str, Any]],
) -> Step:
    operands, rebuild = template(node, program.dtype)
    roles = tuple("activation" if o in flow.members else "parameter" if o.meta["role"] == "parameter" else "constant" for o in operands)
    rule = rules.for_op(node.target)
    if name_of(node) == "getitem":
        rule = _getitem
    lone = sum(r == "activation" for r in roles) == 1
    if rule is not None and rule.lone is not None and lone:
        rule = rule.lone
    if rule is None or (rule.family in ("carry", "share") and not lone):
        rule = _unknown(node, rules, on_unknown, findings)
    wants = tuple(o in needed and r == "activation" for o, r in zip(operands, roles, strict=True))
    return Step(node, rule, operands, roles, wants, rebuild, node.target, node.target, _argument_names(node, operands), notes=notes.get(node, {}))  # type: ignore[arg-type]


def _pick(relevance: Tensor, call: Call) -> tuple[Tensor]:
    return (relevance,)


_getitem = Rule(_pick, "one of several outputs", "move", frozenset())


def _unknown(node: fx.Node, rules: RuleSet, on_unknown: str, findings: list[Finding]) -> Rule:
    """The generic rule, reported; or the refusal that says how to write a rule."""
    if rules.fixed:
        return rules.generic
    derivative = _has_derivative(node)
    op = str(node.target)
    refused = on_unknown == "error" or not derivative or isinstance(val(node), (tuple, list))
    if refused and on_unknown == "collect":
        findings.append(Finding("unknown", node, f"{op} has no rule" + ("" if derivative else " and no derivative")))
        return rules.generic
    if refused:
        why = "" if derivative else ", and PyTorch has no derivative of it"
        raise UnknownOperation(message(
            f"no relevance rule for {op}{why}", at=f"{describe(node)}, feeds {len(node.users)} operations",
            then=[
                f"rules = relprop.rules.{rules.name.split('+')[0].upper()}.with_rule(torch.ops.{op}, relprop.rules.carry)   # one element in, one element out",
                "@relprop.register_rule(op)  def rule(relevance, call): return share_of_each_input   # docs/write-a-rule.md",
                "relprop.check(model, inputs)   # to see every operation of this model",
            ],
        ))
    findings.append(Finding("generic", node, f"{op} has no rule; Eq. 2 is used"))
    return rules.generic


def _has_derivative(node: fx.Node) -> bool:
    """Whether autograd accepts the op: its own registration says so (ATen ops do; a custom op may have none)."""
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace == "aten":
        return True
    definition = torch._library.custom_ops.OPDEFS.get(operator._schema.name) if hasattr(torch._library, "custom_ops") else None
    if definition is not None:
        return definition._backward_fn is not None
    name = operator.name()
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd") or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _argument_names(node: fx.Node, operands: tuple[fx.Node, ...]) -> tuple[str, ...]:
    """The operator's own names of the arguments its tensors stand in."""
    schema = getattr(node.target, "_schema", None)
    names = [a.name for a in schema.arguments] if schema is not None else []
    found: list[str] = []
    for i, value in enumerate((*node.args, *node.kwargs.values())):
        label = names[i] if i < len(node.args) and i < len(names) else list(node.kwargs)[i - len(node.args)] if i >= len(node.args) else ""
        fx.node.map_arg(value, lambda n, label=label: found.append(label))
    return tuple(found)


@dataclass(frozen=True)
class _Region:
    """Nodes that are one operation to the walk."""

    output: fx.Node
    inner: frozenset[fx.Node]
    rule: Rule
    op: Any


def _regions(
    program: Program, model: nn.Module | None, rules: RuleSet, flow: Flow, findings: list[Finding]
) -> tuple[dict[fx.Node, _Region], set[fx.Node]]:
    """Module calls with a rule of their own (outermost first), then norms and activations written out in Python."""
    outputs: dict[fx.Node, _Region] = {}
    inner: set[fx.Node] = set()
    for entry in rules.module_entries() if model is not None else ():
        assert model is not None
        for path, nodes in _module_calls(program, flow).items():
            module = model.get_submodule(path.split("@")[0]) if _is_module(model, path.split("@")[0]) else None
            names = {path, path.split("@")[0]} | {a + path[len(path.split("@")[0]):] for a in program.aliases.get(path.split("@")[0], ())}
            names |= set(program.aliases.get(path.split("@")[0], ()))
            if not entry.matches_module(module, names) or any(n in inner or n in outputs for n in nodes):
                continue
            region = _module_region(path, nodes, entry.rule, type(module), flow)
            hidden = [s for s in program.sites if s.contraction in region.inner]
            findings.extend(Finding("hidden site", s.contraction, f"the rule on {path!r} hides the attention site in it") for s in hidden)
            outputs[region.output] = region
            inner |= region.inner - {region.output}
    for composite in find_composites(flow):
        if not any(n in inner or n in outputs for n in composite.inner):
            outputs[composite.output] = _written_out(composite)
            inner |= composite.inner - {composite.output}
    return outputs, inner


def _written_out(composite: Composite) -> _Region:
    return _Region(composite.output, composite.inner, Rule(carry.function, f"carry ({composite.label})", "carry", frozenset()), composite.label)


def _is_module(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True


def _module_calls(program: Program, flow: Flow) -> dict[str, list[fx.Node]]:
    """The flowing nodes of every module call, by its path with call number, outer modules first."""
    calls: dict[str, list[fx.Node]] = {}
    for node in flow.nodes:
        for path, _ in place(node).modules:
            calls.setdefault(path, []).append(node)
    return dict(sorted(calls.items(), key=lambda item: item[0].count(".")))


def _module_region(path: str, nodes: list[fx.Node], rule: Rule, kind: type, flow: Flow) -> _Region:
    members = set(nodes)
    outputs = [n for n in nodes if any(u in flow.members and u not in members for u in n.users) or not any(u in flow.members for u in n.users)]
    if len(outputs) != 1:
        inner = [n for n in outputs[:-1]]
        raise RuleError(message(
            f"the call of {path!r} cannot be one operation: {len(outputs)} of its tensors are used outside it",
            at="; ".join(describe(n) for n in inner[:3]), then=["give a rule to the module that encloses all of their uses, or to the operators inside"],
        ))
    output = outputs[0]
    for n in flow.nodes:
        if n not in members and flow.reaches(n, output) and any(flow.reaches(m, n) for m in members):
            raise RuleError(message(f"the call of {path!r} cannot be one operation: relevance leaves it and comes back", at=describe(n)))
    if len(nodes) == 1:
        return _Region(output, frozenset(members), rule, output.target)
    return _Region(output, frozenset(members), rule, kind)


def _region_step(program: Program, region: _Region, flow: Flow, needed: set[fx.Node]) -> Step:
    """A region as a step. Of a single node: that node's own call. Else: activations that enter it, in order of first use, and a function that replays it."""
    if len(region.inner) == 1:
        operands, rebuild = template(region.output, program.dtype)
        names, function = _argument_names(region.output, operands), region.output.target
    else:
        ordered = [n for n in program.graph.nodes if n in _closure(region, flow)]
        inside = set(ordered)
        entering = dict.fromkeys(i for n in ordered for i in tensor_inputs(n) if i not in inside)
        operands = tuple(sorted(entering, key=lambda n: n not in flow.members))
        names, function = tuple("" for _ in operands), _replay(ordered, operands, region.output, program.dtype)

        def rebuild(*tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return tensors, {}

    roles = tuple("activation" if o in flow.members else "parameter" if o.meta["role"] == "parameter" else "constant" for o in operands)
    wants = tuple(o in needed and r == "activation" for o, r in zip(operands, roles, strict=True))
    return Step(region.output, region.rule, operands, roles, wants, rebuild, function, region.op, names, region.inner)  # type: ignore[arg-type]


def _closure(region: _Region, flow: Flow) -> set[fx.Node]:
    """The region's flowing nodes and what only they use (comparisons, casts of masks)."""
    closure = set(region.inner)
    for node in reversed(region.output.graph.nodes):
        if node.op == "call_function" and node not in flow.members and node.users and all(u in closure for u in node.users):
            if any(i in closure or i in flow.members for i in tensor_inputs(node)):
                closure.add(node)
    return closure


def _replay(ordered: list[fx.Node], operands: tuple[fx.Node, ...], output: fx.Node, dtype: torch.dtype | None) -> Callable[..., Any]:
    def function(*tensors: Any) -> Any:
        env: dict[fx.Node, Any] = dict(zip(operands, tensors, strict=True))
        for node in ordered:
            sources, rebuild = template(node, dtype)
            args, kwargs = rebuild(*(env[s] for s in sources))
            env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return env[output]

    return function
