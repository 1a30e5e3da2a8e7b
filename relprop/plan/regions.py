"""Regions: several nodes that are one operation to the walk: a module call with a rule of its
own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from relprop.errors import RuleError, message
from relprop.operations import function_of
from relprop.plan.steps import Finding, Step, argument_names
from relprop.rules.rule import Rule
from relprop.rules.ruleset import RuleSet
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import role
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, describe, place
from relprop.tracer.run import call_node, template


@dataclass(frozen=True)
class Region:
    """Nodes that are one operation to the walk."""

    output: fx.Node
    inner: frozenset[fx.Node]
    rule: Rule
    op: Any


def find_regions(
    program: Program, model: nn.Module | None, rules: RuleSet, flow: Flow, findings: list[Finding]
) -> tuple[dict[fx.Node, Region], set[fx.Node]]:
    """Module calls with a rule of their own, outermost first."""
    outputs: dict[fx.Node, Region] = {}
    inner: set[fx.Node] = set()
    for entry in rules.module_entries() if model is not None else ():
        assert model is not None
        for path, nodes in _module_calls(program, flow).items():
            module = (
                model.get_submodule(path.split("@")[0])
                if _is_module(model, path.split("@")[0])
                else None
            )
            plain, number = path.split("@")[0], path[len(path.split("@")[0]) :]
            names = {
                name + suffix
                for name in (plain, *program.aliases.get(plain, ()))
                for suffix in ("", number)
            }
            if not entry.matches_module(module, names) or any(
                n in inner or n in outputs for n in nodes
            ):
                continue
            region = _module_region(path, nodes, entry.rule, type(module), flow)
            hidden = [s for s in program.sites if s.contraction in region.inner]
            findings.extend(
                Finding(
                    "hidden site",
                    s.contraction,
                    f"the rule on {path!r} hides the attention site in it",
                )
                for s in hidden
            )
            outputs[region.output] = region
            inner |= region.inner - {region.output}
    return outputs, inner


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


def _module_region(path: str, nodes: list[fx.Node], rule: Rule, kind: type, flow: Flow) -> Region:
    members = set(nodes)
    outputs = [
        n
        for n in nodes
        if any(u in flow.members and u not in members for u in n.users)
        or not any(u in flow.members for u in n.users)
    ]
    if len(outputs) != 1:
        inner = outputs[:-1]
        raise RuleError(
            message(
                (
                    f"the call of {path!r} cannot be one operation: {len(outputs)} of its "
                    "tensors are used outside it"
                ),
                at="; ".join(describe(n) for n in inner[:3]),
                then=[
                    (
                        "give a rule to the module that encloses all of their uses, or to "
                        "the operators inside"
                    )
                ],
            )
        )
    output = outputs[0]
    for n in flow.nodes:
        if (
            n not in members
            and flow.reaches(n, output)
            and any(flow.reaches(m, n) for m in members)
        ):
            raise RuleError(
                message(
                    (
                        f"the call of {path!r} cannot be one operation: relevance leaves it "
                        "and comes back"
                    ),
                    at=describe(n),
                )
            )
    if len(nodes) == 1:
        return Region(output, frozenset(members), rule, output.target)
    return Region(output, frozenset(members), rule, kind)


def region_step(program: Program, region: Region, flow: Flow, needed: set[fx.Node]) -> Step:
    """A region as a step. Of a single node: that node's own call. Else: activations that enter it,
    in order of first use, and a function that replays it."""
    if len(region.inner) == 1:
        operands, rebuild = template(region.output, program.dtype)
        names, function = argument_names(region.output, operands), function_of(region.output)
    else:
        inside = _closure(region, flow)
        ordered = [n for n in program.graph.nodes if n in inside]
        entering = dict.fromkeys(i for n in ordered for i in tensor_inputs(n) if i not in inside)
        operands = tuple(sorted(entering, key=lambda n: n not in flow.members))
        names, function = (
            tuple("" for _ in operands),
            _replay(ordered, operands, region, program.dtype),
        )

        def rebuild(*tensors: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return tensors, {}

    roles = tuple(
        "activation" if o in flow.members else "parameter" if role(o) == "parameter" else "constant"
        for o in operands
    )
    wants = tuple(o in needed and r == "activation" for o, r in zip(operands, roles, strict=True))
    return Step(
        region.output,
        region.rule,
        operands,
        roles,
        wants,
        rebuild,
        function,
        region.op,
        names,
        region.inner,
    )  # type: ignore[arg-type]


def _closure(region: Region, flow: Flow) -> set[fx.Node]:
    """The region's flowing nodes and what only they use (comparisons, casts of masks)."""
    closure, todo = set(region.inner), list(region.inner)
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
    ordered: list[fx.Node], operands: tuple[fx.Node, ...], region: Region, dtype: torch.dtype | None
) -> Callable[..., Any]:
    def function(*tensors: Any) -> Any:
        env: dict[fx.Node, Any] = dict(zip(operands, tensors, strict=True))
        for node in ordered:
            env[node] = call_node(node, env, dtype)
        return env[region.output]

    return function
