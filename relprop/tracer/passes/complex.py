"""Complex numbers as pairs of real ones: a complex tensor is a real one with a last axis of two.

Relevance travels along real numbers; a product of complex numbers is u·Re(w) + J(u)·Im(w), with
J(a, b) = (−b, a): a rotation as it is written in real numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import CaptureError, message
from relprop.operations import MOVES, Kind, argument, is_call, kind, packet
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_live,
    is_number,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    tensor_inputs,
    val,
)
from relprop.tracer.facts import Facts, know, place

REAL_OF = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


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
            raise _refused(node, "the model returns complex numbers")
        made = _converted(node, pairs)
        if _is_complex(node):
            pairs[node] = made
        else:
            node.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def _is_complex(node: fx.Node) -> bool:
    return isinstance(val(node), Tensor) and val(node).is_complex()


def _converted(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    if node.op in ("placeholder", "get_attr"):
        return _after(node)
    convert = CONVERSIONS.get(packet(node))
    if convert is not None:
        return convert(node, pairs)
    if kind(node) in MOVES | {Kind.CAST, Kind.IDENTITY, Kind.DETACH}:
        return _moved(node, pairs)
    if kind(node) is Kind.SUM:
        return _summed(node, pairs)
    if kind(node) is Kind.PAD and not argument(node, "value"):
        return emit(node, node.target, pairs[node.args[0]], [0, 0, *node.args[1]])  # type: ignore[index, misc]
    if not is_live(node) and _is_complex(node) and not any(i in pairs for i in tensor_inputs(node)):
        return _after(node)
    raise _refused(node, f"{node.target} has no form in real numbers here")


def _after(node: fx.Node) -> fx.Node:
    """Complex numbers that a graph begins with, as pairs."""
    with node.graph.inserting_after(node):
        made = node.graph.call_function(aten.view_as_real.default, (node,))
    know(made, Facts(torch.view_as_real(val(node).resolve_conj()), place(node)))
    return made


def _refused(node: fx.Node, why: str) -> CaptureError:
    return CaptureError(
        message(
            f"the model computes with complex numbers, and {why}",
            at=str(place(node)),
            then=["write that part in real numbers"],
        )
    )


def _parts(node: fx.Node, x: Any, pairs: dict[fx.Node, fx.Node]) -> tuple[Any, Any]:
    """The real and the imaginary part of an operand; of a real one the latter is 0."""
    if x in pairs:
        pair = pairs[x]
        only_real = is_call(pair, aten.cat) and is_number(pair.args[0][1], 0)  # type: ignore[index]
        return _part(node, pair, 0), 0.0 if only_real else _part(node, pair, 1)
    return (x, 0.0) if is_tensor(x) else (complex(x).real, complex(x).imag)


def _pair(node: fx.Node, x: Any, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A tensor as real numbers with a last axis of two."""
    if x in pairs:
        return pairs[x]
    return _stacked(node, x, emit(node, aten.zeros_like.default, x))


