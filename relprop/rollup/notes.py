"""What each node's roll-up rule needs to know and only the whole graph can tell: token axes,
windows, pooling, what operands carry."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor, fx
from torch.nn import functional as F

from relprop.operations import Kind, argument, is_call, kind, of, operand
from relprop.rules.notes import (
    ConvolutionNote,
    FieldNote,
    Folded,
    LinearNote,
    ProductNote,
    ReductionNote,
    SiteNote,
)
from relprop.tracer.atoms import Axes, is_token, length, parts_of, token_count
from relprop.tracer.editing import aten, dims_of, tensor_inputs, val
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site

#: What may put one position at several places.
REPEATING = frozenset({Kind.INDEX, Kind.GATHER, Kind.REPEAT, Kind.VIEW, Kind.WINDOWS})
REDUCED = frozenset({Kind.TOTAL, Kind.STATISTIC})
ROUTED = frozenset({Kind.EXTREMUM, Kind.LARGEST, Kind.MAX_POOL, Kind.PICK, Kind.GATHER, Kind.INDEX})


def rollup_notes(program: Program, flow: Flow, sites: tuple[Site, ...]) -> dict[fx.Node, FieldNote]:
    """What each node's roll-up rule needs to know."""
    notes: dict[fx.Node, FieldNote] = {}
    for node in flow.nodes:
        value, tokens = val(node), tuple(map(is_token, program.axes.get(node, ())))
        shape = tuple(value.shape) if isinstance(value, Tensor) else ()  # of several results none
        notes[node] = replace(_note(program, flow, node), token_axes=tokens, shape=shape)
    for node, note in list(notes.items()):
        pools = isinstance(note, ReductionNote) and kind(node) is Kind.TOTAL and note.pooled > 1
        if pools and (masked := _masked(node, flow)) is not None:
            product, axes = masked
            notes[product] = replace(notes[product], weighed=axes)
    for site in sites:
        if site.contraction in notes:
            note = notes[site.contraction]
            notes[site.contraction] = SiteNote(
                note.token_axes, shape=note.shape, transposed=site.transposed
            )
    return notes


def _note(program: Program, flow: Flow, node: fx.Node) -> FieldNote:
    """What can be told of a node from its operand's axes and its own."""
    what = kind(node)
    source = next(iter(flow.inputs[node]), None)
    source_axes = program.axes.get(source, ()) if source is not None else ()
    if what is Kind.LINEAR and source_axes:
        last = source_axes[-1]
        pieces = tuple((length(a), token_count(a)) for a in parts_of(last) or (last,))
        return LinearNote(folded=pieces, mixes=is_token(last))
    if what in REDUCED and source is not None:
        reduced = tuple(dims_of(node)) if val(source).dim() else ()
        counts = (token_count(source_axes[i]) for i in reduced)
        return ReductionNote(reduced=reduced, pooled=math.prod(counts) if source_axes else 1)
    if what is Kind.CONVOLUTION:
        return _convolution(node, source_axes)
    if what is Kind.MATMUL:
        return _product(node, program, flow)
    picks = what in ROUTED or is_call(node, aten.scatter_reduce)
    routed = picks and len(flow.inputs[node]) == 1 and bool(source_axes)
    return FieldNote(
        adds=_repeats_tokens(node, source_axes),
        routed=_routed(node, source_axes) if routed else (),
    )


def _routed(node: fx.Node, source_axes: Axes) -> tuple[Folded, ...]:
    """The axes along which each feature takes the position of its own: where its maximum is, or
    where an index points, which may be another for each head."""
    rank = len(source_axes)
    over: tuple[int, ...] = ()
    if kind(node) is Kind.GATHER or is_call(node, aten.scatter_reduce):
        over = (argument(node, "dim") % rank,)
    elif kind(node) is Kind.INDEX:
        over = tuple(i for i, index in enumerate(argument(node, "indices")) if index is not None)
        if all(is_token(source_axes[i]) for i in over):  # whole tokens, with all their features
            return ()
    elif kind(node) is Kind.LARGEST:
        over = tuple(dims_of(node))
    elif kind(node) is Kind.MAX_POOL:
        over = tuple(range(2, rank))
    folded = (
        Folded(i, tuple(a.size for a in axis), tuple(a.kind == "token" for a in axis))
        for i, axis in enumerate(source_axes)
        if i in over
    )
    return tuple(f for f in folded if any(f.tokens))


