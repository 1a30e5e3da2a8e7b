"""Attention sites, found from structure: the contraction of what descends from a softmax with what
does not, over the softmax's axis."""

from __future__ import annotations

import math

from torch import Tensor, fx

from relprop.tracer.axes import Axes
from relprop.tracer.editing import argument, name_of, val
from relprop.tracer.labels import Labels, rows
from relprop.tracer.program import Site

SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})
KEEPS_AXES = frozenset(
    (
        "mul div add sub masked_fill where to type_as clamp clamp_min clamp_max nan_to_num "
        "detach softmax _safe_softmax pow relu neg contiguous slice"
    ).split()
)
NORMS = frozenset({"layer_norm", "batch_norm", "group_norm"})


def find_sites(
    graph: fx.Graph, axes: dict[fx.Node, Axes]
) -> tuple[tuple[Site, ...], tuple[tuple[fx.Node, str], ...]]:
    """The sites in forward order, their keys and queries marked as tokens; and the softmaxes that
    end in no site, with the reason."""
    sites: dict[fx.Node, Site] = {}
    without: list[tuple[fx.Node, str]] = []
    for node in graph.nodes:
        if name_of(node) in SOFTMAX and node in axes:
            found, reason = _descend(node, axes)
            for site in found:
                sites.setdefault(site.contraction, site)
            if (
                not found and val(node).shape[argument(node, 1, "dim", -1)] > 1
            ):  # over one element every weight is 1
                without.append((node, reason))
    return tuple(sites[node] for node in graph.nodes if node in sites), tuple(without)


def _descend(softmax: fx.Node, axes: dict[fx.Node, Axes]) -> tuple[list[Site], str]:
    """Follow the softmax's rows forward to the contractions over them: by the axis they lie along,
    or, where moves shear or cut them, by labels."""
    keys: dict[fx.Node, int | Tensor] = {
        softmax: argument(softmax, 1, "dim", -1) % val(softmax).dim()
    }
    found: list[Site] = []
    reason = "it enters no contraction over its own axis"
    labels = Labels()
    for node in softmax.graph.nodes:
        sources = (
            [i for i in node.all_input_nodes if i in keys] if node.op == "call_function" else []
        )
        if not sources or node is softmax:
            continue
        if name_of(node) in ("matmul", "bmm"):
            site, why = _contraction(node, keys, softmax, axes)
            if site is not None:
                found.append(site)
            reason = why or reason
        elif (after := rows_after(node, sources, keys, labels)) is not None:
            keys[node] = after
    return found, reason


def rows_after(
    node: fx.Node, sources: list[fx.Node], keys: dict[fx.Node, int | Tensor], labels: Labels
) -> int | Tensor | None:
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
    if isinstance(at, int) and name_of(node) in KEEPS_AXES:
        return axis_after(node, source, at)
    shape = tuple(getattr(val(node), "shape", ()))
    if (
        not isinstance(at, int)
        and name_of(node) in KEEPS_AXES - {"slice"}
        and shape == tuple(at.shape)
    ):
        return at
    marked = {
        s: m if isinstance(m := keys[s], Tensor) else rows(tuple(val(s).shape), m) for s in sources
    }
    return labels.push(node, marked)


def _contraction(
    node: fx.Node, keys: dict[fx.Node, int | Tensor], softmax: fx.Node, axes: dict[fx.Node, Axes]
) -> tuple[Site | None, str]:
    left, right = node.args[:2]
    if left in keys and right in keys:
        return None, "both operands of its product descend from it"
    attention, values, transposed = (left, right, False) if left in keys else (right, left, True)
    rank = val(attention).dim()
    over = rank - 2 if transposed else rank - 1
    if rank < 2 or val(values).dim() < 2 or not lies_along(keys[attention], over):
        return None, "the product does not sum over the softmax's axis"
    key_axis = axes[values][-1 if transposed else -2] if values in axes else ()
    if key_axis and all(atom.kind == "feature" for atom in key_axis):
        return None, "its keys are channels, not tokens"
    queries = axes[attention][rank - 1 if transposed else rank - 2]
    for atom in (a for axis in axes[attention][:-2] for a in axis):
        if (
            atom.kind == "unknown" and atom.group.root().of_leaf
        ):  # series that attend each for itself: positions of the input, too
            atom.group.root().kind = "token"
    if (
        not queries
    ):  # each query has keys of its own (values sampled for it): queries are where the batches are
        queries = tuple(atom for axis in axes[attention][:-2] for atom in axis)
    for atom in (a for a in (*key_axis, *axes[attention][over], *queries) if a.kind != "feature"):
        atom.group.root().kind = "token"
    return Site(node, attention, values, softmax, transposed), ""


def lies_along(where: int | Tensor, axis: int) -> bool:
    """Whether every row along ``axis`` holds elements of one row of the softmax, or of none."""
    if isinstance(where, int):
        return where == axis
    highest = where.amax(axis, keepdim=True)
    return bool(((where == highest) | (where == 0)).all()) and bool((where > 0).any())


def axis_after(node: fx.Node, source: fx.Node, axis: int) -> int | None:
    """Where the softmax's axis is after ``node``, or ``None`` where its keys or queries do not
    survive."""
    name, shape = name_of(node), val(source).shape
    if name in KEEPS_AXES or name in NORMS:
        return axis if getattr(val(node), "ndim", -1) == len(shape) else None
    if name == "permute":
        return [d % len(shape) for d in argument(node, 1, "dims")].index(axis)
    if name == "transpose":
        a, b = argument(node, 1, "dim0") % len(shape), argument(node, 2, "dim1") % len(shape)
        return {a: b, b: a}.get(axis, axis)
    if name in ("reshape", "unsqueeze", "squeeze", "flatten", "expand", "unflatten"):
        return _after_reshape(tuple(shape), tuple(val(node).shape), axis)
    if name == "linear" and axis != len(shape) - 1:
        return axis
    return axis if name == "conv2d" and axis > 1 and val(node).shape[axis] == shape[axis] else None


def _after_reshape(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
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
