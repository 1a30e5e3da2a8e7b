"""Sums of tensors: a bias is its linear map's own, a sum of three is one sum, positions added one
by one are a sum along their axis, and a matrix of constants is what its numbers say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind
from relprop.operations.vocabulary import WrittenNorm, grouped_linear, sum_of
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    is_picked,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.passes.numbers import total_of_parts

Terms = list[tuple[int, fx.Node]]


def terms_of(node: fx.Node) -> Terms:
    """The terms of a sum of sums, with their signs: sums that nothing else reads are part of it."""
    found: Terms = []
    left: list[tuple[int, Any]] = [(1, node)]
    while left:
        sign, here = left.pop()
        alone = here is node or (isinstance(here, fx.Node) and len(here.users) == 1)
        if alone and is_call(here, aten.neg):
            left.append((-sign, here.args[0]))
        elif alone and is_sum(here):
            turned = -sign if is_call(here, aten.sub) else sign
            left += [*((turned, other) for other in here.args[:0:-1]), (sign, here.args[0])]
        else:
            found.append((sign, here))
    return found


def is_sum(node: Any) -> bool:
    """Whether a node adds or subtracts two tensors or more of its own type."""
    if not isinstance(node, fx.Node) or kind(node) is not Kind.SUM or not is_float(node):
        return False
    return all(is_float(a) and val(a).dtype == val(node).dtype for a in node.args)


def is_top(node: fx.Node) -> bool:
    """Whether a sum is no term of another."""
    if not is_sum(node) or not is_live(node):
        return False
    user = next(iter(node.users)) if len(node.users) == 1 else None
    while is_call(user, aten.neg) and len(user.users) == 1:  # type: ignore[union-attr]
        user = next(iter(user.users))  # type: ignore[union-attr]
    return user is None or not is_sum(user)


def added(at: fx.Node, terms: Terms) -> fx.Node:
    """The sum of terms: of two, ``add`` or ``sub``; of more, one operation."""
    nodes = [n if sign > 0 else emit(at, aten.neg.default, n) for sign, n in terms]
    if len(nodes) == 1:
        return nodes[0]
    if len(nodes) > 2:
        return emit(at, sum_of, *nodes)
    (first, a), (second, b) = terms
    if first > 0:
        return emit(at, aten.add.Tensor if second > 0 else aten.sub.Tensor, a, b)
    return emit(at, aten.sub.Tensor, b, a) if second > 0 else emit(at, aten.add.Tensor, *nodes)


def join_terms(
    graph: fx.Graph,
    key: Callable[[fx.Node], Any],
    join: Callable[[fx.Node, list[fx.Node]], fx.Node | None],
) -> None:
    """In every sum, two terms or more that are added and have one ``key`` (``None``: none) → what
    ``join`` makes of them there, if anything."""
    for node in list(graph.nodes):
        if node._erased or not is_top(node):
            continue
        terms, groups = terms_of(node), defaultdict[Any, list[fx.Node]](list)
        for sign, n in terms:
            if sign > 0 and (found := key(n)) is not None:
                groups[found].append(n)
        several = [parts for parts in groups.values() if len(parts) > 1]
        joined = [(new, parts) for parts in several if (new := join(node, parts)) is not None]
        if joined:
            gone = {n for _, parts in joined for n in parts}
            rest = [(sign, n) for sign, n in terms if n not in gone]
            swap(node, added(node, [*rest, *((1, new) for new, _ in joined)]))
    graph.eliminate_dead_code()


# ---- biases


def join_biases(graph: fx.Graph) -> None:
    """What is added to a linear map, a convolution or a norm and is the same at every position is
    its bias, wherever in the sum it stands."""
    for node in list(graph.nodes):
        while not node._erased and is_top(node):
            terms = terms_of(node)
            found = next(_pairs_with_bias(terms), None)
            if found is None:
                break
            new = _with_bias(node, terms, *found)
            if new is None:
                break
            swap(node, new)
            node = new
            if kind(new) is not Kind.SUM:
                break


def _pairs_with_bias(terms: Terms) -> Iterator[tuple[int, int]]:
    """Which term has a layer that another is the bias of. A layer that has one takes no part of
    what is added to every position, if that is a sum of tensors."""
    fixed = [n for _, n in terms if not is_live(n)]
    for b, (_, bias) in enumerate(terms):
        if is_live(bias) and not is_picked(bias):
            continue
        for t in sorted(range(len(terms)), key=lambda t: (t > b, abs(t - b))):
            found = _bias_for(terms[t][1], bias) if is_live(terms[t][1]) else None
            if found is None:
                continue
            others = [n for n in fixed if _bias_for(terms[t][1], n) is None]
            if not (others and _has_bias(found[0])):
                yield t, b


def _has_bias(layer: fx.Node) -> bool:
    """Whether a layer adds a bias of its own."""
    position = 3 if is_call(layer, aten.layer_norm) else 2
    return len(layer.args) > position and layer.args[position] is not None


def _layer_of(term: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The layer whose result a term is, and the moves and numbers on the way to it, last first."""
    way: list[fx.Node] = []
    while len(term.users) == 1:
        if _takes_bias(term):
            return term, way
        if kind(term) not in (Kind.RESHAPE, Kind.PERMUTE) and not is_scaled(term):
            return None
        way.append(term)
        term = term.args[0]  # type: ignore[assignment]
    return None


