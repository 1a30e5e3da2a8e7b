"""Tensors that are one-hot codes of whole numbers, found by trying: all that such a tensor is made
of is worked out for other numbers."""

from __future__ import annotations

import torch
from torch import fx
from torch.nn.functional import one_hot

from relprop.operations import Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    emit,
    is_live,
    is_tensor,
    permuted,
    reshaped,
    shape_of,
    val,
)
from relprop.tracer.passes.lookups.sources import part_above
from relprop.tracer.passes.sums.terms import folded


def are_ids(x: object) -> bool:
    """Whether a tensor holds whole numbers that depend on an input."""
    return (
        is_tensor(x)
        and is_live(x)
        and not val(x).is_floating_point()
        and val(x).dtype != torch.bool
    )


def of_codes(node: fx.Node, constants: Constants) -> fx.Node | None:
    """A linear map of zeros with a 1 for each number → the rows of its matrix that they pick, and
    the bias."""
    x, weight, *bias = arguments(node)
    ids = None if is_live(weight) else _ids_of(x, constants)
    if ids is None:
        return None
    rows = emit(node, aten.embedding.default, permuted(node, weight, [1, 0]), ids)
    terms = (reshaped(node, rows, shape_of(node)), *bias)
    return folded(node, [(1, t) for t in terms if t is not None])


def _ids_of(x: fx.Node, constants: Constants) -> fx.Node | None:
    """The numbers whose one-hot code a tensor is: of as many axes less one, but for axes of length
    1."""
    count, wanted = shape_of(x)[-1], [s for s in shape_of(x)[:-1] if s != 1]

    def are_numbers(node: fx.Node) -> bool:
        return are_ids(node) and [s for s in shape_of(node) if s != 1] == wanted

    def is_inside(node: fx.Node) -> bool:
        return kind(node) not in (Kind.LINEAR, Kind.MATMUL) and not are_numbers(node)

    part = part_above(x, constants, is_inside)
    if len(part.sources) != 1 or not are_numbers(part.source) or count < 2 or not part.is_small:
        return None
    numbers = torch.arange(val(part.source).numel()).reshape(shape_of(part.source)) * 7 % count
    try:
        made = part(numbers)
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None
    codes = one_hot(numbers, count).to(made.dtype)
    return part.source if torch.equal(made, codes.reshape(shape_of(x))) else None
