"""Variances, deviations and norms: calls with several results, of which each has a call of its
own."""

from __future__ import annotations

from torch import fx

from relprop.operations import argument, is_call, operand
from relprop.tracer.editing import arguments, aten, emit, rank, shape_of, swap, val

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
