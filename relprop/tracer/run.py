"""Run a program's graph: once what depends on no input, and per sample, under ``vmap``, everything
else. Knows no rule.

Values that depend on an input have the batch first, then the sample's own shape (which starts with
1). Every operation is one call for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Protocol

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from relprop.errors import InputError, first_line, message
from relprop.operations import Args, Kwargs, Value
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import is_batched
from relprop.tracer.kernels import KERNELS
from relprop.tracer.program import Program, describe
from relprop.tracer.surroundings import normal

Values = dict[fx.Node, Value]
Visit = Callable[[fx.Node, Value], Value]


class Composite(Protocol):
    """Several calls that run as one: ``entering`` is what they read from outside, and ``run`` gives
    the value of the last of them, batch first."""

    @property
    def entering(self) -> tuple[fx.Node, ...]:
        """What it reads."""

    def run(self, values: Values, dtype: torch.dtype | None) -> Tensor:
        """Its value."""


def execute(
    program: Program,
    model: nn.Module | None,
    inputs: Inputs,
    keep: Collection[fx.Node],
    watch: Collection[fx.Node] = (),
    visit: Visit | None = None,
    *,
    attached: bool = False,
    composites: Mapping[fx.Node, Composite] | None = None,
) -> Values:
    """The values of the nodes in ``keep``, for all samples. ``visit(node, value)`` may replace the
    value of a node in ``watch`` as it is made.

    Parameters are read from ``model`` now, detached, and so are inputs unless ``attached``. The
    graph runs in sections that end at watched nodes, each section in one ``vmap``; what no later
    section reads is freed unless kept. What ends in one of ``composites`` runs as that, a section
    of its own.
    """
    kept, values, whole = set(keep), {}, composites or {}
    stacked = iter(inputs.stacked())
    sections = _sections(_wanted(program.graph, kept | set(watch), whole), set(watch), whole)
    later = _read_later(sections, whole)
    for nodes, still in zip(sections, later, strict=True):
        for node in nodes:
            if node.op == "placeholder":
                given = next(stacked)
                values[node] = _cast(given if attached else normal(given), program.dtype)
            elif node.op == "get_attr":
                values[node] = _cast(
                    normal(_parameter(program, model, str(node.target))), program.dtype
                )
            elif not is_batched(node):
                values[node] = call_node(node, values, program.dtype)
        wanted = [n for n in nodes if n in kept or n in still]
        if nodes[0] in whole:
            values[nodes[0]] = whole[nodes[0]].run(values, program.dtype)
        else:
            _run_section(
                [n for n in nodes if n.op == "call_function" and is_batched(n)],
                wanted,
                values,
                program.dtype,
            )
        if visit is not None and nodes[-1] in watch:
            values[nodes[-1]] = visit(nodes[-1], values[nodes[-1]])
        for node in [n for n in values if n not in kept and n not in still]:
            del values[node]
    return values


def _cast(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


def _reads(node: fx.Node, composites: Mapping[fx.Node, Composite]) -> tuple[fx.Node, ...]:
    """What a call reads; of a composite, what enters it."""
    return composites[node].entering if node in composites else tensor_inputs(node)


def _wanted(
    graph: fx.Graph, asked: set[fx.Node], composites: Mapping[fx.Node, Composite]
) -> list[fx.Node]:
    """The graph's nodes in order, without those that composites alone read."""
    nodes = list(graph.nodes)
    if not composites:
        return nodes
    read = asked | {n for n in nodes if n.op in ("placeholder", "output")}
    for node in reversed(nodes):
        if node in read:
            read.update(_reads(node, composites) if node.op != "output" else node.all_input_nodes)
    return [n for n in nodes if n in read]


def _sections(
    nodes: list[fx.Node], watch: set[fx.Node], composites: Mapping[fx.Node, Composite]
) -> list[list[fx.Node]]:
    """The nodes in order, cut after each watched one, and before and after each composite."""
    sections: list[list[fx.Node]] = [[]]
    for node in nodes:
        if node.op == "output":
            continue
        if node in composites:
            sections += [[node], []]
            continue
        sections[-1].append(node)
        if node in watch:
            sections.append([])
    return [s for s in sections if s]


def _read_later(
    sections: list[list[fx.Node]], composites: Mapping[fx.Node, Composite]
) -> list[set[fx.Node]]:
    """For each section, the nodes that sections after it read."""
    after: list[set[fx.Node]] = [set()]
    for nodes in reversed(sections[1:]):
        after.append(after[-1] | {i for n in nodes for i in _reads(n, composites)})
    return after[::-1]


