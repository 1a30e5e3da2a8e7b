"""Several nodes that are one operation to the walk: a module call with a rule of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx, nn

from relprop.errors import RuleError
from relprop.operations import Args, Kwargs, Operator, Value, function_of, kind
from relprop.plan.steps import Finding, Step, argument_names, other_role
from relprop.rules.rule import Rule
from relprop.rules.ruleset import RuleSet
from relprop.tracer.calls import Values, call_node, template
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, describe, place


@dataclass(frozen=True)
class ModuleCall:
    """Nodes that are one operation to the walk."""

    output: fx.Node
    inner: frozenset[fx.Node]
    rule: Rule
    op: Operator


def find_module_calls(
    program: Program,
    model: nn.Module | None,
    rules: RuleSet,
    flow: Flow,
    starts: tuple[fx.Node, ...],
    findings: list[Finding],
) -> tuple[dict[fx.Node, ModuleCall], set[fx.Node]]:
    """Module calls with a rule of their own that relevance from ``starts`` enters, outermost first:
    by their outputs, and the nodes inside them. A rule for some kinds of operations takes each of
    those in the call."""
    outputs: dict[fx.Node, ModuleCall] = {}
    inner: set[fx.Node] = set()
    entries = rules.module_entries() if model is not None else ()
    calls = _module_calls(program, flow) if entries else {}
    entered = {n for n in flow.nodes if entries and any(flow.reaches(n, s) for s in starts)}
    for entry in entries:
        for path, nodes in calls.items():
            module = _module_at(model, path)
            if not entry.matches_module(module, _names_of(program, path)):
                continue
            if entry.rule.kinds:
                free = [n for n in nodes if n in entered and n not in inner and n not in outputs]
                outputs |= {n: _alone(n, entry.rule) for n in free if _is_for(entry.rule, n, flow)}
                continue
            if any(n in inner or n in outputs for n in nodes) or entered.isdisjoint(nodes):
                continue
            call = _as_one(path, nodes, entry.rule, type(module), flow, entered)
            findings += _hidden_sites(program, call, path)
            outputs[call.output] = call
            inner |= call.inner - {call.output}
    return outputs, inner


def _is_for(rule: Rule, node: fx.Node, flow: Flow) -> bool:
    """Whether an operation is of a rule's kinds, with one activation."""
    active = sum(i in flow.members for i in template(node, None)[0])
    return kind(node) in rule.kinds and active == 1


def _alone(node: fx.Node, rule: Rule) -> ModuleCall:
    return ModuleCall(node, frozenset([node]), rule, node.target)  # type: ignore[arg-type]


def _names_of(program: Program, path: str) -> set[str]:
    """What a module call is known under: every path of its module, with and without the number of
    the call."""
    plain = path.split("@")[0]
    paths = (plain, *program.aliases.get(plain, ()))
    return {name + number for name in paths for number in ("", path[len(plain) :])}


def _hidden_sites(program: Program, call: ModuleCall, path: str) -> list[Finding]:
    """The attention sites that are inside such a call, where no method sees them."""
    text = f"the rule on {path!r} hides the attention site in it"
    hidden = [s.contraction for s in program.sites if s.contraction in call.inner]
    return [Finding("hidden site", node, text) for node in hidden]


def _module_at(model: nn.Module | None, path: str) -> nn.Module | None:
    """The module whose call it is, if there is one."""
    try:
        return None if model is None else model.get_submodule(path.split("@")[0])
    except AttributeError:
        return None


def _module_calls(program: Program, flow: Flow) -> dict[str, list[fx.Node]]:
    """The flowing nodes of every module call, by its path with call number, outer modules first."""
    calls: dict[str, list[fx.Node]] = {}
    for node in flow.nodes:
        for path, _ in place(node).modules:
            calls.setdefault(path, []).append(node)
    return dict(sorted(calls.items(), key=lambda item: item[0].count(".")))


def _as_one(
    path: str, nodes: list[fx.Node], rule: Rule, module: type, flow: Flow, entered: set[fx.Node]
) -> ModuleCall:
    """One module call as one operation. Raises ``RuleError`` where relevance enters several of its
    tensors from outside, or leaves it and comes back. What only places are read of, it does not
    enter."""
    members, refused = set(nodes), f"the call of {path!r} cannot be one operation"
    users = {n: [u for u in n.users if u in entered] for n in nodes if n in entered}
    outputs = [n for n in users if not users[n] or any(u not in members for u in users[n])]
    if len(outputs) != 1:
        raise RuleError(
            f"{refused}: {len(outputs)} of its tensors are used outside it",
            at="; ".join(describe(n) for n in outputs[:-1][:3]),
            then=[
                "give a rule to the module that encloses all of their uses, or to the operators "
                "inside"
            ],
        )
    output = outputs[0]
    for n in flow.nodes:
        outside = n not in members and flow.reaches(n, output)
        if outside and any(flow.reaches(m, n) for m in members):
            raise RuleError(f"{refused}: relevance leaves it and comes back", at=describe(n))
    op = output.target if len(nodes) == 1 else module
    return ModuleCall(output, frozenset(members), rule, op)


def module_step(program: Program, call: ModuleCall, flow: Flow, needed: set[fx.Node]) -> Step:
    """Such a call as a step. Of a single node: that node's own call. Else: activations that enter
    it, in order of first use, and a function that replays it."""
    if len(call.inner) == 1:
        operands, rebuild = template(call.output, program.dtype)
        names, function = argument_names(call.output, operands), function_of(call.output)
    else:
        inside = _closure(call, flow)
        ordered = [n for n in program.graph.nodes if n in inside]
        entering = dict.fromkeys(i for n in ordered for i in tensor_inputs(n) if i not in inside)
        operands, rebuild = tuple(sorted(entering, key=lambda n: n not in flow.members)), _as_given
        names, function = ("",) * len(operands), _replay(ordered, operands, call, program.dtype)
    roles = tuple("activation" if o in flow.members else other_role(o) for o in operands)
    return Step(
        call.output,
        call.rule,
        operands,
        roles,
        tuple(o in needed and r == "activation" for o, r in zip(operands, roles, strict=True)),
        rebuild,
        function,
        call.op,
        names,
        call.inner,
    )


def _as_given(*tensors: Value) -> tuple[Args, Kwargs]:
    """The arguments of a function that takes its tensors one by one."""
    return tensors, {}


def _closure(call: ModuleCall, flow: Flow) -> set[fx.Node]:
    """The call's flowing nodes and what only they use (comparisons, casts of masks)."""
    closure, todo = set(call.inner), list(call.inner)
    while todo:
        for node in tensor_inputs(todo.pop()):
            aside = (
                node.op == "call_function"
                and node not in flow.members
                and node not in closure
                and all(u in closure for u in node.users)
            )
            if aside and any(i in flow.members for i in tensor_inputs(node)):
                closure.add(node)
                todo.append(node)
    return closure


def _replay(
    ordered: list[fx.Node],
    operands: tuple[fx.Node, ...],
    call: ModuleCall,
    dtype: torch.dtype | None,
) -> Callable[..., Value]:
    def function(*tensors: Value) -> Value:
        env: Values = dict(zip(operands, tensors, strict=True))
        for node in ordered:
            env[node] = call_node(node, env, dtype)
        return env[call.output]

    return function
