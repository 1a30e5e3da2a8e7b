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
from relprop.operations import MOVES, Kind, kind, packet
from relprop.tracer.editing import (
    aten,
    emit,
    expanded,
    is_live,
    is_tensor,
    permuted,
    rank,
    reshaped,
    shape_of,
    val,
)

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
        with node.graph.inserting_after(node):
            made = node.graph.call_function(aten.view_as_real.default, (node,))
        made.meta = {"place": node.meta["place"], "val": torch.view_as_real(val(node))}
        return made
    convert = CONVERSIONS.get(packet(node))
    if convert is not None:
        return convert(node, pairs)
    if kind(node) in MOVES | {Kind.CAST, Kind.IDENTITY, Kind.DETACH}:
        return _moved(node, pairs)
    if kind(node) is Kind.SUM:
        return emit(node, node.target, *(_pair(node, a, pairs) for a in node.args[:2]))
    raise _refused(node, f"{node.target} has no form in real numbers here")


def _refused(node: fx.Node, why: str) -> CaptureError:
    return CaptureError(
        message(
            f"the model computes with complex numbers, and {why}",
            at=str(node.meta.get("place", "")),
            then=["write that part in real numbers"],
        )
    )


def _pair(node: fx.Node, x: Any, pairs: dict[fx.Node, fx.Node]) -> Any:
    """An operand as real numbers with a last axis of two; a real one has no imaginary part."""
    if x in pairs:
        return pairs[x]
    if not is_tensor(x):
        raise _refused(node, f"{node.target} adds a number to them")
    return _stacked(node, x, emit(node, aten.zeros_like.default, x))


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
        return emit(node, aten.to.dtype, pair, REAL_OF[val(node).dtype])
    halves = []
    for which in (0, 1):

        def half(n: fx.Node, which: int = which) -> Any:
            return _part(node, pairs[n], which) if n in pairs else n

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), half)
        halves.append(emit(node, node.target, *args, **kwargs))
    return _stacked(node, *halves)


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
    if b not in pairs and a in pairs:
        return _scaled(node, a, b, pairs)
    if a not in pairs:
        return _scaled(node, b, a, pairs)
    a, b = pairs[a], pairs[b]
    if not is_live(a) and is_live(b):
        a, b = b, a
    return _turned(node, a, b)


def _scaled(node: fx.Node, z: Any, x: Any, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    if is_tensor(x):
        x = reshaped(node, x, [*shape_of(x), 1])
    elif isinstance(x, complex):
        raise _refused(node, "multiplies them with a complex number that is no tensor")
    return emit(node, node.target, pairs[z], x)


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
    if node.args[1] in pairs:
        raise _refused(node, "divides by them")
    return _scaled(node, *node.args[:2], pairs)


def _real(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return _part(node, pairs[node.args[0]], 0)  # type: ignore[index]


def _imaginary(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    return _part(node, pairs[node.args[0]], 1)  # type: ignore[index]


def _conjugate(node: fx.Node, pairs: dict[fx.Node, fx.Node]) -> fx.Node:
    pair = pairs[node.args[0]]  # type: ignore[index]
    return _stacked(node, _part(node, pair, 0), emit(node, aten.neg.default, _part(node, pair, 1)))


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
}
