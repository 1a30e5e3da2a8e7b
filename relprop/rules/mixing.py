"""The roll-up where tokens meet other than in attention: pooling, convolutions, products of two
activations, constant matrices.

Each share is positive and those of one output sum to 1, so that nothing is lost or gained.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relprop.rules.call import Call
from relprop.rules.coarse import finer, finer_along
from relprop.rules.fields import (
    Field,
    Fields,
    number,
    operand_shape,
    spread,
    sum_axis,
    unbroadcast,
)
from relprop.rules.notes import ConvolutionNote, FieldNote, ProductNote
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
    mean = weights.mean(note.weighed, keepdim=True)
    share = torch.where(mean > 0, weights / torch.where(mean > 0, mean, 1.0), 0.0)
    field = finer(field, note.shape)
    field = torch.cat([field[:-1] * share, field[-1:] * (share > 0)])
    return tuple(
        unbroadcast(field, note.shape, operand_shape(call, i), note.token_axes) if i == at else None
        for i in range(len(call.operands))
    )


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

    numbers, present = number(finer(field, call.noted(FieldNote).shape), ())
    covered, pull = torch.func.vjp(
        operation, torch.ones(operand_shape(call, at), dtype=field.dtype, device=field.device)
    )  # type: ignore[misc]
    share = torch.where(covered > 0, 1 / torch.where(covered > 0, covered, 1.0), 0.0)
    back = torch.stack([pull(channel * share)[0] for channel in (*(numbers * present), present[0])])
    placed = torch.cat([back[:-1], (back[-1:] > 0).to(field.dtype)])
    return tuple(placed if i == at else None for i in range(len(call.operands)))


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
    there = torch.ones((), dtype=field.dtype, device=field.device)
    if note.there is not None:
        there = note.there.to(there)
        there = there.amax(1, keepdim=True) if channels == 1 else there
    there = there.expand(shape[0], channels, *shape[2:])
    covered, pull = torch.func.vjp(lambda x: operation(x, kernel, None, **options), there)  # type: ignore[misc]
    share = torch.where(covered > 0, 1 / torch.where(covered > 0, covered, 1.0), 0.0)
    back = torch.stack(
        [pull(channel * share)[0] for channel in (*(numbers / note.folded * present), present[0])]
    )
    back = back * there  # padding is no token
    return (
        torch.cat([back[:-1], (back[-1:] > 0).to(field.dtype)]),
        *(None for _ in call.operands[1:]),
    )


@rule(family="rollup", reads="", name="field: tokens mixed by weights")
def mixed(field: Field, call: Call) -> Fields:
    """linear over tokens: token k of the input has |w_ok|/Σ_k|w_ok| of the number of result o."""
    weights = call.inputs[1].abs().to(field.dtype)
    total = weights.sum(-1, keepdim=True)
    share = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)
    numbers, present = number(finer_along(field, -1, weights.shape[-2]), ())
    received = (numbers * present) @ share
    there = ((present @ share) > 0).to(field.dtype)
    return (torch.cat([received * there, there]), *(None for _ in call.operands[1:]))


@rule(family="rollup", reads="", name="field: product")
def contracted(field: Field, call: Call) -> Fields:
    """A matrix product that is no attention site: over features each operand's row or column
    carries its weight of the field; over tokens, a mixing matrix (constant or not) hands token k
    its |m_qk|/Σ_k|m_qk|, and two operands |a_ik·b_kj|/Σ_k|a_ik·b_kj|."""
    note = call.noted(ProductNote)
    a, b = (x if x.dim() > 1 else x.unsqueeze(-1 if i else 0) for i, x in enumerate(call.inputs))
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    field = finer(field, note.shape).reshape(len(field), *shape)
    if note.mixer is not None:
        shares = _mixed(field, a, b, note.mixer)
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
    numbers, present = number(field, ())
    return torch.cat([numbers * present, present])


def _mixed(field: Field, a: Tensor, b: Tensor, mixer: int) -> list[Field | None]:
    """Tokens mixed by a matrix: its operand receives nothing, as queries and keys do not."""
    numbers, present = number(field, (-1 if mixer == 0 else -2,))
    weights = (a if mixer == 0 else b).abs().to(field.dtype)
    total = weights.sum(-1 if mixer == 0 else -2, keepdim=True)
    share = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)
    received = share.mT @ (numbers * present) if mixer == 0 else (numbers * present) @ share.mT
    there = ((share.mT @ present if mixer == 0 else present @ share.mT) > 0).to(field.dtype)
    mixed_by = spread(received, there)
    return [None, mixed_by] if mixer == 0 else [mixed_by, None]


def _summed(field: Field, a: Tensor, b: Tensor) -> list[Field | None]:
    """Both operands hold the tokens that are summed: shares by the size of the terms, so that a
    token whose terms are 0 receives nothing."""
    numbers, present = number(field, (-2, -1))
    total = a @ b
    inverse = torch.where(total > 0, 1 / torch.where(total > 0, total, 1.0), 0.0)
    counted = (total > 0).sum((-2, -1), keepdim=True).clamp(min=1)
    terms = (a * (inverse @ b.mT)).sum(-2).unsqueeze(
        -2
    ) / counted  # Σ_ij |a_ik b_kj| / Σ_k|a_ik b_kj|, a mean over i and j
    there = (present * (terms > 0)).to(field.dtype)
    received = numbers * terms
    return [spread(received, there), spread(received.mT, there.mT)]
