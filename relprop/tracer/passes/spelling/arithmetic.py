"""Sums and products in one call (``lerp``), sizes, deviations, and the largest and the smallest, as
the calls that rules know, where PyTorch's own definition has another form."""

from __future__ import annotations

import math
import operator

from torch import fx

from relprop.operations import Kind, argument, is_call, kind, operand, packet
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_float,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)
from relprop.tracer.facts import Facts, know, place


def sum_with_factor(node: fx.Node) -> fx.Node | None:
    """``add(a, b, alpha=k)`` → ``a + k·b``."""
    alpha = argument(node, "alpha")
    if alpha in (None, 1) or not is_tensor(arguments(node)[1]):
        return None
    return emit(
        node, node.target, operand(node), emit(node, aten.mul.Tensor, arguments(node)[1], alpha)
    )


def difference(node: fx.Node) -> fx.Node | None:
    """``rsub(a, b)`` of two tensors is b − a."""
    x, other, alpha = operand(node), arguments(node)[1], argument(node, "alpha")
    if not is_tensor(other):
        return None
    x = x if alpha in (None, 1) else emit(node, aten.mul.Tensor, x, alpha)
    return emit(node, aten.sub.Tensor, other, x)


def _scaled(node: fx.Node, x: fx.Node, factor: float | None) -> fx.Node:
    return x if factor in (None, 1) else emit(node, aten.mul.Tensor, x, factor)


def exponential(node: fx.Node) -> fx.Node | None:
    """2ˣ and bˣ of a number b > 0 → exp(x·ln b)."""
    base, x = (2.0, operand(node)) if is_call(node, aten.exp2) else arguments(node)[:2]
    if not isinstance(base, (int, float)) or base <= 0 or not is_float(x):
        return None
    return emit(node, aten.exp.default, emit(node, aten.mul.Tensor, x, math.log(base)))


def between(node: fx.Node) -> fx.Node:
    """``lerp(a, b, w)`` → (1 − w)·a + w·b; of a tensor with itself, that tensor. PyTorch's own
    definition chooses between two forms by w."""
    a, b, weight = operand(node), operand(node, 1), arguments(node)[2]
    if a is b:
        return a
    if not is_tensor(weight):
        parts = (_scaled(node, a, 1 - weight), _scaled(node, b, weight))
        return emit(node, aten.add.Tensor, *parts)
    rest = emit(node, aten.rsub.Scalar, weight, 1)
    parts = (emit(node, aten.mul.Tensor, a, rest), emit(node, aten.mul.Tensor, b, weight))
    return emit(node, aten.add.Tensor, *parts)


def cosine(node: fx.Node) -> fx.Node | None:
    """``cosine_similarity(x, y)`` → Σ x/max(‖x‖, ε) · y/max(‖y‖, ε): two norms and a product.
    (PyTorch's own definition takes the larger of squares, whose norm has no rule.)"""
    pair, dim, eps = arguments(node)[:2], argument(node, "dim"), argument(node, "eps")
    width, units = rank(node) + 1, []
    for x in pair:
        x = reshaped(node, x, [1] * (width - rank(x)) + shape_of(x))
        size = emit(node, aten.linalg_vector_norm.default, x, 2, [dim], True)
        units.append(emit(node, aten.div.Tensor, x, emit(node, aten.clamp_min.default, size, eps)))
    return emit(node, aten.sum.dim_IntList, emit(node, aten.mul.Tensor, *units), [dim])


#: Numbers in all differences of vectors whose distances are written out.
MOST_DIFFERENCES = 1 << 26


def _spread(node: fx.Node, x: fx.Node, like: fx.Node) -> fx.Node:
    """The variance or the deviation that a call, which may also give the mean, gives. A deviation
    stays one: torch's has a slope of 0 where all values are equal, the root of a variance has
    none."""
    dims = argument(like, "dim")
    dims = None if isinstance(dims, bool) else dims
    correction, unbiased = argument(like, "correction"), argument(like, "unbiased")
    if unbiased is not None:
        correction = int(unbiased)
    correction = 1 if correction is None else correction
    op = aten.std.correction if is_call(like, aten.std, aten.std_mean) else aten.var.correction
    keepdim = bool(argument(like, "keepdim"))
    return emit(node, op, x, dims, correction=correction, keepdim=keepdim)


def deviation(node: fx.Node) -> fx.Node | None:
    """``std`` in its one overload."""
    return None if node.target is aten.std.correction else _spread(node, operand(node), node)


def with_mean(node: fx.Node) -> None:
    """``var_mean``, ``std_mean`` → one call for each that is used."""
    x, dims = operand(node), argument(node, "dim")
    dims = list(range(rank(x))) if dims is None or isinstance(dims, bool) else dims
    for user in list(node.users):
        if arguments(user)[1] == 1:
            swap(user, emit(user, aten.mean.dim, x, dims, bool(argument(node, "keepdim"))))
        else:
            swap(user, _spread(user, x, node))