def is_scaled(node: fx.Node) -> bool:
    """Whether a call multiplies a tensor with a number."""
    scales = kind(node) in (Kind.PRODUCT, Kind.QUOTIENT) and len(node.args) == 2
    return scales and isinstance(node.args[1], (int, float)) and is_float(node.args[0])


def _takes_bias(node: fx.Node) -> bool:
    if kind(node) is Kind.CONVOLUTION:
        return True
    if isinstance(node.target, WrittenNorm):
        return node.target.centred is not None
    return is_call(node, aten.linear, grouped_linear, aten.layer_norm) and is_live(node.args[0])


def _bias_for(term: fx.Node, bias: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The layer that ``bias`` could be the bias of, and the way to it."""
    found = _layer_of(term)
    if found is None or val(bias).dtype != val(term).dtype:
        return None
    layer, way = found
    others = [i for i in range(rank(layer)) if i not in _bias_axes(layer)]
    lies = torch.empty_strided(shape_of(bias), val(bias).stride(), device="meta")
    try:
        lies = lies.expand(shape_of(term))
    except RuntimeError:
        return None
    try:
        for node in way:
            lies = _undone(node, lies)
        fits = all(lies.shape[i] == 1 or lies.stride(i) == 0 for i in others)
    except RuntimeError:  # no view of it lies along the layer's axes: its numbers tell
        numbers = torch.arange(val(bias).numel(), dtype=torch.int32).reshape(shape_of(bias))
        numbers = numbers.expand(shape_of(term))
        for node in way:
            numbers = _undone(node, numbers)
        fits = all(bool((numbers == numbers.narrow(i, 0, 1)).all()) for i in others)
    return (layer, way) if fits else None


def _bias_axes(layer: fx.Node) -> tuple[int, ...]:
    """The axes of a layer's result along which its bias may vary."""
    last = rank(layer) - 1
    if kind(layer) is Kind.CONVOLUTION:
        return (1,)
    if is_call(layer, grouped_linear):
        return (0, last)
    if is_call(layer, aten.layer_norm):
        return tuple(range(rank(layer) - len(layer.args[1]), rank(layer)))  # type: ignore[arg-type]
    return tuple(range(rank(layer))) if isinstance(layer.target, WrittenNorm) else (last,)


def _undone(node: fx.Node, lies: Any) -> Any:
    """A tensor of a move's result as it lies in the move's operand; one without values: as a
    view."""
    if kind(node) is Kind.RESHAPE:
        shape = shape_of(node.args[0])
        return lies.view(shape) if lies.is_meta else lies.reshape(shape)
    if kind(node) is Kind.PERMUTE:
        order = list(node.args[1])  # type: ignore[arg-type]
        return lies.permute([order.index(i) for i in range(len(order))])
    return lies


def _with_bias(node: fx.Node, terms: Terms, t: int, b: int) -> fx.Node | None:
    """The sum without its term ``b``, which is now the bias of the layer behind term ``t``."""
    (sign, term), (minus, bias) = terms[t], terms[b]
    found = _bias_for(term, bias)
    assert found is not None
    layer, way = found
    if any(is_scaled(n) for n in way) and kind(layer) is Kind.NORM:
        return None
    value = bias if sign == minus else emit(node, aten.neg.default, bias)
    value = reshaped(node, value, [1] * (rank(term) - rank(bias)) + shape_of(bias))
    value = expanded(node, value, shape_of(term))
    for n in way:
        value = _back(node, n, value)
    axes = _bias_axes(layer)
    for i in reversed(range(rank(value))):
        if i not in axes:
            value = emit(node, aten.select.int, value, i, 0)
    made = _biased(node, layer, value, scale_of(way))
    for n in reversed(way):
        if not is_scaled(n):
            made = _again(node, n, made)
    rest = [(sign, made) if i == t else pair for i, pair in enumerate(terms) if i != b]
    return added(node, rest)


def scale_of(way: list[fx.Node]) -> float:
    """The product of the numbers on a way."""
    scale = 1.0
    for n in way:
        number: Any = n.args[1] if len(n.args) > 1 else None
        if kind(n) is Kind.PRODUCT:
            scale *= number
        elif kind(n) is Kind.QUOTIENT:
            scale /= number
    return scale


def _back(at: fx.Node, move: fx.Node, value: fx.Node) -> fx.Node:
    """A tensor of a move's result as it lies in the move's operand."""
    if kind(move) is Kind.RESHAPE:
        return reshaped(at, value, shape_of(move.args[0]))
    if kind(move) is Kind.PERMUTE:
        order = list(move.args[1])  # type: ignore[arg-type]
        return permuted(at, value, [order.index(i) for i in range(len(order))])
    return value


def _again(at: fx.Node, move: fx.Node, value: fx.Node) -> fx.Node:
    """The same move of another tensor."""
    if kind(move) is Kind.RESHAPE:
        return reshaped(at, value, shape_of(move))
    return permuted(at, value, list(move.args[1]))  # type: ignore[arg-type]


def _biased(at: fx.Node, layer: fx.Node, value: fx.Node, scale: float) -> fx.Node:
    """The layer, ``scale`` times, with ``value`` added to its bias."""
    position = 3 if is_call(layer, aten.layer_norm) else 2
    args = [*layer.args, *[None] * (position + 1 - len(layer.args))]
    if is_call(layer, grouped_linear):
        value = reshaped(at, value, [shape_of(value)[0], 1, shape_of(value)[-1]])
    if scale != 1:
        for i in (1, 2):
            args[i] = args[i] and emit(at, aten.mul.Tensor, args[i], scale)
    old = args[position]
    args[position] = value if old is None else emit(at, aten.add.Tensor, old, value)
    return emit(at, layer.target, *args, **layer.kwargs)


# ---- one sum


def join_sums(graph: fx.Graph) -> None:
    """Sums of three and more terms are one operation, whichever two were added first; what depends
    on no input is one of its terms. Positions of one tensor, added one by one, are a sum along
    their axis."""
    for node in list(graph.nodes):
        if kind(node) in (Kind.TOTAL, Kind.STATISTIC, Kind.LARGEST) and is_live(node):
            parts = total_of_parts(node)
            if parts is not None:
                swap(node, parts)
    for node in reversed(list(graph.nodes)):
        if node._erased or not is_top(node):
            continue
        terms = terms_of(node)
        run = _run_of_positions(node, terms)
        if run is not None:
            swap(node, reshaped(node, run, shape_of(node)))
            continue
        fixed = [(s, n) for s, n in terms if not is_live(n)]
        if len(fixed) > 1:
            terms = [(s, n) for s, n in terms if is_live(n)] + [(1, folded(node, fixed))]
        if len(terms) > 2 or len(fixed) > 1:
            swap(node, added(node, terms))
    graph.eliminate_dead_code()


def folded(at: fx.Node, terms: Terms) -> fx.Node:
    """The sum of terms, two at a time."""
    total: fx.Node | None = None
    for sign, n in terms:
        if total is None:
            total = n if sign > 0 else emit(at, aten.neg.default, n)
        else:
            total = emit(at, aten.add.Tensor if sign > 0 else aten.sub.Tensor, total, n)
    assert total is not None
    return total


def _run_of_positions(at: fx.Node, terms: Terms) -> fx.Node | None:
    """Σ of neighbouring positions of one axis of one tensor."""
    if len(terms) < 2 or any(sign < 0 for sign, _ in terms):
        return None
    chosen = [position(n) for _, n in terms]
    if any(c is None for c in chosen):
        return None
    (x, axis, _), shapes = chosen[0], {tuple(shape_of(n)) for _, n in terms}  # type: ignore[misc]
    if any(c[:2] != (x, axis) for c in chosen) or len(shapes) > 1:  # type: ignore[index]
        return None
    places = sorted(c[2] for c in chosen)  # type: ignore[index]
    first, last = places[0], places[-1]
    if places != list(range(first, last + 1)):
        return None
    whole = (first, last + 1) == (0, shape_of(x)[axis])
    part = x if whole else emit(at, aten.slice.Tensor, x, axis, first, last + 1, 1)
    return emit(at, aten.sum.dim_IntList, part, [axis])


def position(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """The tensor and the axis of which a call takes one position, and which."""
    while kind(node) is Kind.RESHAPE:
        node = node.args[0]  # type: ignore[assignment]
    if is_call(node, aten.select) and isinstance(node.args[2], int):
        return node.args  # type: ignore[return-value]
    if is_call(node, aten.slice) and node.args[3] == node.args[2] + 1:  # type: ignore[operator]
        return node.args[:3]  # type: ignore[return-value]
    return None


# ---- numbers beside a tensor


def drop_constant_inputs(graph: fx.Graph, constants: Constants) -> None:
    """A linear map of a tensor beside a column of numbers → of the tensor, with a bias."""
    for node in list(graph.nodes):
        x: Any = node.args[0] if node.args else None
        if not is_call(node, aten.linear) or not is_live(node) or len(node.args) > 2:
            continue
        weight: Any = node.args[1]
        if is_call(x, aten.constant_pad_nd) and len(x.args[1]) == 2 and x.args[1][0] == 0:
            live, number, width = x.args[0], x.args[2] if len(x.args) > 2 else 0, x.args[1][1]
        elif is_call(x, aten.cat) and x.args[1] == rank(x) - 1 and len(x.args[0]) == 2:
            live, beside = x.args[0]
            number, width = constants.number(beside), shape_of(beside)[-1]
        else:
            continue
        if number is None or not is_live(live) or width < 1:
            continue
        size = shape_of(live)[-1]
        own = emit(node, aten.slice.Tensor, weight, 1, 0, size, 1)
        rest = emit(node, aten.slice.Tensor, weight, 1, size, size + width, 1)
        bias = emit(node, aten.sum.dim_IntList, rest, [1])
        bias = bias if number == 1 else emit(node, aten.mul.Tensor, bias, number)
        swap(node, emit(node, aten.linear.default, live, own, bias))
    graph.eliminate_dead_code()


# ---- matrices of constants


def read_constants(graph: fx.Graph, constants: Constants) -> None:
    """A linear map whose matrix is constants, no parameters: sums, picks and copies of features are
    what its numbers say."""
    for node in list(graph.nodes):
        if node._erased or not is_call(node, aten.linear) or not is_live(node.args[0]):
            continue
        weight = constants.value(node.args[1])  # type: ignore[arg-type]
        if not isinstance(weight, Tensor) or weight.numel() > 1 << 20:
            continue
        new = _by_numbers(node, weight)
        if new is None:
            continue
        if len(node.args) > 2 and node.args[2] is not None:
            new = emit(node, aten.add.Tensor, new, node.args[2])
        swap(node, new)
    graph.eliminate_dead_code()


def _by_numbers(node: fx.Node, weight: Tensor) -> fx.Node | None:
    x, last = node.args[0], rank(node) - 1
    if weight.shape[1] > 1 and bool((weight == weight[:, :1]).all()):  # every row is one number
        total = emit(node, aten.sum.dim_IntList, x, [last], True)
        rows = weight[:, 0].tolist()
        if len(set(rows)) == 1:
            scaled = total if rows[0] == 1 else emit(node, aten.mul.Tensor, total, rows[0])
            return expanded(node, scaled, shape_of(node))
        return None
    size = weight.shape[0]
    if weight.shape[1] % size == 0 and weight.shape[1] > size > 1:
        blocks = weight.split(size, 1)
        scales = [b[0, 0] for b in blocks]
        eye = torch.eye(size, dtype=weight.dtype, device=weight.device)
        if all(torch.equal(b, s * eye) for b, s in zip(blocks, scales, strict=True)):
            return _sum_of_blocks(node, x, size, [float(s) for s in scales])
    if bool(((weight == 0) | (weight == 1)).all()) and bool((weight.sum(1) <= 1).all()):
        return _picked_between(node, x, weight)
    return None


def _picked_between(node: fx.Node, x: Any, weight: Tensor) -> fx.Node | None:
    """Features that are picked, maybe with zeros before and behind them."""
    some = weight.sum(1).nonzero().flatten().tolist()
    if not some or some != list(range(some[0], some[-1] + 1)):
        return None
    picked = _picked(node, x, weight[some].argmax(1).tolist())
    around = [some[0], len(weight) - 1 - some[-1]]
    return emit(node, aten.constant_pad_nd.default, picked, around) if any(around) else picked


def _sum_of_blocks(node: fx.Node, x: Any, size: int, scales: list[float]) -> fx.Node:
    total: fx.Node | None = None
    for i, scale in enumerate(scales):
        part = emit(node, aten.slice.Tensor, x, rank(x) - 1, i * size, (i + 1) * size, 1)
        part = part if scale == 1 else emit(node, aten.mul.Tensor, part, scale)
        total = part if total is None else emit(node, aten.add.Tensor, total, part)
    assert total is not None
    return total


def _picked(node: fx.Node, x: Any, places: list[int]) -> fx.Node:
    last, first = rank(x) - 1, places[0]
    if places == list(range(shape_of(x)[-1])):
        return x  # type: ignore[no-any-return]
    if places == list(range(first, first + len(places))):
        return emit(node, aten.slice.Tensor, x, last, first, first + len(places), 1)
    picks = [emit(node, aten.slice.Tensor, x, last, p, p + 1, 1) for p in places]
    return emit(node, aten.cat.default, picks, last)
