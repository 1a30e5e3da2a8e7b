"""Attention sites, found from structure: the contraction of what descends from a softmax with what
does not, over the softmax's axis. Of learned values PyTorch writes it as a linear map of the
softmax, which becomes the product that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import fx

from relprop.operations import MOVES, Kind, argument, kind, operand
from relprop.tracer.atoms import Atom, Axes, Axis, is_token
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    holds_weights,
    is_float,
    is_live,
    permuted,
    rank,
    shape_of,
    swap,
)
from relprop.tracer.follow import reached
from relprop.tracer.labels import Labels
from relprop.tracer.program import Site
from relprop.tracer.softmax_rows import KEEPS_ROWS, Rows, axis_after, lies_along, rows_below


def find_sites(
    graph: fx.Graph, axes: dict[fx.Node, Axes], constants: Constants
) -> tuple[tuple[Site, ...], tuple[tuple[fx.Node, str], ...]]:
    """The sites in forward order, their keys and queries marked as tokens; and the softmaxes that
    end in no site, with the reason."""
    sites: dict[fx.Node, Site] = {}
    without: list[tuple[fx.Node, str]] = []
    mixed, labels = _met_by_others(graph, axes), Labels(constants)
    for node in graph.nodes:
        if kind(node) is Kind.SOFTMAX and node in axes:
            below = _Below(node, rows_below(node, labels), axes, mixed)
            found, reason = below.contractions()
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


@dataclass(frozen=True)
class _Below:
    """What is below a softmax: where its ``rows`` are. ``mixed``: what products sum over as
    features."""

    softmax: fx.Node
    rows: Mapping[fx.Node, Rows]
    axes: dict[fx.Node, Axes]
    mixed: set[Atom]

    def contractions(self) -> tuple[list[Site], str]:
        """The sites that its products are, their keys and queries then marked as tokens; and why
        another product of its rows is none."""
        found: list[Site] = []
        reason = "it enters no contraction over its own axis"
        for node in self.softmax.graph.nodes:
            if kind(node) is Kind.MATMUL and any(i in self.rows for i in node.all_input_nodes):
                made = self._site(node)
                if isinstance(made, Site):
                    self._mark(made)
                    found.append(made)
                else:
                    reason = made
        return found, reason

    def _site(self, node: fx.Node) -> Site | str:
        """The site that a product of its rows is, or why it is none."""
        left, right = operand(node, 0), operand(node, 1)
        if left in self.rows and right in self.rows:
            return "both operands of its product descend from it"
        turned = left not in self.rows
        attention, values = (right, left) if turned else (left, right)
        over = rank(attention) - (2 if turned else 1)
        site = Site(node, attention, values, self.softmax, turned)
        if min(rank(attention), rank(values)) < 2 or not lies_along(self.rows[attention], over):
            return "the product does not sum over the softmax's axis"
        if values not in self.axes and is_live(values) and not holds_weights(values):
            return "what it weighs says which are picked, and holds nothing of an input"
        if self._is_made_of_it(values):
            return "what it weighs is made of it alone"
        return self._why_no_tokens(site) or site

    def _is_made_of_it(self, values: fx.Node) -> bool:
        """Whether all that a tensor has of an input has come through this softmax, as in the
        iterations that invert it (Nyströmformer)."""
        softmax = self.softmax
        above = reached([values], lambda n: () if n is softmax else n.all_input_nodes)
        return is_live(values) and all(n.op != "placeholder" for n in above)

    def _around(self, site: Site) -> tuple[Axis, Axis, Axis, Sequence[Axis]]:
        """The keys' axis of the values (none of learned ones) and of the map, its queries, and its
        batches."""
        of_values = self.axes.get(site.values, ((), ()))[-1 if site.transposed else -2]
        *batches, one, other = self.axes[site.attention]
        return of_values, *((one, other) if site.transposed else (other, one)), batches

    def _why_no_tokens(self, site: Site) -> str:
        """Why what a product sums over is no tokens, if it is none."""
        of_values, of_map, queries, batches = self._around(site)
        if of_values and all(_is_no_token(atom) for atom in of_values):
            if all(atom.kind == "feature" for atom in of_values):
                return "its keys are channels, not tokens"
            of_many = any(atom.repeated or atom.kind == "token" for atom in of_map)
            if not of_many or _are_features(queries):  # of residual streams (hyper-connections)
                return "its keys are copies of one token"
        if _are_features(of_map) and _chooses(self.softmax):
            return "its keys are what is picked of channels, not tokens"
        if not of_map and not queries and any(_may_be_token(a) for axis in batches for a in axis):
            return "each token is the only query of one key"  # as the first layer of LIMe is
        return ""

    def _mark(self, site: Site) -> None:
        """What attention mixes is tokens. A product sums over keys that all rows of one batch
        share; where each query has keys of its own (values sampled for it, neighbours gathered), no
        two rows share any, so each map has one row and the queries are what the batches number."""
        of_values, of_map, queries, batches = self._around(site)
        _mark_series(batches)
        _mark_tokens((of_values, of_map, *((queries,) if queries else batches)))
        for atom in queries:
            if atom.kind == "feature" and atom not in self.mixed:
                atom.position = True  # a linear map whose rows are learned queries


def _are_features(axis: Axis) -> bool:
    return bool(axis) and all(atom.kind == "feature" for atom in axis)


def _chooses(softmax: fx.Node) -> bool:
    """Whether a softmax is of numbers that are picked along its axis, as a router picks them."""
    axis, below = argument(softmax, "dim") % rank(softmax) - rank(softmax), operand(softmax)
    while kind(below) in KEEPS_ROWS:
        below = operand(below)
    return kind(below) is Kind.GATHER and argument(below, "dim") % rank(below) - rank(below) == axis


def _mark_series(batches: Sequence[Axis]) -> None:
    """Series that attend each for itself are positions of the input, too: tokens."""
    for atom in (a for axis in batches for a in axis):
        if _may_be_token(atom):
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


def _may_be_token(atom: Atom) -> bool:
    return atom.kind == "token" or (atom.kind == "unknown" and atom.group.root().of_leaf)


def _is_no_token(atom: Atom) -> bool:
    """Whether an atom's positions are features, or copies (of a token, for each of its experts)."""
    return atom.kind == "feature" or (atom.repeated and atom.kind != "token")


