"""One operation, many names: what PyTorch lets a model call by several operators becomes the one that the rules know."""

from __future__ import annotations

from typing import Any

from torch import fx

from relprop.tracer.editing import Rewrite, argument, aten, emit, name_of, val


def _spelled(name: str) -> Rewrite:
    """Another name of operator ``name``, with the same overloads and arguments."""
    def respell(node: fx.Node) -> fx.Node | None:
        packet = getattr(aten, name)
        overload = getattr(packet, node.target._overloadname, None)  # type: ignore[union-attr]
        return None if overload is None else emit(node, overload, *node.args, **node.kwargs)
    return respell


_SAME = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "absolute": "abs",
    "negative": "neg", "clip": "clamp", "moveaxis": "movedim",
}


def _cat(node: fx.Node) -> fx.Node | None:
    """``cat`` by any name, without empty tensors of one axis, which it skips (caches that are still empty)."""
    given, dim = node.args[0], argument(node, 1, "dim", 0)
    some = [t for t in given if list(val(t).shape) != [0]] or list(given)  # type: ignore[union-attr]
    if len(some) == 1 and val(some[0]).dtype == val(node).dtype:
        return some[0]
    return None if len(some) == len(given) and name_of(node) == "cat" else emit(node, aten.cat.default, some, dim)  # type: ignore[arg-type]


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
    first, second = (emit(node, aten.slice.Tensor, x, dim, i * half, (i + 1) * half) for i in (0, 1))
    return emit(node, aten.mul.Tensor, first, emit(node, aten.sigmoid.default, second))


SPELLINGS: dict[str, Any] = {
    **{other: _spelled(name) for other, name in _SAME.items()},
    "mT": _transpose, "mH": _transpose, "adjoint": _transpose, "swapaxes": _transpose, "swapdims": _transpose, "ravel": _ravel,
    "expand_as": _as, "view_as": _as, "reshape_as": _as,
    "cat": _cat, "concat": _cat, "concatenate": _cat, "copy": _copy, "addcmul": _addc, "addcdiv": _addc, "glu": _glu,
}
