"""Lanes: the same computation several times side by side, for each head, query, key or chunk, then
put together. Merged, it is one computation with one more axis, or with a longer one.

Two ways, tried at every ``cat``. *Longer*: cat(f(x_1), ..., f(x_n)) = f(cat(x_1, ..., x_n)) where f
treats the positions of that axis apart; pieces may be unequal. *Lifted*: each lane is a place on a
new first axis, parallel linear maps become one. What enters the lanes must be the same tensor for
all, pieces of one tensor, or parameters: towers that only look alike are left alone.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import fx

from relprop.operations import Kind, argument, is_call, kind
from relprop.operations.vocabulary import grouped_linear
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    dims_of,
    emit,
    is_float,
    is_live,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.alike import (
    Apart,
    Lanes,
)
from relprop.tracer.passes.lifted import Known, lifted, on_an_axis
from relprop.tracer.passes.longer import longer
from relprop.tracer.passes.products import Product, as_linear, letters_of, product_of
from relprop.tracer.passes.split import joined_linear
from relprop.tracer.passes.sums import (
    added,
    is_scaled,
    is_top,
    join_terms,
    position,
    scale_of,
    terms_of,
)

#: What makes lanes worth merging: rules or methods see the pieces apart.
WORTH = frozenset({Kind.SOFTMAX, Kind.LINEAR, Kind.MATMUL, Kind.NORM, Kind.SUM, Kind.TOTAL})


def merge_lanes(graph: fx.Graph) -> None:
    """Merge the lanes at every ``cat`` whose parts do more than move."""
    known: Known = {}
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.cat) or not is_live(node):
            continue
        new = _merged(node, known) or _in_runs(node, known)
        if new is not None:
            swap(node, new)
    graph.eliminate_dead_code()


def _merged(node: fx.Node, known: Known) -> fx.Node | None:
    """The lanes at a ``cat`` as one; ``known``: those that are one already."""
    parts, dim = tuple(node.args[0]), node.args[1]  # type: ignore[arg-type]
    if len(parts) < 2 or any(not is_live(p) for p in parts) or not _worth(parts):  # type: ignore[arg-type]
        return None
    for attempt in (longer, partial(lifted, known=known)):
        mark = node.prev
        try:
            return attempt(node, parts, dim)  # type: ignore[arg-type, call-arg]
        except Apart:
            _undo(node, mark)
    return None


def _in_runs(node: fx.Node, known: Known) -> fx.Node | None:
    """A ``cat`` in which some neighbours are lanes (tokens made one by one, beside others)."""
    parts, dim = node.args[:2]
    made: list[fx.Node] = []
    for how, run in groupby(parts, lambda p: (p.op, kind(p), _made_by(p)) if is_live(p) else None):  # type: ignore[arg-type]
        lanes = list(run)
        if how is not None and 1 < len(lanes) < len(parts):  # type: ignore[arg-type]
            beside = emit(node, aten.cat.default, lanes, dim)
            merged = _merged(beside, known)
            node.graph.erase_node(beside)
            lanes = lanes if merged is None else [merged]
        made += lanes
    return emit(node, aten.cat.default, made, dim) if len(made) < len(parts) else None  # type: ignore[arg-type]


def merge_projections(graph: fx.Graph) -> None:
    """Σ W_i x_i of lanes x_i that are merged (heads, each with its own part of the output
    projection) → W x of the lanes side by side."""

    def made_by(n: fx.Node) -> tuple[Any, ...] | None:
        return _made_by(n) if is_call(n, aten.linear) and len(n.users) == 1 else None

    join_terms(graph, made_by, _projected)


def merge_weighted(graph: fx.Graph, constants: Constants) -> None:
    """Σ_i g_i·f_i(x), lanes each times a weight of its own (experts, each with its share) → the
    product of the lanes side by side with their weights."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        parts = [(n, *_unscaled(n)) for sign, n in terms if sign > 0]
        parts = [(n, _with_mask(node, product, constants), scale) for n, product, scale in parts]
        parts = [part for part in parts if _is_weighted(part[1])]
        alike = len(parts) > 1 and len({scale for *_, scale in parts}) == 1
        made = _weighted(node, tuple(product for _, product, _ in parts)) if alike else None
        if made is not None:
            scale, gone = parts[0][2], [n for n, *_ in parts]
            made = made if scale == 1 else emit(node, aten.mul.Tensor, made, scale)
            rest = [(sign, n) for sign, n in terms if n not in gone]
            swap(node, added(node, [*rest, (1, made)]))
    graph.eliminate_dead_code()


