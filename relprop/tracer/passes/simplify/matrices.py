"""Products with matrices of which one number stands in each row: moves, and factors."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from relprop.operations import is_call, operand
from relprop.operations.vocabulary import Held
from relprop.tracer.constants import Constants
from relprop.tracer.editing import arguments, aten, emit, is_live, rank, reshaped, shape_of, val


def simpler_matrix(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A product with a constant matrix that has one number in each row → positions picked, and
    multiplied with these."""
    if is_call(node, aten.linear):
        (matrix, *bias), x, axis = arguments(node)[1:], operand(node), rank(node) - 1
    else:
        matrix, x, bias, axis = operand(node), operand(node, 1), [], rank(node) - 2
    if not is_live(x) or is_live(matrix) or rank(matrix) != 2 or rank(x) < 2:
        return None
    known = constants.value(matrix)
    if not isinstance(known, Tensor):
        return None
    filled = known != 0
    if not bool((filled.sum(1) == 1).all()):
        return None
    places = filled.int().argmax(1).to(constants.device)
    made = x
    if not torch.equal(places.cpu(), torch.arange(shape_of(x)[axis])):
        held = emit(node, Held(places))
        made = emit(node, aten.index.Tensor, x, [*[None] * axis, held])
    if not bool((known[filled] == 1).all()):
        scales = emit(node, Held(known[filled].to(constants.device, val(node).dtype)))
        scales = reshaped(node, scales, [len(filled), *[1] * (rank(node) - 1 - axis)])
        made = emit(node, aten.mul.Tensor, made, scales)
    return emit(node, aten.add.Tensor, made, *bias) if bias and bias[0] is not None else made
