"""Attention sites, found from structure: the contraction of what descends from a softmax with what does not, over the softmax's axis."""

from __future__ import annotations

import math

from torch import fx

from relprop.tracer.axes import Axes
from relprop.tracer.editing import argument, name_of, val
from relprop.tracer.program import Site

SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax"})
KEEPS_AXES = frozenset(
    "mul div add sub masked_fill where to type_as clamp clamp_min clamp_max nan_to_num detach softmax _safe_softmax pow relu neg contiguous slice".split()
)
NORMS = frozenset({"layer_norm", "batch_norm", "group_norm"})


def find_sites(graph: fx.Graph, axes: dict[fx.Node, Axes]) -> tuple[tuple[Site, ...], tuple[tuple[fx.Node, str], ...]]:
    """The sites in forward order, their keys and queries marked as tokens; and the softmaxes that end in no site, with the reason."""
    sites: dict[fx.Node, Site] = {}
    without: list[tuple[fx.Node, str]] = []
    for node in graph.nodes:
        if name_of(node) in SOFTMAX and node in axes:
            found, reason = _descend(node, axes)
            for site in found:
                sites.setdefault(site.contraction, site)
            if not found:
                without.append((node, reason))
    return tuple(sites[node] for node in graph.nodes if node in sites), tuple(without)


def _descend(softmax: fx.Node, axes: dict[fx.Node, Axes]) -> tuple[list[Site], str]:
    """Follow the softmax's axis forward to the contractions over it."""
    keys = {softmax: argument(softmax, 1, "dim", -1) % val(softmax).dim()}
    found: list[Site] = []
    reason = "it enters no contraction over its own axis"
    for node in softmax.graph.nodes:
        sources = [i for i in node.all_input_nodes if i in keys] if node.op == "call_function" else []
        if not sources or node is softmax:
            continue
        if name_of(node) in ("matmul", "bmm"):
            site, why = _contraction(node, keys, softmax, axes)
            if site is not None:
                found.append(site)
            reason = why or reason
        elif (axis := _axis_after(node, sources[0], keys[sources[0]])) is not None:
            keys[node] = axis
    return found, reason


def _contraction(node: fx.Node, keys: dict[fx.Node, int], softmax: fx.Node, axes: dict[fx.Node, Axes]) -> tuple[Site | None, str]:
    left, right = node.args[:2]
    if left in keys and right in keys:
        return None, "both operands of its product descend from it"
    attention, values, transposed = (left, right, False) if left in keys else (right, left, True)
    rank = val(attention).dim()
    over = rank - 2 if transposed else rank - 1
    if rank < 2 or val(values).dim() < 2 or keys[attention] != over:
        return None, "the product does not sum over the softmax's axis"
    key_axis = axes[values][-1 if transposed else -2] if values in axes else ()
    if any(atom.kind == "feature" for atom in key_axis):
        return None, "its keys are channels, not tokens"
    queries = axes[attention][rank - 1 if transposed else rank - 2]
    for atom in (*key_axis, *axes[attention][over], *(a for a in queries if a.kind != "feature")):
        atom.group.root().kind = "token"
    return Site(node, attention, values, softmax, transposed), ""


def _axis_after(node: fx.Node, source: fx.Node, axis: int) -> int | None:
    """Where the softmax's axis is after ``node``, or ``None`` where its keys or queries do not survive."""
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
    inner = math.prod(before[axis + 1:])
    return next((i for i, size in enumerate(after) if size == before[axis] and math.prod(after[i + 1:]) == inner), None)