def _unscaled(node: fx.Node) -> tuple[fx.Node, float]:
    """What a number multiplies, and that number."""
    way: list[fx.Node] = []
    while is_scaled(node) and len(node.users) == 1:
        way.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return node, scale_of(way)


def _with_mask(at: fx.Node, node: fx.Node, constants: Constants) -> fx.Node:
    """Rows that are 0 but where a mask says, a factor of a product maybe → times that mask, which
    goes with the smaller of two factors."""
    if len(node.users) != 1:
        return node
    if is_call(node, aten.mul) and all(is_tensor(f) for f in node.args):
        factors = [_with_mask(at, f, constants) for f in node.args]  # type: ignore[arg-type]
        return node if factors == [*node.args] else emit(at, aten.mul.Tensor, *factors)
    if kind(node) is Kind.RESHAPE:
        return _laid_out(at, node, _with_mask(at, node.args[0], constants))  # type: ignore[arg-type]
    if is_call(node, aten.where) and constants.number(node.args[2]) == 0:
        mask, kept = node.args[:2]
    elif is_call(node, aten.masked_fill) and constants.number(node.args[2]) == 0:
        kept, mask = node.args[0], emit(at, aten.logical_not.default, node.args[1])
    else:
        return node
    if not is_live(mask) or shape_of(mask)[-1:] != [1] or not is_float(kept):
        return node
    small, large = emit(at, aten.to.dtype, mask, val(kept).dtype), kept
    if _is_weighted(kept):  # type: ignore[arg-type]
        factor, large = sorted(kept.args[:2], key=lambda x: val(x).numel())  # type: ignore[union-attr]
        small = emit(at, aten.mul.Tensor, small, factor)
    made = emit(at, aten.mul.Tensor, small, large)
    return made if shape_of(made) == shape_of(node) else node


def _laid_out(at: fx.Node, node: fx.Node, product: fx.Node) -> fx.Node:
    """A product of rows with one number each, in another shape of the same rows: of its factors."""
    shape, given = shape_of(node), shape_of(product)
    if not _is_weighted(product) or not given or shape[-1:] != given[-1:]:
        return node
    sizes = [[*given[:-1], 1], given]
    small, large = sorted(product.args[:2], key=lambda x: val(x).numel())  # type: ignore[union-attr]
    if [shape_of(small), shape_of(large)] != sizes:
        return node
    parts = reshaped(at, small, [*shape[:-1], 1]), reshaped(at, large, shape)  # type: ignore[arg-type]
    return emit(at, aten.mul.Tensor, *parts)


def _is_weighted(node: fx.Node) -> bool:
    """Whether a call that no two others read multiplies two activations."""
    factors = node.args[:2]
    return (
        is_call(node, aten.mul) and len(node.users) < 2 and all(is_tensor(f) for f in factors)
    ) and all(is_live(f) for f in factors)


def _weighted(at: fx.Node, parts: Lanes) -> fx.Node | None:
    """The sum of products as one product; ``None`` where they are not lanes of one computation."""
    mark = at.prev
    if not _worth(parts):
        return None
    try:
        product = on_an_axis(at, parts, {})
    except Apart:
        _undo(at, mark)
        return None
    total = emit(at, aten.sum.dim_IntList, _of_two(at, product, rank(parts[0])), [0])
    p = letters_of(total)
    if p is None:
        _undo(at, mark)
        return None
    return reshaped(at, product_of(at, p), shape_of(total))