def _masked(pool: fx.Node, flow: Flow) -> tuple[fx.Node, tuple[int, ...]] | None:
    """The product with a constant (or the fill by one) that ``pool`` sums or averages, and over
    which axes."""
    node = flow.inputs[pool][0]
    while kind(node) is Kind.CAST and len(flow.inputs[node]) == 1:
        node = flow.inputs[node][0]
    alone = (
        len(flow.inputs[node]) == 1
        and len(tensor_inputs(node)) > 1
        and sum(u in flow.members for u in node.users) == 1
    )
    if not alone or kind(node) not in (Kind.PRODUCT, Kind.QUOTIENT, Kind.CHOICE):
        return None
    return node, tuple(dims_of(pool))


def _convolution(node: fx.Node, source_axes: Axes) -> ConvolutionNote:
    """How a convolution's windows lie, and whether it is depthwise (its channels then stay
    apart)."""
    what, weight, channels = of(node), val(node.args[1]), val(node.args[0]).shape[1]
    function = f"conv{'_transpose' if what.transposed else ''}{what.axes}d"
    names = ("stride", "padding", "output_padding", "dilation")
    options = {n: v for n in names if (v := argument(node, n)) is not None}
    groups = argument(node, "groups") or 1
    depthwise = groups == channels == val(node).shape[1] and weight.shape[1] == 1
    return ConvolutionNote(
        convolution=getattr(F, function),
        options=options,
        depthwise=channels if depthwise else 1,
        folded=token_count(source_axes[1]) if source_axes and not depthwise else 1,
    )


def _product(node: fx.Node, program: Program, flow: Flow) -> ProductNote:
    """What a matrix product sums over, which of its rows and columns are tokens, and which operand
    only says how tokens are mixed."""
    left, right = operand(node, 0), operand(node, 1)
    a, b = (program.axes.get(n) if n in flow.members else None for n in (left, right))
    summed = [axes[i] for axes, i in ((a, -1), (b, -2 if val(right).dim() > 1 else -1)) if axes]
    rows, columns = (
        axes is not None and len(axes) > 1 and is_token(axes[i]) for axes, i in ((a, -2), (b, -1))
    )
    over_tokens = any(token_count(axis) > 1 for axis in summed)
    mixers = [
        i
        for i, (axes, tokens) in enumerate(((a, rows), (b, columns)))
        if axes is None or (over_tokens and tokens)
    ]
    return ProductNote(
        over_tokens=over_tokens,
        token_rows=rows,
        token_columns=columns,
        mixer=mixers[0] if over_tokens and len(mixers) == 1 else None,
    )


def _repeats_tokens(node: fx.Node, source_axes: Axes) -> bool:
    """Whether one token position of the input may stand at several of the output: an index or a
    window along a token axis."""
    what = kind(node)
    if not source_axes or what not in REPEATING:
        return False
    rank = len(source_axes)
    if what is Kind.INDEX:
        axes = [i for i, index in enumerate(node.args[1]) if index is not None]  # type: ignore[arg-type]
    elif (
        what is Kind.REPEAT
        and argument(node, "dim") is None
        and argument(node, "output_size") is None
        and not isinstance(node.args[1], fx.Node)
    ):
        repeats = list(node.args[1])[-rank:]  # type: ignore[arg-type]
        axes = [i for i, k in enumerate(repeats, rank - len(repeats)) if k > 1]
    elif what is Kind.WINDOWS:
        axes = list(range(1, rank))
    else:
        dim = argument(node, "dim")
        dim = argument(node, "dimension") if dim is None else dim
        axes = list(range(rank)) if dim is None else [dim % rank]
    return any(atom.kind == "token" for i in axes for atom in source_axes[i])