def attend_to_constants(
    graph: fx.Graph, axes: dict[fx.Node, Axes], softmaxes: set[fx.Node]
) -> bool:
    """Write a linear map over the tokens of a softmax that ends in no site as the matrix product
    that it is: attention, of which no value depends on an input. Whether there was one."""
    found = [n for n in graph.nodes if kind(n) is Kind.LINEAR and _weighs(n, softmaxes, axes)]
    for node in found:
        x, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
        dims = [*range(rank(weight) - 2), rank(weight) - 1, rank(weight) - 2]
        made = emit(node, aten.matmul.default, x, permuted(node, weight, dims))
        swap(node, made if bias is None else emit(node, aten.add.Tensor, made, bias))
    return bool(found)


def _weighs(linear: fx.Node, softmaxes: set[fx.Node], axes: dict[fx.Node, Axes]) -> bool:
    """Whether a linear map sums over the axis of one of these softmaxes, if it is one of scores and
    no features lie along it."""
    *moved, softmax = _moved_from(operand(linear))
    if softmax not in softmaxes:
        return False
    if not _are_scores(operand(softmax)):
        return False
    axis: int | None = argument(softmax, "dim") % rank(softmax)
    if all(atom.kind == "feature" for atom in axes[softmax][axis]):  # type: ignore[index]
        return False
    for source, node in pairwise((softmax, *reversed(moved))):
        axis = None if axis is None else axis_after(node, source, axis)
    return axis == rank(linear.args[0]) - 1


def _are_scores(node: fx.Node) -> bool:
    """Whether a tensor is a matrix product or a linear map, moved, or of several one is."""
    last = _moved_from(node)[-1]
    if kind(last) in (Kind.SUM, Kind.PRODUCT):
        return any(_are_scores(n) for n in _whole_operands(last))
    return kind(last) in (Kind.MATMUL, Kind.LINEAR)


def _moved_from(node: fx.Node) -> list[fx.Node]:
    """A tensor and, one above the other, those whose rows it has, up to the first that made its
    own, or has those of several."""
    found = [node]
    while kind(node) in KEEPS_ROWS | MOVES and kind(node) is not Kind.SOFTMAX:
        below = node.args[0]
        if kind(node) in (Kind.SUM, Kind.PRODUCT):
            whole = _whole_operands(node)
            below = whole[0] if len(whole) == 1 else None
        if not isinstance(below, fx.Node):
            break
        node = below
        found.append(node)
    return found


def _whole_operands(node: fx.Node) -> list[fx.Node]:
    """The tensors as large as the result, of what depends on an input, that a call combines."""
    live = [n for n in node.all_input_nodes if is_float(n) and is_live(n)]
    return [n for n in live if shape_of(n) == shape_of(node)]
