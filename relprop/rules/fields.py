"""Eq. 13–14 as a rule set: how one number per token position walks from the target to the input
tokens.

A *field* has the shape of a value, with channels first: every channel but the last is a sum, the
last is the count of what carries it; the number at a place is sum/count. *move* ops move both; over
feature and head axes the number is Σsum/Σcount (so the mean over heads E_h falls out of the value
projection); over token axes fields sum; where uses of one value meet, numbers add. Its axes may be
shorter than the value's (``coarse.py``), whose shape ``call.note`` says. ``call.extra``
is Eq. 13's (∇A ⊙ R)⁺ at an attention site, a channel axis first; ``call.note`` says which axes are
tokens. What each operand carries is in ``shares.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relprop.numerics import per_count
from relprop.rules.call import Call
from relprop.rules.coarse import Shape, as_fine, finer
from relprop.rules.families import move
from relprop.rules.notes import FieldNote, LinearNote, ReductionNote, SiteNote
from relprop.rules.rule import Rule, rule

Field = Tensor
Inverse = Callable[[Tensor, Call, Shape], Sequence[Tensor]]
Fields = tuple[Field | None, ...]


def number(field: Field, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Σsum/Σcount over ``dims`` (kept, counted without the channel axis), and whether anything
    carries it. The count tells features that are read from others: values cut from one layer with
    queries and keys, a target that reads one feature (every block of ``test_graphs`` needs it)."""
    axes = tuple(d + 1 if d >= 0 else d for d in dims)
    summed = field.sum(axes, keepdim=True) if axes else field
    count = summed[-1:]
    return per_count(summed[:-1], count), count.sign()


def spread(numbers: Tensor, present: Tensor) -> Field:
    """A field that has ``numbers`` wherever something is present."""
    return torch.cat([numbers * present, present.expand(1, *numbers.shape[1:])])


def unbroadcast(
    field: Field,
    result: tuple[int, ...],
    shape: tuple[int, ...],
    token_axes: tuple[bool, ...],
) -> Field:
    """The field of an operand of this shape that was broadcast to the ``result``: sums over token
    axes, means over the others."""
    extra = len(result) - len(shape)
    repeated = [i for i, n in enumerate(result) if i < extra or (shape[i - extra] == 1 and n != 1)]
    for i in repeated:
        times = result[i] // max(field.shape[i + 1], 1)
        field = sum_axis(field, i + 1, len(token_axes) > i and token_axes[i], times)
    return field.reshape(len(field), *field.shape[extra + 1 :])


def sum_axis(field: Field, axis: int, tokens: bool, times: int = 1) -> Field:
    """One axis summed to length 1: numbers add over tokens; over features sums and counts do.
    ``times``: how many places each number stands for."""
    if not tokens:
        return field.sum(axis, keepdim=True) * times
    numbers, present = number(field, ())
    numbers = numbers.sum(axis, keepdim=True)
    return torch.cat([numbers * times, present.amax(axis, keepdim=True)])


def operand_shape(call: Call, index: int) -> tuple[int, ...]:
    """The shape of an operand."""
    return tuple(call.inputs[index].shape)


def meet(value: Tensor | None, fields: tuple[Field, ...]) -> Field:
    """Uses of one value meet: their numbers, one per token (``shares.levelled``), add."""
    fields = tuple(as_fine(fields))
    numbers = torch.stack([f[:-1] for f in fields]).sum(0)
    return torch.cat([numbers, torch.stack([f[-1:] for f in fields]).amax(0)])


@rule(family="rollup", reads="", name="field: merge", row_wise=True)
def merge(field: Field, call: Call) -> Fields:
    """add, product, elementwise, norms: to each operand that is an activation."""
    if call.extra is not None:  # 1/(1 + Σ_j E_h M), where rows of Ā are normalised
        field, scale = as_fine([field, call.extra])
        field = torch.cat([field[:-1] * scale, field[-1:]])
    return to_operands(field, call)


def to_operands(field: Field, call: Call) -> Fields:
    """The field of a result for each operand that is an activation."""
    note = call.noted(FieldNote)
    return tuple(
        unbroadcast(field, note.shape, operand_shape(call, i), note.token_axes) if o.flows else None
        for i, o in enumerate(call.operands)
    )


def moved(field: Field, call: Call, inverse: Inverse) -> Fields:
    """Moves take sums and counts to where the values came from; ``inverse`` takes a field there."""
    note = call.noted(FieldNote)
    if note.adds:  # one token of the input is several of the output: their numbers add
        field = spread(*number(field, ()))
    fields = inverse(field, call, note.shape)
    shares = iter([_once(f) for f in fields] if note.adds else fields)
    return tuple(next(shares) if x.is_floating_point() else None for x in call.inputs)


def _once(field: Field) -> Field:
    return torch.cat([field[:-1], field[-1:].sign()])


def moved_back(field: Field, call: Call, result: Shape) -> list[Field]:
    """Any move: its own vector–Jacobian product on every channel; a few are faster one by one, many
    in a vmap."""

    def back(channel: Tensor) -> list[Tensor]:
        return [s for s in move.function(channel, call) if s is not None]

    field = finer(field, result)
    if len(field) > 8:
        return list(torch.func.vmap(lambda c: tuple(back(c)))(field))
    return [torch.stack(same) for same in zip(*(back(c) for c in field), strict=True)]


