"""Attention sites, found from structure: the contraction of what descends from a softmax with what
does not, over the softmax's axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, MOVES, Kind, argument, integers, kind, operand
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
    val,
)
from relprop.tracer.follow import follow
from relprop.tracer.labels import Labels, rows
from relprop.tracer.program import Site

#: Where a softmax's rows are: the axis they lie along, or the row of every element.
Rows = int | Tensor
#: What an operation may be for the rows of a softmax to be its rows still.
KEEPS_ROWS = ELEMENTWISE | {Kind.SOFTMAX, Kind.NORM, Kind.BATCH_NORM}


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


def rows_below(softmax: fx.Node, labels: Labels) -> dict[fx.Node, Rows]:
    """Where the rows of a softmax are in all that is made of it, up to the products they enter: by
    the axis they lie along, or, where moves shear or cut them, by labels."""

    def after(node: fx.Node, keys: Mapping[fx.Node, Rows]) -> Rows | None:
        if node.op != "call_function" or kind(node) is Kind.MATMUL:
            return None
        return rows_after(node, [i for i in node.all_input_nodes if i in keys], keys, labels)

    axis: int = argument(softmax, "dim") % rank(softmax)
    return follow(softmax.graph.nodes, {softmax: axis}, after)


def rows_after(
    node: fx.Node, sources: list[fx.Node], keys: Mapping[fx.Node, Rows], labels: Labels
) -> Rows | None:
    """Where the softmax's rows are after ``node``: their axis, or every element's row; ``None``
    where they do not survive."""
    source = sources[0]
    at = keys[source]
    if (
        isinstance(at, int)
        and len(sources) == 1
        and (axis := axis_after(node, source, at)) is not None
    ):
        return axis
    if isinstance(at, int) and kind(node) in KEEPS_ROWS:
        return axis_after(node, source, at)
    if isinstance(at, int) and _stays_in_its_row(node, source, at, labels):
        return at
    shape = tuple(getattr(val(node), "shape", ()))
    if not isinstance(at, int) and kind(node) in KEEPS_ROWS and shape == tuple(at.shape):
        return at
    marked = {
        s: m if isinstance(m := keys[s], Tensor) else rows(tuple(val(s).shape), m) for s in sources
    }
    return labels.push(node, marked)


def _stays_in_its_row(node: fx.Node, source: fx.Node, axis: int, labels: Labels) -> bool:
    """Whether elements are picked along the rows, or put at places of their rows among zeros, by an
    index that may depend on the input."""
    if kind(node) not in (Kind.GATHER, Kind.WRITE, Kind.INDEXED_SUM):
        return False
    dim, base = argument(node, "dim"), operand(node)
    if not isinstance(dim, int) or dim % rank(node) != axis:
        return False
    if kind(node) is Kind.GATHER:
        return source is base
    zeros = None if source is base else labels.constant(base)
    return zeros is not None and not bool(zeros.any())


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
    _mark_series(batches)
    _mark_tokens((of_values, of_map, *_numbering_queries(queries, batches)))
    for atom in queries:
        if atom.kind == "feature" and atom not in mixed:
            atom.position = True  # a linear map whose rows are learned queries
    return Site(node, attention, values, softmax, transposed), ""


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


def lies_along(where: Rows, axis: int) -> bool:
    """Whether every row along ``axis`` holds elements of one row of the softmax, or of none."""
    if isinstance(where, int):
        return where == axis
    highest = where.amax(axis, keepdim=True)
    return bool(((where == highest) | (where == 0)).all()) and bool((where > 0).any())


def axis_after(node: fx.Node, source: fx.Node, axis: int) -> int | None:
    """Where the softmax's axis is after ``node``, or ``None`` where its keys or queries do not
    survive."""
    what, rank, shape = kind(node), len(val(source).shape), val(source).shape
    if what in KEEPS_ROWS:
        wider = getattr(val(node), "ndim", -1) - rank
        return axis + wider if wider >= 0 else None
    if what is Kind.SLICE:
        return axis
    if what is Kind.PERMUTE:
        return integers(node, "dims").index(axis)
    if what in (Kind.RESHAPE, Kind.EXPAND):
        return after_reshape(tuple(shape), tuple(val(node).shape), axis)
    if what is Kind.LINEAR:
        return axis if axis != rank - 1 else None
    if what is Kind.TOTAL:
        return _after_sum(node, rank, axis)
    keeps = what is Kind.CONVOLUTION and axis > 1 and val(node).shape[axis] == shape[axis]
    return axis if keeps else None


def _after_sum(node: fx.Node, rank: int, axis: int) -> int | None:
    """The axis after a sum or a mean over others (heads)."""
    gone = {d % rank for d in integers(node, "dim") or range(rank)}
    if axis in gone:
        return None
    return axis if argument(node, "keepdim") else axis - sum(d < axis for d in gone)


def after_reshape(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis of ``after`` with the same length and the same number of elements behind it."""
    inner = math.prod(before[axis + 1 :])
    return next(
        (
            i
            for i, size in enumerate(after)
            if size == before[axis] and math.prod(after[i + 1 :]) == inner
        ),
        None,
    )
