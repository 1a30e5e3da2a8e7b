"""Complex numbers as pairs of real ones: a complex tensor is a real one with a last axis of two.

Relevance travels along real numbers; a product of complex numbers is u·Re(w) + J(u)·Im(w), with
J(a, b) = (−b, a): a rotation as it is written in real numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

from relprop.operations import MOVES, Kind, Operator, argument, is_call, kind, operand, packet
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_live,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.spelling.complex_products import contracted, divided, multiplied
from relprop.tracer.passes.spelling.pairs import (
    mirrored,
    pair_of,
    part_of,
    parts_of,
    read_as_pair,
    refused,
    stacked,
)

REAL_OF = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


#: What moves complex numbers and, in the same way, their pairs.
ALONG_PAIRS = frozenset(
    {Kind.RESHAPE, Kind.EXPAND, Kind.PERMUTE, Kind.SELECT, Kind.SLICE}
    | {Kind.IDENTITY, Kind.DETACH}
)


def make_real(graph: fx.Graph) -> None:
    """Put pairs of real numbers in place of all complex ones. Raises ``CaptureError`` naming an
    operation of complex numbers that has no such form."""
    if not any(_is_complex(n) for n in graph.nodes):
        return
    pairs: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        complex_inputs = [i for i in node.all_input_nodes if i in pairs]
        if not _is_complex(node) and not complex_inputs:
            continue
        if node.op == "output":
            raise refused(node, "the model returns complex numbers")
        made = _converted(node, pairs)
        if _is_complex(node):
            pairs[node] = made
        else:
            node.replace_all_uses_with(made)


def _is_complex(node: fx.Node) -> bool:
    return isinstance(val(node), Tensor) and val(node).is_complex()


def _converted(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    if node.op in ("placeholder", "get_attr"):
        return read_as_pair(node)
    convert = CONVERSIONS.get(packet(node))
    if convert is not None:
        return convert(node, pairs)
    if kind(node) in MOVES | {Kind.CAST, Kind.IDENTITY, Kind.DETACH}:
        return _moved(node, pairs)
    if kind(node) is Kind.SUM:
        return _summed(node, pairs)
    if kind(node) is Kind.PAD and not argument(node, "value"):
        return emit(node, node.target, pairs[operand(node)], [0, 0, *arguments(node)[1]])
    if not is_live(node) and _is_complex(node) and not any(i in pairs for i in tensor_inputs(node)):
        return read_as_pair(node)
    raise refused(node, f"{node.target} has no form in real numbers here")


def _summed(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """u + v and u − v, of which one may be a number, or real."""
    if all(is_tensor(a) for a in arguments(node)[:2]):
        sides = [pair_of(node, a, pairs) for a in arguments(node)[:2]]
        wide = max(rank(s) for s in sides)
        fitted = [reshaped(node, s, [1] * (wide - rank(s)) + shape_of(s)) for s in sides]
        return emit(node, node.target, *fitted)
    real, imaginary = zip(*(parts_of(node, a, pairs) for a in arguments(node)[:2]), strict=True)
    if not any(is_tensor(part) for part in imaginary):
        imaginary = (emit(node, aten.zeros_like.default, real[0]), imaginary[1])
    return stacked(node, *(emit(node, node.target, *part) for part in (real, imaginary)))


def _moved(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A move of complex numbers: of pairs where it leaves the last axis of two alone, else of real
    parts and of imaginary parts, in one."""
    if kind(node) is Kind.CAST:
        return _cast(node, operand(node), pairs)
    if kind(node) in ALONG_PAIRS:
        return _moved_pair(node, pairs[operand(node)])
    halves = []
    for which in (0, 1):

        def half(n: fx.Node, which: int = which) -> fx.Node:
            return part_of(node, pairs[n], which) if n in pairs else n

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), half)
        halves.append(emit(node, node.target, *args, **kwargs))
    return stacked(node, *halves)


def _moved_pair(node: fx.Node, pair: fx.Node) -> fx.Node:
    """A move that leaves the last axis of two alone."""
    what, shape = kind(node), [*shape_of(node), 2]
    if what is Kind.RESHAPE:
        return reshaped(node, pair, shape)
    if what is Kind.EXPAND:
        return expanded(node, pair, shape)
    if what is Kind.PERMUTE:
        return permuted(node, pair, [*arguments(node)[1], len(shape) - 1])
    return pair if what is Kind.IDENTITY else emit(node, node.target, pair, *arguments(node)[1:])


def _cast(node: fx.Node, x: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """To another type: of a real tensor all imaginary parts are 0, and a real type drops them."""
    if not _is_complex(node):
        return emit(node, aten.to.dtype, part_of(node, pairs[x], 0), val(node).dtype)
    dtype = REAL_OF[val(node).dtype]
    if x in pairs:
        return emit(node, aten.to.dtype, pairs[x], dtype)
    x = x if val(x).dtype == dtype else emit(node, aten.to.dtype, x, dtype)
    return pair_of(node, x, pairs)


def _as_complex(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return operand(node)


def _as_real(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return pairs[operand(node)]


def _of_parts(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return stacked(node, *arguments(node)[:2])


def _polar(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    size, angle = arguments(node)[:2]
    parts = (emit(node, op, angle) for op in (aten.cos.default, aten.sin.default))
    return stacked(node, *(emit(node, aten.mul.Tensor, size, p) for p in parts))


def _exponential(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    real, imaginary = parts_of(node, operand(node), pairs)
    size = emit(node, aten.exp.default, real)
    parts = (emit(node, op, imaginary) for op in (aten.cos.default, aten.sin.default))
    return stacked(node, *(emit(node, aten.mul.Tensor, size, p) for p in parts))


def _angle(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    real, imaginary = parts_of(node, operand(node), pairs)
    return emit(node, aten.atan2.default, imaginary, real)


def _total(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A sum or a mean along axes."""
    pair = pairs[operand(node)]
    dims, axes = argument(node, "dim"), rank(pair) - 1
    dims = [dims] if isinstance(dims, int) else list(dims or range(axes))
    op = aten.mean.dim if is_call(node, aten.mean) else aten.sum.dim_IntList
    return emit(node, op, pair, [d % axes for d in dims], bool(argument(node, "keepdim")))


def _real(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return part_of(node, pairs[operand(node)], 0)


def _imaginary(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return part_of(node, pairs[operand(node)], 1)


def _conjugate(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return mirrored(node, pairs[operand(node)])


def _size(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    pair = pairs[operand(node)]
    return emit(node, aten.linalg_vector_norm.default, pair, 2, [rank(pair) - 1])


def _negative(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return emit(node, aten.neg.default, pairs[operand(node)])


CONVERSIONS: dict[Operator, Callable[[fx.Node, dict[fx.Node, fx.Node]], fx.Node]] = {
    aten.view_as_complex: _as_complex,
    aten.view_as_real: _as_real,
    aten.complex: _of_parts,
    aten.polar: _polar,
    aten.mul: multiplied,
    aten.div: divided,
    aten.real: _real,
    aten.imag: _imaginary,
    **dict.fromkeys((aten.conj, aten._conj, aten.conj_physical, aten._conj_physical), _conjugate),
    aten.abs: _size,
    aten.neg: _negative,
    aten.exp: _exponential,
    aten.angle: _angle,
    aten.matmul: contracted,
    **dict.fromkeys((aten.sum, aten.mean), _total),
}
