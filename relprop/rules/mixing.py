"""The roll-up where tokens meet other than in attention: pooling, convolutions, products of two
activations, constant matrices.

Each share is positive and those of one output sum to 1, so that nothing is lost or gained.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from relprop.numerics import per_count
from relprop.rules.call import Call
from relprop.rules.coarse import finer, finer_along
from relprop.rules.fields import (
    Field,
    Fields,
    number,
    operand_shape,
    spread,
    sum_axis,
    to_operands,
    unbroadcast,
)
from relprop.rules.notes import ConvolutionNote, FieldNote, LinearNote, ProductNote
from relprop.rules.rule import rule


@rule(family="rollup", reads="", name="field: weighted pooling")
def weighed(field: Field, call: Call) -> Fields:
    """A product with a mask, or a fill by one, that is then summed over tokens: each token gets its
    share of the weights, a masked one nothing."""
    at, note = call.activations[0], call.noted(FieldNote)
    ones, zeros = (
        call.apply(*(f(x) if i == at else x for i, x in enumerate(call.inputs)))
        for f in (torch.ones_like, torch.zeros_like)
    )
    weights = (ones - zeros).abs().to(field.dtype)
    share = per_count(weights, weights.mean(note.weighed, keepdim=True))
    field = finer(field, note.shape)
    field = torch.cat([field[:-1] * share, field[-1:]])
    return to_operands(field, call)


@rule(family="rollup", reads="", name="field: even shares")
def spread_evenly(field: Field, call: Call) -> Fields:
    """Pooling, resampling, running sums, sums by index: what goes into an output position in even
    shares (1/k each of k)."""
    at = call.activations[0]

    def operation(x: Tensor) -> Tensor:
        wide = [v.to(field.dtype) if v.is_floating_point() else v for v in call.inputs]
        wide[at] = x
        made: Tensor = call.apply(*wide)
        return made

    note = call.noted(FieldNote)
    there = field.new_ones(()) if note.there is None else note.there.to(field)  # no padding
    field = spread(*number(finer(field, note.shape), ()))
    placed = _even(field, operation, there.expand(operand_shape(call, at)))
    return tuple(placed if i == at else None for i in range(len(call.operands)))


def _even(field: Field, operation: Callable[[Tensor], Tensor], there: Tensor) -> Field:
    """A field at the operand of an operation, whose tokens are ``there`` (1, else 0): what goes
    into one result in even shares."""
    covered, pull = torch.func.vjp(operation, there)  # type: ignore[misc]
    share = per_count(torch.ones_like(covered), covered)
    back = torch.stack([pull(channel * share)[0] for channel in field]) * there
    return torch.cat([back[:-1], (back[-1:] > 0).to(field.dtype)])


@rule(family="rollup", reads="inputs", name="field: sampled")
def sampled(field: Field, call: Call) -> Fields:
    """Values read between positions: by the interpolation's weights; the positions read receive
    nothing."""
    if not call.operands[0].flows:
        return (None,) * len(call.operands)
    shares: Fields = spread_evenly.function(field, call)
    return shares


@rule(family="rollup", reads="", name="field: receptive field")
def convolved(field: Field, call: Call) -> Fields:
    """A convolution (1 to 3 axes, also transposed): the positions under a window in even shares;
    channels by their mean unless it is depthwise, k tokens folded into them 1/k each."""
    shape = operand_shape(call, 0)
    note = call.noted(ConvolutionNote)
    channels, operation = note.depthwise, note.convolution
    assert operation is not None
    lengths = list(note.shape)
    lengths[1] = channels if channels > 1 else field.shape[2]
    numbers, present = number(finer(field, lengths), () if channels > 1 else (1,))
    kernel = torch.ones(
        channels, 1, *call.inputs[1].shape[2:], dtype=field.dtype, device=field.device
    )
    options = {**note.options, "groups": channels}
    there = kernel.new_ones(()) if note.there is None else note.there.to(kernel)  # no padding
    there = there.amax(1, keepdim=True) if channels == 1 and there.dim() else there
    there = there.expand(shape[0], channels, *shape[2:])
    even = _even(
        spread(numbers / note.folded, present),
        lambda x: operation(x, kernel, None, **options),
        there,
    )
    return (even, *(None for _ in call.operands[1:]))


@rule(family="rollup", reads="", name="field: tokens mixed by weights")
def mixed(field: Field, call: Call) -> Fields:
    """linear over tokens: token k of the input has |w_ok|/Σ_k|w_ok| of the number of result o;
    padding has none."""
    weights, note = call.inputs[1], call.noted(LinearNote)
    if note.there is None:
        shared = _shared(finer_along(field, -1, weights.shape[-2]), weights, ())
    else:
        left = weights.unsqueeze(-3) * note.there.to(weights).unsqueeze(-2)
        shared = _shared(finer(field, note.shape).unsqueeze(-2), left, ()).squeeze(-2)
    return (shared, *(None for _ in call.operands[1:]))


def _shared(field: Field, weights: Tensor, features: tuple[int, ...]) -> Field:
    """A field at o results, its last axis, at the k tokens that weights (o, k) mix: each has its
    part of them; ``features`` are meaned."""
    weights = weights.abs().to(field.dtype)
    share = per_count(weights, weights.sum(-1, keepdim=True))
    numbers, present = number(field, features)
    return spread((numbers * present) @ share, ((present @ share) > 0).to(field.dtype))


@rule(family="rollup", reads="", name="field: product")
def contracted(field: Field, call: Call) -> Fields:
    """A matrix product that is no attention site: over features each operand's row or column
    carries its weight of the field; over tokens, a mixing matrix (constant or not) hands token k
    its |m_qk|/Σ_k|m_qk|, and two operands |a_ik·b_kj|/Σ_k|a_ik·b_kj|."""
    note = call.noted(ProductNote)
    a, b = (x if x.dim() > 1 else x.unsqueeze(-1 if i else 0) for i, x in enumerate(call.inputs))
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    field = finer(field, note.shape).reshape(len(field), *shape)
    shares: list[Field | None]
    if note.mixer == 0:  # its operand receives nothing, as queries and keys do not
        shares = [None, _shared(field.mT, a, (-2,)).mT]
    elif note.mixer == 1:
        shares = [_shared(field, b.mT, (-2,)), None]
    elif note.over_tokens:
        shares = _summed(field, a.abs().to(field.dtype), b.abs().to(field.dtype))
    else:
        shares = [_line(field, -1, note.token_columns), _line(field, -2, note.token_rows)]
    tokens = (*note.token_axes[:-2], False, False)

    def of_operand(share: Field, i: int) -> Field:
        wide = tuple((a, b)[i].shape)
        share = unbroadcast(share, (*shape[:-2], *wide[-2:]), wide, tokens)
        return share if call.inputs[i].dim() > 1 else share.squeeze(-1 if i else -2)

    return tuple(
        of_operand(s, i) if s is not None and call.operands[i].flows else None
        for i, s in enumerate(shares)
    )


def _line(field: Field, axis: int, tokens: bool) -> Field:
    """One number per row (or column): over the other axis tokens add, features are a mean."""
    field = sum_axis(field, field.dim() + axis, tokens)
    return spread(*number(field, ()))


def _summed(field: Field, a: Tensor, b: Tensor) -> list[Field | None]:
    """Both operands hold the tokens that are summed: shares by the size of the terms, so that a
    token whose terms are 0 receives nothing."""
    numbers, present = number(field, (-2, -1))
    total = a @ b
    inverse = per_count(torch.ones_like(total), total)
    counted = (total > 0).sum((-2, -1), keepdim=True).clamp(min=1)
    terms = (a * (inverse @ b.mT)).sum(-2).unsqueeze(
        -2
    ) / counted  # Σ_ij |a_ik b_kj| / Σ_k|a_ik b_kj|, a mean over i and j
    there = (present * (terms > 0)).to(field.dtype)
    received = numbers * terms
    return [spread(received, there), spread(received.mT, there.mT)]
