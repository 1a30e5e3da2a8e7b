"""What each node's roll-up rule needs to know and only the whole graph can tell: token axes,
windows, pooling, what operands carry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import fx

from relprop.rollup.merges import Merges, is_merge
from relprop.rules import operations as ops
from relprop.tracer.axes import is_token, token_count
from relprop.tracer.composites import find_composites
from relprop.tracer.editing import argument, name_of, tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, packet

REPEATING = frozenset(
    "index index_select gather take_along_dim repeat tile repeat_interleave unfold im2col".split()
)


def rollup_notes(
    program: Program, flow: Flow, sites: tuple[Site, ...]
) -> dict[fx.Node, dict[str, Any]]:
    """What each node's roll-up rule needs to know."""
    composites = find_composites(flow)
    inside = {n for c in composites for n in c.inner}
    merges = [n for n in flow.nodes if is_merge(n, flow)]
    notes: dict[fx.Node, dict[str, Any]] = {}
    for node in flow.nodes:
        axes = program.axes.get(node, ())
        note: dict[str, Any] = {"token_axes": tuple(is_token(axis) for axis in axes)}
        source = next((i for i in flow.inputs[node]), None)
        source_axes = program.axes.get(source, ()) if source is not None else ()
        if name_of(node) == "linear" and source_axes:
            note["folded"] = token_count(source_axes[-1])
        if packet(node) in ops.REDUCE and source is not None:
            note["reduced"] = _reduced(node, val(source).dim())
            note["pooled"] = (
                math.prod(token_count(source_axes[i]) for i in note["reduced"])
                if source_axes
                else 1
            )
        if packet(node) in ops.CONV:
            note.update(_convolution(node))
            note["folded"] = (
                token_count(source_axes[1]) if source_axes and note["depthwise"] == 1 else 1
            )
        if (
            packet(node) in (*ops.ROUTE, *ops.GATHER)
            and len(flow.inputs[node]) == 1
            and source_axes
        ):
            note["routed"] = _routed(node, source_axes)
        if packet(node) in ops.MATMUL:
            note.update(_product(node, program))
        if _repeats_tokens(node, source_axes):
            note["adds"] = True
        notes[node] = note
    for node in flow.nodes:
        if (
            name_of(node) in ("mean", "sum")
            and notes[node]["pooled"] > 1
            and (masked := _masked(node, flow)) is not None
        ):
            notes[masked[0]]["weighed"] = masked[1]
    for site in sites:
        if site.contraction in notes:
            notes[site.contraction]["transposed"] = site.transposed
    contractions = {site.contraction for site in sites}
    for composite in composites:
        for node in composite.inner:
            notes[node]["carries"] = _within(node, composite.input, composite.inner, flow)
    outer = Merges(flow, sites, inside, program.axes)
    products = [
        n
        for n in flow.nodes
        if packet(n) in ops.MATMUL and len(flow.inputs[n]) > 1 and n not in contractions
    ]
    for node in (*merges, *products):
        if node not in inside:
            notes[node]["carries"] = outer.carries(node)
    return notes


def _within(
    node: fx.Node, source: fx.Node, inner: frozenset[fx.Node], flow: Flow
) -> tuple[float, ...]:
    """Inside a norm written out, the field goes straight to its input: the way over statistics
    carries nothing."""
    operands = tensor_inputs(node)
    chain = [o for o in operands if o in flow.members]
    first = next(
        (o for o in chain if o is source),
        next((o for o in chain if _pointwise_to(o, source, flow)), chain[0] if chain else None),
    )
    taken = False
    weights = []
    for o in operands:
        weights.append(1.0 if o is first and not taken else 0.0)
        taken = taken or o is first
    return tuple(weights)


def _pointwise_to(node: fx.Node, source: fx.Node, flow: Flow) -> bool:
    return val(node).shape == val(source).shape and flow.reaches(source, node)


def _reduced(node: fx.Node, rank: int) -> tuple[int, ...]:
    """The axes that a reduction takes away (or keeps at length 1)."""
    dims = argument(node, 2 if name_of(node) in ("linalg_vector_norm", "norm") else 1, "dim")
    if dims is None or dims == [] or isinstance(dims, bool):
        return tuple(range(rank))
    return tuple(d % rank for d in ([dims] if isinstance(dims, int) else dims)) if rank else ()


