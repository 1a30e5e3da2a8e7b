"""Products with matrices of which one number stands in each row: moves, and factors."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, is_live, rank, reshaped, shape_of, val


def simpler_matrix(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A product with a constant matrix that has one number in each row → positions picked, and
    multiplied with these; of two one after the other, too, where rounding is all that is left of
    the other numbers."""
    if is_call(node, aten.linear):
        (matrix, *bias), x, axis = arguments(node)[1:], operand(node), rank(node) - 1
    else:
        matrix, x, bias, axis = operand(node), operand(node, 1), [], rank(node) - 2
    if not is_live(x) or is_live(matrix) or rank(matrix) != 2 or rank(x) < 2:
        return None
    known = constants.value(matrix)
    if isinstance(known, Tensor) and is_call(node, aten.linear):
        x, known = _composed(x, known, constants)
    filled = _filled(matrix, constants) if known is None else known != 0
    if filled is None or not bool((filled.sum(1) == 1).all()):
        return None
    places = filled.int().argmax(1).to(constants.device)
    made = x
    if not torch.equal(places.cpu(), torch.arange(shape_of(x)[axis])):
        held = emit(node, Held(places))
        made = emit(node, aten.index.Tensor, x, [*[None] * axis, held])
    if known is None or not bool((known[filled] == 1).all()):
        scales = _picked(node, matrix, known, filled, constants)
        scales = reshaped(node, scales, [len(filled), *[1] * (rank(node) - 1 - axis)])
        made = emit(node, aten.mul.Tensor, made, scales)
    return emit(node, aten.add.Tensor, made, *bias) if bias and bias[0] is not None else made


def _filled(matrix: fx.Node, constants: Constants) -> Tensor | None:
    """Where numbers stand in a matrix that holds parameters among fixed zeros."""
    if kind(matrix) is Kind.PERMUTE:
        found = _filled(operand(matrix), constants)
        return None if found is None else found.mT
    if not is_call(matrix, aten.where):
        return None
    chosen, numbers, others = arguments(matrix)
    mask = constants.value(chosen)
    if not isinstance(mask, Tensor) or 0 not in (
        constants.number(others),
        constants.number(numbers),
    ):
        return None
    mask = mask if constants.number(others) == 0 else ~mask
    return mask.expand(shape_of(matrix))


def _picked(
    node: fx.Node, matrix: fx.Node, known: Tensor | None, filled: Tensor, constants: Constants
) -> fx.Node:
    """The one number of each row."""
    if known is not None:
        return emit(node, Held(known[filled].to(constants.device, val(node).dtype)))
    where = [emit(node, Held(at.to(constants.device))) for at in filled.nonzero().unbind(1)]
    return emit(node, aten.index.Tensor, matrix, where)


def _composed(x: fx.Node, matrix: Tensor, constants: Constants) -> tuple[fx.Node, Tensor]:
    """What enters a product with another constant matrix, and the product of both matrices without
    what rounding leaves beside whole numbers; else both as they are."""
    if not is_call(x, aten.linear) or len(x.args) != 2:
        return x, matrix
    first = constants.value(arguments(x)[1])
    if not isinstance(first, Tensor):
        return x, matrix
    both = matrix.double() @ first.double()
    whole = both.round()
    rounding = len(first) * torch.finfo(matrix.dtype).eps
    return operand(x), torch.where((both - whole).abs() <= rounding, whole, both)