def _run_section(
    nodes: list[fx.Node], wanted: list[fx.Node], values: Values, dtype: torch.dtype | None
) -> None:
    """Run ``nodes`` for the whole batch at once and put what is ``wanted`` of them into
    ``values``."""
    if not nodes:
        return
    inside = set(nodes)
    entering = [
        n
        for n in dict.fromkeys(i for node in nodes for i in tensor_inputs(node) if i not in inside)
        if is_batched(n)
    ]
    leaving = [n for n in nodes if n in set(wanted)]
    last = {
        used: node
        for node in nodes
        for used in (node, *tensor_inputs(node))
        if used in inside and used not in set(leaving)
    }
    gone: dict[fx.Node, list[fx.Node]] = {}
    for used, user in last.items():
        gone.setdefault(user, []).append(used)

    def section(*given: object) -> Args:
        env = _Layered(dict(zip(entering, given, strict=True)), values)
        for node in nodes:
            env.own[node] = call_node(node, env, dtype)
            for done in gone.get(node, ()):
                del env.own[done]
        return tuple(env.own[n] for n in leaving)

    if not entering:
        results = section()
    else:
        results = per_sample(section, *(values[n] for n in entering))
    values.update(zip(leaving, results, strict=True))


def per_sample(function: Callable[..., Value], *batches: Value) -> Value:
    """``function`` on every sample: one ``vmap`` for several, a plain call for one (which may then
    do what ``vmap`` cannot: outputs whose shape depends on values)."""
    leaves = [t for t in tree_leaves(batches) if isinstance(t, Tensor)]
    if any(len(t) != 1 for t in leaves):
        return torch.func.vmap(function, randomness="same")(*batches)
    out = function(*tree_map_only(Tensor, lambda t: t.squeeze(0), batches))
    return tree_map_only(Tensor, lambda t: t.unsqueeze(0), out)


class _Layered:
    """A section's own values before those from outside it."""

    def __init__(self, own: Values, outer: Values) -> None:
        self.own, self.outer = own, outer

    def __getitem__(self, node: fx.Node) -> Value:
        return self.own[node] if node in self.own else self.outer[node]


def _parameter(program: Program, model: nn.Module | None, target: str) -> Tensor:
    if target in program.constants:
        return program.constants[target]
    found: Tensor = attrgetter(target.removeprefix("model."))(model)
    return found


def template(
    node: fx.Node, dtype: torch.dtype | None = None
) -> tuple[tuple[fx.Node, ...], Callable[..., tuple[Args, Kwargs]]]:
    """The nodes that enter a call, in order of appearance, and a function that puts tensors in
    their places.

    ``dtype``: every floating dtype the model wrote down becomes this one.
    """
    operands = tensor_inputs(node)

    def rebuild(*tensors: Value) -> tuple[Args, Kwargs]:
        it = iter(tensors)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: next(it))
        return _plain(args, dtype), _plain(kwargs, dtype)

    return operands, rebuild


def _plain(x: Value, dtype: torch.dtype | None) -> Value:
    """fx's immutable containers as ordinary ones, which operators insist on."""
    if isinstance(x, dict):
        return {k: _plain(v, dtype) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        return (list if isinstance(x, list) else tuple)(_plain(v, dtype) for v in x)
    return dtype if dtype is not None and isinstance(x, torch.dtype) and x.is_floating_point else x


def call_node(
    node: fx.Node,
    values: Values | _Layered,
    dtype: torch.dtype | None,
    replaced: tuple[int, object] | None = None,
) -> Value:
    """One sample's value of a node, from ``values`` of what it reads. ``dtype`` as in
    ``template``; ``replaced``: an argument by position, and what stands there instead."""
    operands, rebuild = template(node, dtype)
    args, kwargs = rebuild(*(values[n] for n in operands))
    if replaced is not None:
        args = (*args[: replaced[0]], replaced[1], *args[replaced[0] + 1 :])
    try:
        made = KERNELS.get(node.target, node.target)(*args, **kwargs)  # type: ignore[operator]
        # what is created here, or made of whole numbers, has the default type
        return _cast(made, dtype) if isinstance(made, Tensor) else made
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise InputError(
            message(f"{node.target} failed: {first_line(error)}", at=describe(node))
        ) from error