def _routed(node: fx.Node, source_axes: Any) -> tuple[int, ...]:
    """The token axes along which each feature takes the position of its own: where its maximum is,
    or where an index computed per feature points."""
    rank = len(source_axes)
    over: tuple[int, ...]
    if name_of(node) == "gather":
        index = node.args[2]
        apart = index.meta["batched"] and name_of(index) not in ("expand", "repeat", "tile")  # type: ignore[union-attr, arg-type]
        over = (argument(node, 1, "dim") % rank,) if apart else ()
    elif name_of(node) in ("amax", "amin"):
        over = _reduced(node, rank)
    else:
        over = tuple(range(2, rank)) if "pool" in name_of(node) else ()
    return over if all(is_token(source_axes[i]) for i in over if source_axes[i]) else ()


def _masked(pool: fx.Node, flow: Flow) -> tuple[fx.Node, tuple[int, ...]] | None:
    """The product with a constant (or the fill by one) that ``pool`` sums or averages, and over
    which axes."""
    node = flow.inputs[pool][0]
    while name_of(node) in ("to", "type_as") and len(flow.inputs[node]) == 1:
        node = flow.inputs[node][0]
    alone = (
        len(flow.inputs[node]) == 1
        and len(tensor_inputs(node)) > 1
        and sum(u in flow.members for u in node.users) == 1
    )
    if not alone or packet(node) not in (*ops.PRODUCT, *ops.packets("masked_fill where")):
        return None
    return node, _reduced(pool, val(node).dim())


def _convolution(node: fx.Node) -> Mapping[str, Any]:
    """How a convolution's windows lie, and whether it is depthwise (its channels then stay
    apart)."""
    name, weight, channels = name_of(node), val(node.args[1]), val(node.args[0]).shape[1]
    names = (
        ("stride", "padding", "output_padding", "groups", "dilation")
        if "transpose" in name
        else ("stride", "padding", "dilation", "groups")
    )
    options = {n: argument(node, 3 + i, n) for i, n in enumerate(names)}
    groups = options.pop("groups") or 1
    depthwise = groups == channels == val(node).shape[1] and weight.shape[1] == 1
    return {
        "convolution": name,
        "options": {n: v for n, v in options.items() if v is not None},
        "depthwise": channels if depthwise else 1,
    }


def _product(node: fx.Node, program: Program) -> Mapping[str, Any]:
    """What a matrix product sums over, which of its rows and columns are tokens, and which operand
    only says how tokens are mixed."""
    left, right = node.args[:2]
    a, b = program.axes.get(left), program.axes.get(right)
    summed = [axes[i] for axes, i in ((a, -1), (b, -2 if val(right).dim() > 1 else -1)) if axes]
    rows, columns = (
        axes is not None and len(axes) > 1 and is_token(axes[i]) for axes, i in ((a, -2), (b, -1))
    )
    over_tokens = any(axis and not any(atom.kind == "feature" for atom in axis) for axis in summed)
    mixers = [
        i
        for i, (axes, tokens) in enumerate(((a, rows), (b, columns)))
        if axes is None or (over_tokens and tokens)
    ]
    return {
        "over_tokens": over_tokens,
        "token_rows": rows,
        "token_columns": columns,
        "mixer": mixers[0] if over_tokens and len(mixers) == 1 else None,
    }


def _repeats_tokens(node: fx.Node, source_axes: Any) -> bool:
    """Whether one token position of the input may stand at several of the output: an index or a
    window along a token axis."""
    name = name_of(node)
    if not source_axes or name not in REPEATING:
        return False
    rank = len(source_axes)
    if name == "index":
        axes = [i for i, index in enumerate(node.args[1]) if index is not None]
    elif name in ("repeat", "tile"):
        repeats = list(node.args[1])[-rank:]
        axes = [i for i, k in enumerate(repeats, rank - len(repeats)) if k > 1]
    elif name == "im2col":
        axes = list(range(1, rank))
    else:
        late = name in ("repeat_interleave", "take_along_dim")  # after what repeats, or the indices
        dim = argument(node, 2 if late else 1, "dim", None if late else 0)
        axes = list(range(rank)) if dim is None else [dim % rank]
    return any(atom.kind == "token" for i in axes for atom in source_axes[i])