def native_norm(node: fx.Node) -> None:
    """``native_layer_norm`` and its kin, of which usually the first result alone is used."""
    x = operand(node)
    for user in list(node.users):
        if arguments(user)[1] != 0:
            continue
        if is_call(node, aten.native_layer_norm):
            swap(user, emit(user, aten.layer_norm.default, *arguments(node)))
        elif is_call(node, aten.native_group_norm):
            weight, bias, groups, eps = (
                argument(node, n) for n in ("weight", "bias", "group", "eps")
            )
            swap(user, emit(user, aten.group_norm.default, x, groups, weight, bias, eps))
        elif not argument(node, "training"):
            names = ("weight", "bias", "running_mean", "running_var")
            given = [argument(node, n) for n in names]
            rest = (False, argument(node, "momentum"), argument(node, "eps"), False)
            swap(user, emit(user, aten.batch_norm.default, x, *given, *rest))


def sum_of_sizes(node: fx.Node) -> fx.Node | None:
    """‖x‖₁ is Σ |x|."""
    if argument(node, "ord") != 1 or argument(node, "dtype") is not None:
        return None
    x, dim = operand(node), argument(node, "dim")
    dims = [dim] if isinstance(dim, int) else dim or list(range(rank(x)))
    size = emit(node, aten.abs.default, x)
    return emit(node, aten.sum.dim_IntList, size, dims, bool(argument(node, "keepdim")))


def distances(node: fx.Node) -> fx.Node | None:
    """``cdist(x, y)`` → the lengths of all differences, where these are not too many to be made."""
    x, y, *more = arguments(node)
    if val(node).numel() * shape_of(x)[-1] > MOST_DIFFERENCES:
        return None
    x, y = (emit(node, aten.unsqueeze.default, n, rank(n) - i) for n, i in ((x, 1), (y, 2)))
    power = more[0] if more else 2.0
    return emit(
        node, aten.linalg_vector_norm.default, emit(node, aten.sub.Tensor, x, y), power, [-1]
    )


def picked_values(node: fx.Node) -> None:
    """The values of sort, topk and their like → ``gather`` at their indices: picked values only
    change place. Those of max and min are the largest and the smallest."""
    x, indices = operand(node), [u for u in node.users if kind(u) is Kind.OUTPUT]
    if not indices or len(indices) != len(node.users):
        return
    ends = {aten.max: aten.amax.default, aten.min: aten.amin.default}
    if (op := ends.get(packet(node))) is not None:
        for user in [u for u in indices if arguments(u)[1] == 0]:
            dim, keepdim = argument(node, "dim"), bool(argument(node, "keepdim"))
            swap(user, emit(user, op, x, [dim], keepdim))
        return
    dim = argument(node, "dim")
    dim = -1 if dim is None else dim
    dropped = rank(indices[0]) < rank(x)
    for user in [u for u in indices if arguments(u)[1] == 0]:
        with node.graph.inserting_before(user):
            where = node.graph.call_function(operator.getitem, (node, 1))
        know(where, Facts(val(node)[1], place(node)))
        if dropped:
            where = emit(user, aten.unsqueeze.default, where, dim)
        picked = emit(user, aten.gather.default, x, dim % max(rank(x), 1), where)
        swap(user, reshaped(user, picked, shape_of(user)))


def of_all_axes(node: fx.Node) -> fx.Node | None:
    """The largest of all elements → along all axes."""
    if packet(node) not in (aten.max, aten.min):
        return None
    op = aten.amax.default if is_call(node, aten.max) else aten.amin.default
    return emit(node, op, operand(node), list(range(rank(operand(node)))))


def of_two(node: fx.Node) -> fx.Node | None:
    """``max(a, b)`` → ``maximum``."""
    if packet(node) not in (aten.max, aten.min):
        return None
    op = aten.maximum.default if is_call(node, aten.max) else aten.minimum.default
    return emit(node, op, *arguments(node))


def clamped(node: fx.Node) -> fx.Node | None:
    """``clamp(x, low, high)`` by tensors → ``minimum(maximum(x, low), high)``: PyTorch's own
    definition chooses by what is NaN, too, which DeepLIFT has no rule for."""
    bounds = {op: argument(node, n) for n, op in (("min", aten.maximum), ("max", aten.minimum))}
    if not any(is_tensor(bound) for bound in bounds.values()):
        return None
    x = operand(node)
    for op, bound in bounds.items():
        x = x if bound is None else emit(node, op.default, x, bound)
    return x


def largest_of_stretches(node: fx.Node) -> None:
    """The values of adaptive max pools: the largest of so many stretches of each axis, one axis
    after the other."""
    x, counts = operand(node), list(arguments(node)[1])
    if not all(kind(u) is Kind.OUTPUT and arguments(u)[1] == 0 for u in node.users):
        return
    for dim, count in enumerate(counts, rank(x) - len(counts)):
        length = shape_of(x)[dim]
        bounds = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
        parts = [x if count == 1 else emit(node, aten.slice.Tensor, x, dim, *b, 1) for b in bounds]
        tops = [emit(node, aten.amax.default, p, [dim], True) for p in parts]
        x = tops[0] if count == 1 else emit(node, aten.cat.default, tops, dim)
    for user in list(node.users):
        swap(user, x)