def _summed(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """u + v and u − v, of which one may be a number, or real."""
    if all(is_tensor(a) for a in node.args[:2]):
        sides = [_pair(node, a, pairs) for a in node.args[:2]]
        wide = max(rank(s) for s in sides)
        fitted = [reshaped(node, s, [1] * (wide - rank(s)) + shape_of(s)) for s in sides]
        return emit(node, node.target, *fitted)
    real, imaginary = zip(*(_parts(node, a, pairs) for a in node.args[:2]), strict=True)
    if not any(is_tensor(part) for part in imaginary):
        imaginary = (emit(node, aten.zeros_like.default, real[0]), imaginary[1])
    return _stacked(node, *(emit(node, node.target, *part) for part in (real, imaginary)))


def _stacked(node: fx.Node, real: fx.Node, imaginary: fx.Node) -> fx.Node:
    parts = [reshaped(node, t, [*shape_of(t), 1]) for t in (real, imaginary)]
    return emit(node, aten.cat.default, parts, rank(parts[0]) - 1)


def _part(node: fx.Node, pair: fx.Node, which: int) -> fx.Node:
    return emit(node, aten.select.int, pair, rank(pair) - 1, which)


def _moved(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A move of complex numbers: of pairs where it leaves the last axis of two alone, else of real
    parts and of imaginary parts, in one."""
    what, shape = kind(node), shape_of(node)
    pair = pairs.get(node.args[0])  # type: ignore[call-overload]
    if what is Kind.RESHAPE:
        return reshaped(node, pair, [*shape, 2])  # type: ignore[arg-type]
    if what is Kind.EXPAND:
        return expanded(node, pair, [*shape, 2])  # type: ignore[arg-type]
    if what is Kind.PERMUTE:
        return permuted(node, pair, [*node.args[1], len(shape)])  # type: ignore[arg-type, misc]
    if what in (Kind.SELECT, Kind.SLICE):
        return emit(node, node.target, pair, *node.args[1:])
    if what in (Kind.IDENTITY, Kind.DETACH):
        return emit(node, node.target, pair) if what is Kind.DETACH else pair  # type: ignore[return-value]
    if what is Kind.CAST:
        return _cast(node, node.args[0], pairs)
    halves = []
    for which in (0, 1):

        def half(n: fx.Node, which: int = which) -> Any:
            return _part(node, pairs[n], which) if n in pairs else n

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), half)
        halves.append(emit(node, node.target, *args, **kwargs))
    return _stacked(node, *halves)


def _cast(node: fx.Node, x: Any, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """To another type: of a real tensor all imaginary parts are 0, and a real type drops them."""
    if not _is_complex(node):
        return emit(node, aten.to.dtype, _part(node, pairs[x], 0), val(node).dtype)
    dtype = REAL_OF[val(node).dtype]
    if x in pairs:
        return emit(node, aten.to.dtype, pairs[x], dtype)
    x = x if val(x).dtype == dtype else emit(node, aten.to.dtype, x, dtype)
    return _pair(node, x, pairs)


def _as_complex(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return node.args[0]  # type: ignore[return-value]


def _as_real(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return pairs[node.args[0]]  # type: ignore[index]


def _of_parts(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return _stacked(node, *node.args[:2])  # type: ignore[arg-type]


def _polar(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    size, angle = node.args[:2]
    parts = (emit(node, op, angle) for op in (aten.cos.default, aten.sin.default))
    return _stacked(node, *(emit(node, aten.mul.Tensor, size, p) for p in parts))


def _multiplied(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    a, b = node.args[:2]
    if a in pairs and b in pairs:
        a, b = (pairs[b], pairs[a]) if not is_live(a) and is_live(b) else (pairs[a], pairs[b])
        return _turned(node, a, b)
    return _scaled(node, a, b, pairs) if a in pairs else _scaled(node, b, a, pairs)


def _scaled(node: fx.Node, z: Any, x: Any, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """Complex numbers times (or over) real ones, and any with a number of Python's."""
    if z not in pairs:  # real numbers and a complex one
        x, z = (x, z) if is_tensor(x) else (z, x)
        parts = (complex(z).real, complex(z).imag)
        return _stacked(node, *(emit(node, aten.mul.Tensor, x, p) for p in parts))
    if is_tensor(x):
        return emit(node, node.target, pairs[z], reshaped(node, x, [*shape_of(x), 1]))
    if not isinstance(x, complex):
        return emit(node, node.target, pairs[z], x)
    x = 1 / x if is_call(node, aten.div) else x
    first, second = _part(node, pairs[z], 0), _part(node, pairs[z], 1)
    quarter = _stacked(node, emit(node, aten.neg.default, second), first)
    sides = (emit(node, aten.mul.Tensor, t, p) for t, p in ((pairs[z], x.real), (quarter, x.imag)))
    return emit(node, aten.add.Tensor, *sides)


def _turned(node: fx.Node, a: fx.Node, b: fx.Node) -> fx.Node:
    """a·Re(b) + J(a)·Im(b)."""
    real, imaginary = (
        reshaped(node, part, [*shape_of(part), 1])
        for part in (_part(node, b, 0), _part(node, b, 1))
    )
    first, second = _part(node, a, 0), _part(node, a, 1)
    quarter = _stacked(node, emit(node, aten.neg.default, second), first)
    straight = emit(node, aten.mul.Tensor, a, real)
    return emit(node, aten.add.Tensor, straight, emit(node, aten.mul.Tensor, quarter, imaginary))


def _divided(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """Over complex numbers: times their conjugates, over their squared sizes."""
    z, w = node.args[:2]
    if w not in pairs:
        return _scaled(node, z, w, pairs)
    pair = pairs[w]  # type: ignore[index]
    size = emit(node, aten.sum.dim_IntList, _squared(node, pair), [rank(pair) - 1], True)
    inverse = emit(node, aten.div.Tensor, _mirrored(node, pair), size)
    if z in pairs:
        return _turned(node, pairs[z], inverse)
    if is_tensor(z):
        z = reshaped(node, z, [*shape_of(z), 1])  # type: ignore[arg-type]
    elif isinstance(z, complex):
        raise _refused(node, "divides a complex number by them")
    return emit(node, aten.mul.Tensor, inverse, z)


def _squared(node: fx.Node, x: fx.Node) -> fx.Node:
    return emit(node, aten.mul.Tensor, x, x)


def _mirrored(node: fx.Node, pair: fx.Node) -> fx.Node:
    return _stacked(node, _part(node, pair, 0), emit(node, aten.neg.default, _part(node, pair, 1)))


def _exponential(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    real, imaginary = _parts(node, node.args[0], pairs)
    size = emit(node, aten.exp.default, real)
    parts = (emit(node, op, imaginary) for op in (aten.cos.default, aten.sin.default))
    return _stacked(node, *(emit(node, aten.mul.Tensor, size, p) for p in parts))


def _angle(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    real, imaginary = _parts(node, node.args[0], pairs)
    return emit(node, aten.atan2.default, imaginary, real)


def _contracted(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A matrix product: of real and imaginary parts side by side, once for either."""
    (a, b), (c, d) = (_parts(node, x, pairs) for x in node.args[:2])
    if not is_tensor(b) and not is_tensor(d):
        product = emit(node, aten.matmul.default, a, c)
        return _stacked(node, product, emit(node, aten.zeros_like.default, product))
    if not is_tensor(b) or not is_tensor(d):
        pieces = ((a, c), (a, d)) if is_tensor(d) else ((a, c), (b, c))
        return _stacked(node, *(emit(node, aten.matmul.default, *piece) for piece in pieces))
    left = emit(node, aten.cat.default, [a, b], rank(a) - 1)
    rights = ([c, emit(node, aten.neg.default, d)], [d, c])
    joined = (emit(node, aten.cat.default, parts, rank(c) - 2) for parts in rights)
    return _stacked(node, *(emit(node, aten.matmul.default, left, right) for right in joined))


def _total(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    """A sum or a mean along axes."""
    pair = pairs[node.args[0]]  # type: ignore[index]
    dims, axes = argument(node, "dim"), rank(pair) - 1
    dims = [dims] if isinstance(dims, int) else list(dims or range(axes))
    op = aten.mean.dim if is_call(node, aten.mean) else aten.sum.dim_IntList
    return emit(node, op, pair, [d % axes for d in dims], bool(argument(node, "keepdim")))


def _real(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return _part(node, pairs[node.args[0]], 0)  # type: ignore[index]


def _imaginary(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return _part(node, pairs[node.args[0]], 1)  # type: ignore[index]


def _conjugate(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return _mirrored(node, pairs[node.args[0]])  # type: ignore[index]


def _size(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    pair = pairs[node.args[0]]  # type: ignore[index]
    return emit(node, aten.linalg_vector_norm.default, pair, 2, [rank(pair) - 1])


def _negative(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return emit(node, aten.neg.default, pairs[node.args[0]])  # type: ignore[index]


CONVERSIONS: dict[Any, Callable[[fx.Node, dict[fx.Node, fx.Node]], fx.Node]] = {
    aten.view_as_complex: _as_complex,
    aten.view_as_real: _as_real,
    aten.complex: _of_parts,
    aten.polar: _polar,
    aten.mul: _multiplied,
    aten.div: _divided,
    aten.real: _real,
    aten.imag: _imaginary,
    **dict.fromkeys((aten.conj, aten._conj, aten.conj_physical, aten._conj_physical), _conjugate),
    aten.abs: _size,
    aten.neg: _negative,
    aten.exp: _exponential,
    aten.angle: _angle,
    aten.matmul: _contracted,
    **dict.fromkeys((aten.sum, aten.mean), _total),
}