def _of_two(at: fx.Node, product: fx.Node, width: int) -> fx.Node:
    """A product of lanes on a first axis as one of two lanes' tensors: factors that are the same
    for all lanes, which have ``width`` axes or fewer, go with the smaller of the two."""
    factors: list[fx.Node] = []
    while is_call(product, aten.mul) and all(is_tensor(x) for x in product.args[:2]):
        one = [x for x in product.args[:2] if rank(x) <= width]
        if len(one) != 1:
            break
        (product,) = (x for x in product.args[:2] if x is not one[0])  # type: ignore[assignment]
        factors += one  # type: ignore[arg-type]
    if not factors or not is_call(product, aten.mul):
        return product
    small, large = sorted(product.args[:2], key=lambda x: val(x).numel())
    for factor in factors:
        small = emit(at, aten.mul.Tensor, small, factor)
    return emit(at, aten.mul.Tensor, small, large)


def join_groups(graph: fx.Graph) -> None:
    """Σ_g W_g x_g, the results of a linear map for each group summed over the groups → W x of the
    groups side by side (each head's own result)."""
    for node in list(graph.nodes):
        if is_call(node, aten.sum) and is_live(node) and (new := _of_groups(node)) is not None:
            swap(node, new)
    graph.eliminate_dead_code()


def _of_groups(node: fx.Node) -> fx.Node | None:
    way: list[fx.Node] = []
    layer: Any = node.args[0]
    while kind(layer) in (Kind.RESHAPE, Kind.PERMUTE) and len(layer.users) == 1:
        way.insert(0, layer)
        layer = layer.args[0]
    summed = [d for d in dims_of(node) if shape_of(node.args[0])[d] > 1]
    if not is_call(layer, grouped_linear) or len(layer.users) != 1 or len(summed) != 1:
        return None
    if rank(layer) != 3 or is_live(layer.args[1]) or len(layer.args) > 2 or argument(node, "dtype"):
        return None
    groups, rows, width = shape_of(layer)
    places = torch.arange(groups * rows * width).reshape(groups, rows, width)
    for move in way:
        places = move.target(places, *move.args[1:])  # type: ignore[operator]
    places = places.movedim(summed[0], 0)
    own = torch.arange(rows * width).reshape(places.shape[1:])
    steps = torch.arange(groups).reshape(-1, *[1] * own.dim()) * rows * width
    if len(places) != groups or not torch.equal(places, own + steps):
        return None
    x, weight = layer.args
    made = as_linear(node, Product(x, "gnk", weight, "gmk", "nm"))
    return None if made is None else reshaped(node, made, shape_of(node))


def _made_by(node: fx.Node) -> tuple[Any, ...]:
    """How what a layer reads is made, down to the first call that is worth merging: other lanes
    than a sum's other terms (an MLP, a shortcut) are made otherwise."""
    way: list[Any] = []
    while node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        way.append((node.op, kind(node)))
        if kind(node) in WORTH:
            break
    return tuple(way)


def _projected(at: fx.Node, parts: list[fx.Node]) -> fx.Node | None:
    """The sum of some layers as one layer of their lanes side by side."""
    xs = [p.args[0] for p in parts]
    beside = emit(at, aten.cat.default, xs, rank(xs[0]) - 1)
    merged = _merged(beside, {})
    if merged is None:
        at.graph.erase_node(beside)
        return None
    return joined_linear(at, merged, parts)


