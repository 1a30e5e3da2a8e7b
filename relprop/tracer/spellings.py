"""One operation, many names: what PyTorch lets a model call by several operators becomes the one
that the rules know."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from relprop.tracer.editing import Rewrite, argument, aten, emit, name_of, swap, val


def _spelled(name: str) -> Rewrite:
    """Another name of operator ``name``, with the same overloads and arguments."""

    def respell(node: fx.Node) -> fx.Node | None:
        packet = getattr(aten, name)
        overload = getattr(packet, node.target._overloadname, None)  # type: ignore[union-attr]
        return None if overload is None else emit(node, overload, *node.args, **node.kwargs)

    return respell


_SAME = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "absolute": "abs",
    "negative": "neg",
    "clip": "clamp",
    "moveaxis": "movedim",
}


def _cat(node: fx.Node) -> fx.Node | None:
    """``cat`` by any name, without empty tensors of one axis, which it skips (caches that are still
    empty)."""
    given, dim = node.args[0], argument(node, 1, "dim", 0)
    some = [t for t in given if list(val(t).shape) != [0]] or list(given)  # type: ignore[union-attr]
    if len(some) == 1 and val(some[0]).dtype == val(node).dtype:
        return some[0]
    return (
        None
        if len(some) == len(given) and name_of(node) == "cat"
        else emit(node, aten.cat.default, some, dim)
    )  # type: ignore[arg-type]


def _picked(node: fx.Node) -> None:
    """The values of max, min, sort, topk and their like → ``gather`` at their indices: picked
    values only change place."""
    x, indices = node.args[0], [u for u in node.users if name_of(u) == "getitem"]
    if not indices or len(indices) != len(node.users):
        return
    name = name_of(node)
    dim = argument(
        node,
        1 if name in ("max", "min", "median", "mode", "sort", "cummax", "cummin") else 2,
        "dim",
        -1,
    )
    if isinstance(dim, bool) or node.target in (aten.sort.stable,):
        dim = argument(node, 2, "dim", -1)
    dropped = val(indices[0]).dim() < val(x).dim()
    for user in [u for u in indices if u.args[1] == 0]:
        with node.graph.inserting_before(user):
            where = node.graph.call_function(operator.getitem, (node, 1))
        where.meta = {"place": node.meta["place"], "val": val(node)[1]}
        picked = emit(
            user,
            aten.gather.default,
            x,
            dim,
            emit(user, aten.unsqueeze.default, where, dim) if dropped else where,
        )
        swap(user, emit(user, aten.squeeze.dim, picked, dim) if dropped else picked)


def _added_by_index(node: fx.Node) -> fx.Node | None:
    """``index_add``, ``scatter_add``, accumulating ``index_put``: what was there plus a sum by
    index onto zeros."""
    base, name = node.args[0], name_of(node)
    if name_of(base) in ("zeros", "zeros_like", "new_zeros") and name != "index_put":
        return None
    if name == "index_put":
        used = [(i, index) for i, index in enumerate(node.args[1]) if index is not None]  # type: ignore[arg-type, union-attr]
        summed = (
            bool(argument(node, 3, "accumulate", False))
            and len(used) == 1
            and val(used[0][1]).dim() == 1
        )
        values = node.args[2]
        if (
            len(used) == len(node.args[1]) == 1
            and val(used[0][1]).dtype == torch.bool
            and not argument(node, 3, "accumulate", False)
        ):  # type: ignore[arg-type]
            return _put_where(node, base, used[0][1], values)
        if (
            not summed
            or val(used[0][1]).dtype == torch.bool
            or val(values).dim() != val(base).dim()
        ):
            return None
        added = emit(
            node,
            aten.index_add.default,
            emit(node, aten.zeros_like.default, base),
            used[0][0],
            used[0][1],
            values,
        )
    elif node.kwargs.get("alpha", 1) != 1:
        return None
    else:
        added = emit(node, node.target, emit(node, aten.zeros_like.default, base), *node.args[1:])
    return (
        added
        if name_of(base) in ("zeros", "zeros_like", "new_zeros")
        else emit(node, aten.add.Tensor, base, added)
    )


def _scatter_reduce(node: fx.Node) -> fx.Node | None:
    """``scatter_reduce`` to a sum or a mean → ``scatter_add``, over the counts."""
    base, dim, index, source, reduce = node.args[:5]
    whole = bool(argument(node, 5, "include_self", True))
    if reduce not in ("sum", "mean") or (reduce == "mean" and whole):
        return None
    zeros = emit(node, aten.zeros_like.default, base)
    added = emit(node, aten.scatter_add.default, zeros, dim, index, source)
    if reduce == "sum" and whole:
        return emit(node, aten.add.Tensor, base, added)
    count = emit(
        node,
        aten.scatter_add.default,
        zeros,
        dim,
        index,
        emit(node, aten.ones_like.default, source),
    )
    share = (
        added
        if reduce == "sum"
        else emit(node, aten.div.Tensor, added, emit(node, aten.clamp_min.default, count, 1))
    )
    return emit(node, aten.where.self, emit(node, aten.gt.Scalar, count, 0), share, base)


def _put_where(node: fx.Node, base: Any, mask: Any, values: Any) -> fx.Node | None:
    """``x[mask] = v`` with one value for all chosen places → ``where``."""
    behind = val(base).dim() - val(mask).dim()
    if val(values).dim() > behind and list(val(values).shape[: val(values).dim() - behind]) != [
        1
    ] * (val(values).dim() - behind):
        return None
    one = (
        emit(
            node,
            aten.reshape.default,
            values,
            list(val(values).shape[val(values).dim() - behind :]),
        )
        if val(values).dim() > behind
        else values
    )
    return emit(
        node,
        aten.where.self,
        emit(node, aten.reshape.default, mask, [*val(mask).shape, *[1] * behind]),
        one,
        base,
    )


def _linear(node: fx.Node) -> fx.Node | None:
    """A weight that is a vector is a matrix of one row."""
    x, weight, bias = node.args[0], node.args[1], argument(node, 2, "bias")
    if val(weight).dim() != 1:
        return None
    row = emit(node, aten.reshape.default, weight, [1, -1])
    return emit(
        node,
        aten.squeeze.dim,
        emit(
            node,
            aten.linear.default,
            x,
            row,
            *([] if bias is None else [emit(node, aten.reshape.default, bias, [1])]),
        ),
        -1,
    )


def _broadcast_tensors(node: fx.Node) -> None:
    """One ``expand`` for each result."""
    shape = list(val(node)[0].shape)
    for user in [u for u in node.users if name_of(u) == "getitem"]:
        swap(user, emit(user, aten.expand.default, node.args[0][user.args[1]], shape))  # type: ignore[index]


def _type_as(node: fx.Node) -> fx.Node:
    """``x.type_as(y)`` reads nothing of ``y`` but its type."""
    x = node.args[0]
    return x if val(x).dtype == val(node).dtype else emit(node, aten.to.dtype, x, val(node).dtype)  # type: ignore[return-value]


def _strided(node: fx.Node) -> fx.Node | None:
    """``as_strided`` of a tensor without gaps → an index into its elements, which does not depend
    on how values lie in memory."""
    x, size, stride = node.args[:3]
    if not val(x).is_contiguous():
        strides = val(x).stride()
        x = emit(
            node, aten.permute.default, x, sorted(range(len(strides)), key=lambda i: -strides[i])
        )
        if not val(x).is_contiguous():
            return None
    where = emit(
        node,
        aten.full.default,
        [1] * len(size),
        argument(node, 3, "storage_offset") or 0,
        dtype=torch.long,
    )
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):  # type: ignore[arg-type]
        steps = emit(
            node,
            aten.arange.start_step,
            0,
            length * step if step else length,
            step or 1,
            dtype=torch.long,
        )
        if not step:
            steps = emit(node, aten.mul.Tensor, steps, 0)
        where = emit(
            node,
            aten.add.Tensor,
            where,
            emit(
                node,
                aten.reshape.default,
                steps,
                [length if i == axis else 1 for i in range(len(size))],
            ),
        )  # type: ignore[arg-type]
    return emit(node, aten.index.Tensor, emit(node, aten.reshape.default, x, [-1]), [where])


def _transpose(node: fx.Node) -> fx.Node:
    dims = node.args[1:] or (-2, -1)
    return emit(node, aten.transpose.int, node.args[0], *dims)


def _ravel(node: fx.Node) -> fx.Node:
    return emit(node, aten.reshape.default, node.args[0], [-1])


def _as(node: fx.Node) -> fx.Node:
    """``expand_as(x, y)``, ``view_as(x, y)``: y is read for its shape alone."""
    op = aten.expand.default if name_of(node) == "expand_as" else aten.reshape.default
    return emit(node, op, node.args[0], list(val(node).shape))


def _copy(node: fx.Node) -> fx.Node:
    """``copy(x, y)``: y, in the shape and type of x."""
    x, y = node.args[:2]
    if val(y).dtype != val(x).dtype:
        y = emit(node, aten.to.dtype, y, val(x).dtype)
    return emit(node, aten.expand.default, y, list(val(x).shape))


def _addc(node: fx.Node) -> fx.Node:
    """``addcmul(x, a, b, value=k)`` → ``x + k·(a·b)``; likewise ``addcdiv``."""
    x, a, b = node.args
    change = emit(node, aten.mul.Tensor if name_of(node) == "addcmul" else aten.div.Tensor, a, b)
    if (k := node.kwargs.get("value", 1)) != 1:
        change = emit(node, aten.mul.Tensor, change, k)
    return emit(node, aten.add.Tensor, x, change)


def _glu(node: fx.Node) -> fx.Node:
    """``glu(x)`` → first half · sigmoid(second half)."""
    x, dim = node.args[0], argument(node, 1, "dim", -1)
    half = val(x).shape[dim] // 2
    first, second = (
        emit(node, aten.slice.Tensor, x, dim, i * half, (i + 1) * half) for i in (0, 1)
    )
    return emit(node, aten.mul.Tensor, first, emit(node, aten.sigmoid.default, second))


def _cosine(node: fx.Node) -> fx.Node | None:
    """``cosine_similarity(x, y)`` → Σ x/max(‖x‖, ε) · y/max(‖y‖, ε): two norms and a product."""
    pair, dim, eps = node.args[:2], argument(node, 2, "dim", 1), argument(node, 3, "eps", 1e-8)
    if val(pair[0]).dim() != val(pair[1]).dim():
        return None
    units = []
    for x in pair:
        length = emit(
            node,
            aten.clamp_min.default,
            emit(node, aten.linalg_vector_norm.default, x, 2, [dim], True),
            eps,
        )
        units.append(emit(node, aten.div.Tensor, x, length))
    return emit(node, aten.sum.dim_IntList, emit(node, aten.mul.Tensor, *units), [dim])


SPELLINGS: dict[str, Any] = {
    **{other: _spelled(name) for other, name in _SAME.items()},
    "mT": _transpose,
    "mH": _transpose,
    "adjoint": _transpose,
    "swapaxes": _transpose,
    "swapdims": _transpose,
    "ravel": _ravel,
    **dict.fromkeys("max min median mode sort topk kthvalue cummax cummin".split(), _picked),
    "linear": _linear,
    "broadcast_tensors": _broadcast_tensors,
    "scatter_reduce": _scatter_reduce,
    "index_add": _added_by_index,
    "scatter_add": _added_by_index,
    "index_put": _added_by_index,
    "as_strided": _strided,
    "type_as": _type_as,
    "expand_as": _as,
    "view_as": _as,
    "reshape_as": _as,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "copy": _copy,
    "addcmul": _addc,
    "addcdiv": _addc,
    "glu": _glu,
    "cosine_similarity": _cosine,
}
