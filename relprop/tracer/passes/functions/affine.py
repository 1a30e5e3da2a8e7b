"""The scale and the bias of a norm: what it is multiplied with or divided by and what is added to
it, in however many pieces, of parameters or of numbers."""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import WrittenNorm
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    expanded,
    is_float,
    is_live,
    permuted,
    rank,
    reshaped,
    shape_of,
    swap,
    val,
)


def raise_affine(graph: fx.Graph, constants: Constants) -> None:
    """What a norm is multiplied with, divided by and what is added to it, if parameters or numbers,
    are its own."""
    for node in list(graph.nodes):
        if node._erased or not is_float(node) or not (pairs := _pairs(node)):
            continue
        for norm, parameter in pairs:
            norm, parameter, back = _unturned(node, norm, parameter)
            if _belongs(node, norm, parameter):
                new = _with_affine(node, norm, _as_tensor(node, norm, parameter, constants))
                if new is not None:
                    swap(node, new if back is None else permuted(node, new, back))
                    break


def _pairs(node: fx.Node) -> list[tuple[fx.Node, fx.Node | float]]:
    """What may be a norm, and what it is scaled with or what is added to it."""
    if is_call(node, aten.neg):
        return [(operand(node), -1)]
    if kind(node) not in (Kind.PRODUCT, Kind.SUM, Kind.QUOTIENT) or len(node.args) != 2:
        return []
    a, b = arguments(node)
    return [(a, b)] if kind(node) is Kind.QUOTIENT else [(a, b), (b, a)]


def _unturned(
    node: fx.Node, norm: fx.Node, parameter: fx.Node | float
) -> tuple[fx.Node, fx.Node | float, list[int] | None]:
    """A norm and a parameter as they are before the norm's axes are put in another order, and that
    order."""
    turned = kind(norm) is Kind.PERMUTE and len(norm.users) == 1
    if not turned or is_live(parameter):
        return norm, parameter, None
    source, order = arguments(norm)[:2]
    if kind(source) is not Kind.NORM or len(shape_of(node)) != len(order):
        return norm, parameter, None
    if not isinstance(parameter, fx.Node):
        return source, parameter, order
    wide = reshaped(node, parameter, [1] * (len(order) - rank(parameter)) + shape_of(parameter))
    return source, permuted(node, wide, [order.index(i) for i in range(len(order))]), order


def _belongs(node: fx.Node, norm: object, parameter: object) -> bool:
    if not isinstance(norm, fx.Node) or kind(norm) is not Kind.NORM or len(norm.users) != 1:
        return False
    if is_live(parameter) or val(node).dtype != val(norm).dtype:
        return False
    if not isinstance(parameter, (int, float)) and (
        not is_float(parameter) or val(parameter).dtype != val(norm).dtype
    ):
        return False
    if sorted(shape_of(node)) != sorted(shape_of(norm)) or is_call(node, aten.sub):
        return False
    return is_call(norm, aten.layer_norm, aten.rms_norm) or isinstance(norm.target, WrittenNorm)


def _as_tensor(
    node: fx.Node, norm: fx.Node, parameter: fx.Node | float, constants: Constants
) -> fx.Node:
    """What is multiplied with or added, as a tensor."""
    if not isinstance(parameter, fx.Node):
        options = {"dtype": val(norm).dtype, "device": constants.device}
        parameter = emit(node, aten.full.default, [1], parameter, **options)
    inverse = kind(node) is Kind.QUOTIENT
    return emit(node, aten.reciprocal.default, parameter) if inverse else parameter


def _with_affine(node: fx.Node, norm: fx.Node, parameter: fx.Node) -> fx.Node | None:
    """The norm with one more factor or term; a layer norm whose factor varies elsewhere stays."""
    scales = kind(node) is not Kind.SUM
    if isinstance(norm.target, WrittenNorm):
        if norm.target.centred is None:
            return None
        x, weight, bias, *others = arguments(norm)
        weight, bias = _changed(node, weight, bias, parameter, scales)
        return emit(node, norm.target, x, weight, bias, *others)
    x, shape, weight = arguments(norm)[:3] if len(norm.args) > 2 else (*arguments(norm), None)
    bias = arguments(norm)[3] if is_call(norm, aten.layer_norm) and len(norm.args) > 3 else None
    lying = tuple(range(rank(x) - len(shape), rank(x)))
    if not set(axes_of(parameter, x)) <= set(lying) or (
        is_call(norm, aten.rms_norm) and not scales
    ):
        return None
    laid_out = laid(node, parameter, x, lying)
    weight, bias = _changed(node, weight, bias, laid_out, scales)
    if is_call(norm, aten.rms_norm):
        return emit(node, aten.rms_norm.default, x, shape, weight, *arguments(norm)[3:])
    return emit(node, aten.layer_norm.default, x, shape, weight, bias, *arguments(norm)[4:])


def _changed(
    node: fx.Node, weight: fx.Node | None, bias: fx.Node | None, parameter: fx.Node, scales: bool
) -> tuple[fx.Node | None, fx.Node | None]:
    if not scales:
        return weight, parameter if bias is None else emit(node, aten.add.Tensor, bias, parameter)
    scaled = parameter if weight is None else emit(node, aten.mul.Tensor, weight, parameter)
    return scaled, None if bias is None else emit(node, aten.mul.Tensor, bias, parameter)


def axes_of(parameter: fx.Node, x: fx.Node) -> list[int]:
    """The axes of ``x`` along which a parameter varies."""
    missing = rank(x) - rank(parameter)
    return [i + missing for i, s in enumerate(shape_of(parameter)) if s > 1]


def laid(at: fx.Node, parameter: fx.Node, x: fx.Node, axes: tuple[int, ...]) -> fx.Node:
    """A parameter of the shape that is normalised."""
    missing = rank(x) - rank(parameter)
    full = [1] * missing + shape_of(parameter)
    wide = reshaped(at, parameter, [full[i] for i in axes])
    return expanded(at, wide, [shape_of(x)[i] for i in axes])
