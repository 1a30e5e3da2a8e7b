"""Coarse fields: a field of the roll-up holds one number where its value has the same number many
times in a row.

An axis of a field may be shorter than its value's, by a whole factor: each of its numbers then
stands for that many places, one after another. Fields are the same over features nearly everywhere,
so that their feature axes have length 1, and of heads side by side one number each. What is here
makes fields finer, and takes them back through the commonest moves as coarse as they are. Scores
are the same without; ``tests/rollup/test_matrix.py`` needs it: all rows of C, no axis of features.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from relprop.rules.call import Call

aten = torch.ops.aten
Shape = Sequence[int]


def finer(field: Tensor, lengths: Shape) -> Tensor:
    """A field whose axes have these lengths, each a multiple of what it has; channels come
    first."""
    for axis, (own, length) in enumerate(zip(field.shape[1:], lengths, strict=True), 1):
        if own == 1 and length != 1:
            field = field.expand(*field.shape[:axis], length, *field.shape[axis + 1 :])
        elif own != length:
            times = (*field.shape[: axis + 1], length // own, *field.shape[axis + 1 :])
            field = field.unsqueeze(axis + 1).expand(times).flatten(axis, axis + 1)
    return field


def finer_along(field: Tensor, axis: int, length: int) -> Tensor:
    """A field one of whose axes (of the value: without the channels) has this length."""
    lengths = list(field.shape[1:])
    lengths[axis] = length
    return finer(field, lengths)


def as_fine(fields: Sequence[Tensor]) -> list[Tensor]:
    """Fields of one value, each as fine as all need."""
    lengths = [math.lcm(*sizes) for sizes in zip(*(f.shape[1:] for f in fields), strict=True)]
    return [finer(field, lengths) for field in fields]


# -- back through moves: from the field of a result to that of the tensor that was moved


def reshaped(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """reshape, flatten, squeeze, unsqueeze: the same numbers in a row, cut otherwise."""
    return [refolded(field, result, call.inputs[0].shape)]


def refolded(field: Tensor, result: Shape, shape: Shape) -> Tensor:
    """A field of a value of shape ``result``, for the same value in another shape.

    Both shapes and the lengths of the field's axes cut the row of all numbers into factors. A
    factor that the field has once for all stays so if nothing finer lies behind it on its axis.
    """
    sizes = zip(result, field.shape[1:], strict=True)
    halves = [part for n, own in sizes for part in (own, n // max(own, 1))]
    cuts = sorted({1, *accumulate(halves, operator.mul), *accumulate(shape, operator.mul)})
    if 0 in cuts or any(after % before for before, after in pairwise(cuts)):
        return finer(field, result).reshape(len(field), *shape)
    factors = [(n, i % 2 == 0) for i, part in enumerate(_cut(halves, cuts)) for n in part]
    apart, wide, ends = [n if own else 1 for n, own in factors], list[int](), list[int]()
    for part in _cut(shape, cuts):
        here, factors = factors[: len(part)], factors[len(part) :]
        last = max((i for i, (_, own) in enumerate(here, 1) if own), default=0)
        wide += [n if i < last else 1 for i, (n, _) in enumerate(here)]
        ends.append(math.prod(n for n, _ in here[:last]))
    return field.reshape(len(field), *apart).expand(-1, *wide).reshape(len(field), *ends)


def _cut(sizes: Iterable[int], cuts: Sequence[int]) -> Iterator[list[int]]:
    """The factors into which ``cuts`` (products of all that stands before) divide each size."""
    begin = 1
    for size in sizes:
        inside = [c for c in cuts if begin <= c <= begin * size]
        yield [after // before for before, after in pairwise(inside)]
        begin *= size


def permuted(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """permute: the inverse permutation."""
    dims = [d % len(result) for d in call.argument(1, "dims")]
    return [field.permute(0, *(dims.index(i) + 1 for i in range(len(dims))))]


def selected(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """select: nothing but for the chosen slice."""
    shape = call.inputs[0].shape
    dim = call.argument(1, "dim", 0) % len(shape)
    sizes = list(field.shape)
    sizes.insert(dim + 1, shape[dim])
    return [aten.select_backward(field, sizes, dim + 1, call.argument(2, "index"))]


def sliced(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """slice: nothing outside it."""
    length = call.inputs[0].shape[dim := call.argument(1, "dim", 0) % len(result)]
    start, end, step = cut_of(call, length)
    whole = step == 1 and start < end
    run = math.gcd(length, start, end, _run(field, dim, result)) if whole else 1
    field = finer_along(field, dim, result[dim] // run)
    sizes = list(field.shape)
    sizes[dim + 1] = length // run
    return [aten.slice_backward(field, sizes, dim + 1, start // run, end // run, step)]


def cut_of(call: Call, length: int) -> tuple[int, int, int]:
    """Where a slice of an axis of this length starts and ends, and its step."""
    ends = call.argument(2, "start"), call.argument(3, "end"), call.argument(4, "step", 1)
    return slice(*ends).indices(length)


def rolled(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """roll: as far the other way; an axis along which all is the same stays as it is."""
    shifts, dims = call.argument(1, "shifts"), call.argument(2, "dims", [])
    shifts, dims = ([x] if isinstance(x, int) else x for x in (shifts, dims))
    if not dims:
        rows = finer(field, result).flatten(1).roll(-shifts[0], 1)
        return [rows.reshape(len(field), *result)]
    axes = [d % len(result) for d in dims]
    for axis in axes:
        if field.shape[axis + 1] > 1:
            field = finer_along(field, axis, result[axis])
    return [field.roll([-n for n in shifts], [axis + 1 for axis in axes])]


def flipped(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """flip: once more."""
    dims = call.argument(1, "dims")
    axes = [d % len(result) + 1 for d in ([dims] if isinstance(dims, int) else dims)]
    return [field.flip(axes)]


def joined(field: Tensor, call: Call, result: Shape) -> list[Tensor]:
    """cat: cut where it was joined. PyTorch lets an empty vector (a fresh cache) pass among tensors
    of any shape."""
    dim = call.argument(1, "dim", 0) % len(result)
    lengths = [x.shape[dim] if x.dim() == len(result) else 0 for x in call.inputs]
    run = math.gcd(*lengths, _run(field, dim, result)) or 1
    field = finer_along(field, dim, result[dim] // run)
    parts = field.split([n // run for n in lengths], dim + 1)
    return [
        part if x.dim() == len(result) else part.reshape(len(field), *x.shape)
        for part, x in zip(parts, call.inputs, strict=True)
    ]


def _run(field: Tensor, axis: int, result: Shape) -> int:
    """How many places of an axis each number of a field stands for."""
    return result[axis] // max(field.shape[axis + 1], 1)