@rule(family="rollup", reads="", name="field: expand")
def expanded(field: Field, call: Call) -> Fields:
    """expand: a repeated token axis sums, a repeated head or feature axis is a mean."""
    return to_operands(field, call)


@rule(family="rollup", reads="", name="field: mean over features", row_wise=True)
def projected(field: Field, call: Call) -> Fields:
    """linear: the number of a position is the mean over the features that carry one; k tokens
    folded into the input get 1/k each."""
    numbers, present = number(field, (-1,))
    note = call.noted(LinearNote)
    each, begin = list[Tensor](), 0
    for length, tokens in note.folded:
        there = note.there
        if there is not None and there.shape[-1] > 1 and len(note.folded) > 1:
            there = there[..., begin : begin + length]
        each.append(_each(numbers, tokens, there, (-1,)))
        begin += length
    if len(each) > 1:
        sizes = (length for length, _ in note.folded)
        each = [e.expand(*e.shape[:-1], n) for e, n in zip(each, sizes, strict=True)]
    numbers = each[0] if len(each) == 1 else torch.cat(each, -1)
    return (spread(numbers, present), *(None for _ in call.operands[1:]))


def _each(numbers: Tensor, count: int, there: Tensor | None, along: tuple[int, ...]) -> Tensor:
    """What each of ``count`` tokens along some axes has of numbers, in even shares; padding has
    none."""
    if there is None:
        return numbers / count
    there = there.to(numbers)
    return numbers * per_count(there, count * there.mean(along, keepdim=True))


@rule(family="rollup", reads="", name="field: mean over what is pooled")
def pooled(field: Field, call: Call) -> Fields:
    """mean, sum: each of n pooled tokens gets 1/n; pooled features get it whole."""
    note = call.noted(ReductionNote)
    for i in sorted(note.reduced) if len(note.shape) < call.inputs[0].dim() else ():
        field = field.unsqueeze(i + 1)
    numbers, present = number(field, ())
    return (spread(_each(numbers, note.pooled, note.there, note.reduced), present),)


def attended(first: int | None = None) -> Rule:
    """Attention: V's rows receive fieldᵀ·(∇A ⊙ R)⁺ per head (Eq. 13), as ``taken_through`` says;
    queries and keys receive nothing. No matrix: nothing passes."""

    def function(field: Field, call: Call) -> Fields:
        """The field of V: of each query's number and the matrix, the same for all of V's
        features."""
        note = call.noted(SiteNote)
        v_at = 0 if note.transposed else 1
        numbers, there = of_queries(field, note)
        received = None
        if call.extra is not None:
            received = taken_through(numbers, call.extra, transposed=note.transposed, first=first)
        made = of_values(received, there, operand_shape(call, v_at), note, len(numbers))
        return tuple(made if i == v_at else None for i in range(2))

    return Rule(function, "field: attention site", "rollup", frozenset())


def taken_through(
    numbers: Tensor, matrix: Tensor, *, transposed: bool, first: int | None = None
) -> Tensor:
    """What keys receive of the queries' ``numbers`` through a matrix: fieldᵀ·M.

    A matrix without a channel axis is the scores', the first channel's, which take of all channels,
    and the identity gets nothing: they are apart so that a small score is not lost beside the
    identity in float32. A matrix with a channel axis, of length 1, serves every channel. ``first``:
    of one site alone, what its matrices (one, or a channel each) make of the identity, the last
    channel, goes into the channels from there on.
    """
    if first is None and matrix.dim() == numbers.dim():  # one product for all, side by side
        side = -2 if transposed else -1
        return _through(numbers.transpose(0, side), matrix, transposed).transpose(0, side)
    taken = numbers.sum(0, keepdim=True) if first is None else numbers[-1:]
    made = _through(taken, matrix, transposed)
    none, before = torch.zeros_like(made[:1]), first or 0
    behind = none.expand(len(numbers) - before - len(made), *none.shape[1:])
    return torch.cat([none.expand(before, *none.shape[1:]), made, behind])


def _through(numbers: Tensor, matrix: Tensor, transposed: bool) -> Tensor:
    """Along its rows, as a matrix lies in memory: down its columns the few ``numbers`` would take
    many times as long. A model may compute some maps in another precision than its output."""
    matrix = matrix.to(numbers.dtype)
    return numbers @ matrix.mT if transposed else (numbers.mT @ matrix).mT


def of_queries(field: Field, note: SiteNote) -> tuple[Tensor, Tensor]:
    """A site's field as one number per query and head, and whether something is present at the
    keys: wherever a query has something."""
    feature, query = (-2, -1) if note.transposed else (-1, -2)
    own = field.shape[1:]
    lengths = [n if coarse > 1 else 1 for n, coarse in zip(note.shape, own, strict=True)]
    lengths[feature], lengths[query] = own[feature], note.shape[query]
    numbers, present = number(finer(field, lengths), (feature,))
    return numbers, present.amax(query, keepdim=True)


def of_values(
    received: Tensor | None, there: Tensor, shape: tuple[int, ...], note: SiteNote, channels: int
) -> Field:
    """The field of V, of this shape: what each key ``received`` (``None``: nothing)."""
    if received is None:
        received = there.new_zeros(channels, *there.shape[1:])
    result = (*note.shape[:-2], *shape[-2:])
    field = unbroadcast(spread(received, there), result, shape, ())
    return field if note.share is None else note.share(field)
