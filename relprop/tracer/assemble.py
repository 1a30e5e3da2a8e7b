"""A canonical graph becomes a program: which inputs are explained, what each node is to relevance,
what its axes hold, and where attention is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, fx, nn

from relprop.tracer.atoms import Axes
from relprop.tracer.attention import attend_to_constants, find_sites
from relprop.tracer.axes import axes_below, settle_features
from relprop.tracer.capture import Capture
from relprop.tracer.constants import Constants
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import Role, booked_as, decide_books, decide_role, facts_of, role
from relprop.tracer.follow import depending
from relprop.tracer.heads import split_heads
from relprop.tracer.leaves import (
    ADDED,
    NOT_CHOSEN,
    USUAL,
    Leaves,
    candidates,
    only_added,
    side_inputs,
    with_tokens,
)
from relprop.tracer.program import Program, Site


@dataclass(frozen=True)
class _Structure:
    """What follows from a graph and its leaves: ``axes``, attention sites, and the softmaxes
    ``without`` one, each with the reason."""

    axes: Mapping[fx.Node, Axes]
    sites: tuple[Site, ...]
    without: tuple[tuple[fx.Node, str], ...]


def assemble(
    raw: Capture,
    names: tuple[str, ...],
    token_inputs: tuple[str, ...] | None = None,
    model: nn.Module | None = None,
) -> Program:
    """A ``Program`` from a canonical graph whose placeholders are ``names``: roles, leaves, axes
    and sites worked out."""
    graph, constants = raw.graph, Constants(raw.constants)
    placeholders = dict(zip(names, graph.find_nodes(op="placeholder"), strict=True))
    able, constant = candidates(placeholders)
    added = only_added(placeholders, able)
    leaves = {n: leaf for n, leaf in able.items() if n in (token_inputs or able.keys() - added)}
    constant |= {n: ADDED if token_inputs is None else NOT_CHOSEN for n in able if n not in leaves}
    found = _structure(graph, leaves, constants)
    if token_inputs is None:
        leaves, found, unusual = _usual(graph, leaves, constants, found)
        constant |= unusual
    elif len(with_tokens(leaves, (found.axes, found.sites))) < len(leaves):
        roots = {n: able[n] for n in able if n not in added} | leaves
        found = _structure(graph, leaves, constants, roots)
    beside = side_inputs({n: placeholders[n] for n in constant if n not in added}, found.sites)
    _write_books(graph, {node: name for name, node in beside.items()})
    return Program(
        **raw.captured(),
        inputs=names,
        leaves=leaves,
        sites=found.sites,
        no_sites=found.without,
        axes=found.axes,
        aliases=_aliases(model),
        constant_inputs={n: constant[n] for n in names if n in constant},
    )


def without_tokens(program: Program, constants: Mapping[str, Tensor]) -> list[fx.Node]:
    """The side inputs that have no tokens, those included that could not be explained."""
    inputs = zip(program.inputs, program.placeholders, strict=True)
    sides = {name: node for name, node in inputs if facts_of(node).side}
    if not sides:
        return []
    roots = {**program.leaves, **sides}
    found = _structure(program.graph, program.leaves, Constants(constants), roots)
    some = with_tokens(sides, (found.axes, found.sites))
    return [node for name, node in sides.items() if name not in some]


def _usual(
    graph: fx.Graph, leaves: Leaves, constants: Constants, found: _Structure
) -> tuple[Leaves, _Structure, dict[str, str]]:
    """Those of the inputs that are explained unless the user names some, what then follows, and
    why the others are constants."""
    unusual: dict[str, str] = {}
    roots: Leaves = {}
    for reason, explained in USUAL.items():
        some = explained(leaves, (found.axes, found.sites))
        if some and len(some) < len(leaves):
            unusual |= {n: reason for n in leaves if n not in some}
            roots, leaves = roots | leaves, some
            found = _structure(graph, leaves, constants, roots)
    return leaves, found, unusual


def _aliases(model: nn.Module | None) -> dict[str, tuple[str, ...]]:
    """All paths of the module that each path names."""
    by_module: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False) if model is not None else ():
        by_module.setdefault(id(module), []).append(path)
    return {path: tuple(paths) for paths in by_module.values() for path in paths}


def _structure(
    graph: fx.Graph,
    leaves: Mapping[str, fx.Node],
    constants: Constants,
    roots: Mapping[str, fx.Node] | None = None,
) -> _Structure:
    """Every node's role as seen from ``leaves``; the axes and the attention sites that follow.
    ``roots``: from where axes are followed, if it is not from the leaves alone."""
    below = _decide_roles(graph, leaves)
    axes = axes_below(graph, (roots or leaves).values(), constants)
    sites, without = find_sites(graph, axes, constants)
    unseen = {softmax for softmax, _ in without}
    if attend_to_constants(graph, axes, unseen) or split_heads(graph, axes, sites, constants):
        return _structure(graph, leaves, constants, roots)
    settle_features(graph, axes)
    return _Structure(axes, tuple(s for s in sites if s.contraction in below), without)


def _decide_roles(graph: fx.Graph, leaves: Mapping[str, fx.Node]) -> set[fx.Node]:
    """Write down what each node is to relevance; the activations."""
    below = depending(graph.nodes, leaves.values())
    batched = depending(graph.nodes, graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        weights = node.op == "get_attr" or any(role(i) == "parameter" for i in node.all_input_nodes)
        still: Role = "parameter" if weights and node not in batched else "constant"
        decide_role(node, "activation" if node in below else still, node in batched)
    return below


def _write_books(graph: fx.Graph, beside: Mapping[fx.Node, str]) -> None:
    """Under which name the ledger books what each node absorbs: of what is made of inputs
    ``beside`` the explained ones, theirs."""
    entering: dict[fx.Node, tuple[str, ...]] = {}
    for node in graph.nodes:
        above = [n for i in tensor_inputs(node) for n in entering[i]]
        names = [beside[node]] if node in beside else above if _is_still(node) else []
        entering[node] = tuple(dict.fromkeys(names))
        booked = f"input {', '.join(entering[node])}" if names else _books(node)
        decide_books(node, booked, node in beside)


def _is_still(node: fx.Node) -> bool:
    return role(node) != "activation"


def _books(node: fx.Node) -> str:
    """The name under which the ledger books what this node absorbs: its parameters', else its
    input's."""
    if node.op == "get_attr":
        return str(node.target).removeprefix("model.")
    if node.op == "placeholder":
        return f"input {node.name}"
    names = [booked_as(i) for i in tensor_inputs(node) if _is_still(i)]
    named = [n for n in names if n and not n.startswith("input ")] or [n for n in names if n]
    return named[0] if named else ""