def fold_rows(graph: fx.Graph) -> None:
    """A matrix product with one row for each place of an axis that its other operand has not → one
    with that axis as its rows (queries that were taken one by one)."""
    for node in list(graph.nodes):
        if is_call(node, aten.matmul) and (new := _apart(node)) is not None:
            swap(node, new)
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.matmul):
            continue
        p = letters_of(node)
        assert p is not None
        trimmed, sizes = p.trimmed(node), p.sizes()
        n, m = p.out[-2], p.out[-1]
        rows = [
            c
            for c in trimmed.x_axes
            if c in p.out[:-2] and c not in trimmed.w_axes and sizes[c] > 1
        ]
        columns = [
            c
            for c in trimmed.w_axes
            if c in p.out[:-2] and c not in trimmed.x_axes and sizes[c] > 1
        ]
        if (rows and sizes[n] == 1) or (columns and sizes[m] == 1):
            swap(node, reshaped(node, product_of(node, p), shape_of(node)))
    graph.eliminate_dead_code()


def _apart(node: fx.Node) -> fx.Node | None:
    """A product of single rows whose places were merged with its batch: its other operand was
    repeated for each of them (``vmap`` over queries)."""
    x, laid = node.args[:2]
    copies: Any = laid.args[0] if kind(laid) is Kind.RESHAPE else None  # type: ignore[union-attr]
    if copies is None or kind(copies) is not Kind.EXPAND or shape_of(x)[-2] != 1:
        return None
    batch, one = shape_of(copies)[:-2], copies.args[0]
    first = rank(copies) - rank(one)
    if shape_of(copies)[-2:] != shape_of(laid)[-2:] or shape_of(x)[:-2] != shape_of(laid)[:-2]:
        return None
    if first != 1 or shape_of(one) != shape_of(copies)[1:]:
        return None
    made = emit(node, aten.matmul.default, reshaped(node, x, [*batch, 1, shape_of(x)[-1]]), one)  # type: ignore[arg-type]
    return reshaped(node, made, shape_of(node))


def _undo(node: fx.Node, mark: fx.Node) -> None:
    """Erase what an attempt left between ``mark`` and ``node``."""
    while node.prev is not mark:
        node.graph.erase_node(node.prev)


def _worth(parts: Lanes) -> bool:
    """Whether the lanes do something of their own that a rule would see apart, and none of them
    reads another."""
    own = _own(parts)
    if own is None:
        return False
    return _multiply_in_turn(parts) or any(
        kind(n) in WORTH and len(n.all_input_nodes) > 0 for n in own
    )


def _multiply_in_turn(parts: Lanes) -> bool:
    """Whether the lanes are products of one tensor's positions along an axis with another's, one
    after another."""
    products: list[Any] = list(parts)
    while all(kind(p) is Kind.RESHAPE for p in products):
        products = [p.args[0] for p in products]
    if not all(_is_weighted(p) for p in products):
        return False
    for factors in ([p.args[i] for p in products] for i in (0, 1)):
        places = [_place_of(f) for f in factors]
        first = places[0]
        if first is None or places != [(*first[:2], first[2] + i) for i in range(len(places))]:
            return False
    return True


def _place_of(factor: Any) -> tuple[fx.Node, int, int] | None:
    """Of which tensor a factor is a position, in whatever shape and times whatever number."""
    while kind(factor) in (Kind.RESHAPE, Kind.PERMUTE) or is_scaled(factor):
        factor = factor.args[0]
    return position(factor)


def _own(parts: Lanes) -> set[fx.Node] | None:
    """What only some lanes need; ``None`` where one is made from another, or they are the same."""
    if len(set(parts)) < len(parts):
        return None
    above = [_above(p) for p in parts]
    if any(p in a for i, a in enumerate(above) for j, p in enumerate(parts) if i != j):
        return None
    shared = set.intersection(*above)
    return {n for a in above for n in a if n not in shared} | set(parts)


def _above(node: fx.Node) -> set[fx.Node]:
    found: set[fx.Node] = set()
    left = [node]
    while left:
        for above in left.pop().all_input_nodes:
            if above not in found and is_live(above):
                found.add(above)
                left.append(above)
    return found
