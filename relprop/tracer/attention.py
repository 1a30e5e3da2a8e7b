"""Attention sites, found from structure: the contraction of what descends from a softmax with what
does not, over the softmax's axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from relprop.operations import Kind, argument, kind, operand
from relprop.tracer.atoms import Atom, Axes, Axis, is_token
from relprop.tracer.constants import Constants
from relprop.tracer.editing import holds_weights, is_live, rank, shape_of
from relprop.tracer.labels import Labels
from relprop.tracer.program import Site
from relprop.tracer.softmax_rows import KEEPS_ROWS, Rows, lies_along, rows_below


def find_sites(
    graph: fx.Graph, axes: dict[fx.Node, Axes], constants: Constants | None = None
) -> tuple[tuple[Site, ...], tuple[tuple[fx.Node, str], ...]]:
    """The sites in forward order, their keys and queries marked as tokens; and the softmaxes that
    end in no site, with the reason."""
    sites: dict[fx.Node, Site] = {}
    without: list[tuple[fx.Node, str]] = []
    mixed = _met_by_others(graph, axes)
    for node in graph.nodes:
        if kind(node) is Kind.SOFTMAX and node in axes:
            found, reason = _descend(node, axes, constants, mixed)
            for site in found:
                sites.setdefault(site.contraction, site)
            if not found and shape_of(node)[node.args[1]] > 1:  # over one element every weight is 1
                without.append((node, reason))
    for site in sites.values():
        _number_alike(axes.get(site.attention, ()), axes.get(site.values, ()))
    return tuple(sites[node] for node in graph.nodes if node in sites), tuple(without)


def _met_by_others(graph: fx.Graph, axes: dict[fx.Node, Axes]) -> set[Atom]:
    """What products sum over as features: along the axis of one operand and not of the other."""
    found: set[Atom] = set()
    for node in graph.nodes:
        operands = [axes.get(n) for n in node.args[:2]] if kind(node) is Kind.MATMUL else []
        if len(operands) == 2 and all(a is not None and len(a) > 1 for a in operands):
            left, right = operands
            found |= set(left[-1]) ^ set(right[-2])  # type: ignore[index]
    return found


def _descend(
    softmax: fx.Node,
    axes: dict[fx.Node, Axes],
    constants: Constants | None,
    mixed: set[Atom],
) -> tuple[list[Site], str]:
    """The contractions over a softmax's rows; and why another that they enter is none."""
    keys = rows_below(softmax, Labels(constants))
    found: list[Site] = []
    reason = "it enters no contraction over its own axis"
    for node in softmax.graph.nodes:
        if kind(node) is Kind.MATMUL and any(i in keys for i in node.all_input_nodes):
            site, why = _contraction(node, keys, softmax, axes, mixed)
            if site is not None:
                found.append(site)
            reason = why or reason
    return found, reason


def _contraction(
    node: fx.Node,
    keys: Mapping[fx.Node, Rows],
    softmax: fx.Node,
    axes: dict[fx.Node, Axes],
    mixed: set[Atom],
) -> tuple[Site | None, str]:
    """The site that a product of a softmax's rows is, its keys and queries then marked as tokens;
    or why it is none."""
    left, right = operand(node, 0), operand(node, 1)
    if left in keys and right in keys:
        return None, "both operands of its product descend from it"
    attention, values, transposed = (left, right, False) if left in keys else (right, left, True)
    wide = rank(attention)
    over = wide - 2 if transposed else wide - 1
    if wide < 2 or rank(values) < 2 or not lies_along(keys[attention], over):
        return None, "the product does not sum over the softmax's axis"
    if values not in axes and is_live(values) and not holds_weights(values):
        return None, "what it weighs says which are picked, and holds nothing of an input"
    of_values = axes[values][-1 if transposed else -2] if values in axes else ()
    *batches, one, other = axes[attention]
    of_map, queries = (one, other) if transposed else (other, one)
    if of_values and all(_is_no_token(atom) for atom in of_values):
        copied = any(atom.kind != "feature" for atom in of_values)
        if not copied or not any(atom.repeated or atom.kind == "token" for atom in of_map):
            what = "copies of one token" if copied else "channels, not tokens"
            return None, f"its keys are {what}"
    if of_map and all(atom.kind == "feature" for atom in of_map) and _chooses(softmax):
        return None, "its keys are what is picked of channels, not tokens"
    _mark_series(batches)
    _mark_tokens((of_values, of_map, *_numbering_queries(queries, batches)))
    for atom in queries:
        if atom.kind == "feature" and atom not in mixed:
            atom.position = True  # a linear map whose rows are learned queries
    return Site(node, attention, values, softmax, transposed), ""


def _chooses(softmax: fx.Node) -> bool:
    """Whether a softmax is of numbers that are picked along its axis, as a router picks them."""
    axis, below = argument(softmax, "dim") % rank(softmax) - rank(softmax), operand(softmax)
    while kind(below) in KEEPS_ROWS:
        below = operand(below)
    return kind(below) is Kind.GATHER and argument(below, "dim") % rank(below) - rank(below) == axis


def _numbering_queries(queries: Axis, batches: Sequence[Axis]) -> Sequence[Axis]:
    """The axes of a map that number its queries. A product sums over keys that all rows of one
    batch share; where each query has keys of its own (values sampled for it, neighbours gathered),
    no two rows share any, so each map has one row and the queries are what the batches number."""
    return (queries,) if queries else batches


def _mark_series(batches: Sequence[Axis]) -> None:
    """Series that attend each for itself are positions of the input, too: tokens."""
    for atom in (a for axis in batches for a in axis):
        if atom.kind == "unknown" and atom.group.root().of_leaf:
            atom.group.root().kind = "token"


def _mark_tokens(axes: Sequence[Axis]) -> None:
    """What attention mixes is tokens, and so are features that are folded together with them."""
    for axis in axes:
        plain = [a for a in axis if a.group.root().kind != "feature"]
        for atom in plain:
            atom.group.root().kind = "token"
        for atom in axis if plain else ():
            atom.position = True


def _number_alike(of_map: Axes, of_values: Axes) -> None:
    """Where a map and its values lie side by side, an axis that numbers tokens of the one numbers
    them of the other: keys gathered for each query are copies until they are gathered."""
    for one, other in zip(of_map[-3::-1], of_values[-3::-1], strict=False):
        if is_token(one):
            for atom in other:
                atom.position |= atom.kind == "unknown"


def _is_no_token(atom: Atom) -> bool:
    """Whether an atom's positions are features, or copies (of a token, for each of its experts)."""
    return atom.kind == "feature" or (atom.repeated and atom.kind != "token")
