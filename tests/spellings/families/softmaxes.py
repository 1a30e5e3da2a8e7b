"""Softmax by every formula: shifts, logarithms, quotients, other axes, key by key."""

import functools
import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import BESIDE, BESIDE_HIDDEN, CAUSAL, PADDED, PLAIN
from tests.spellings.spelling import OTHER_MAP, spell, spells


def _top(s):
    return s.amax(-1, keepdim=True)


def _ratio(e):
    return e / e.sum(-1, keepdim=True)


spell(
    "softmax",
    PLAIN,
    CAUSAL,
    PADDED,
    torch_softmax=lambda s: torch.softmax(s, dim=-1),
    module=lambda s: nn.Softmax(dim=-1)(s),
    exp_of_the_shifted=lambda s: _ratio(torch.exp(s - _top(s))),
    exp_of_log_softmax=lambda s: F.log_softmax(s, -1).exp(),
    exp_less_logsumexp=lambda s: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)),
)

spell(
    "softmax",
    PLAIN,
    method=lambda s: s.softmax(3),
    special=lambda s: torch.special.softmax(s, dim=-1),
    with_a_type=lambda s: F.softmax(s, dim=-1, dtype=torch.float64),
    private=lambda s: torch._softmax(s, -1, False),
    aten=lambda s: torch.ops.aten._softmax.default(s, 3, False),
    safe=lambda s: torch._safe_softmax(s, -1),
    softmin=lambda s: F.softmin(-s, dim=-1),
    softmin_module=lambda s: nn.Softmin(dim=-1)(-s),
    softmax_2d=lambda s: nn.Softmax2d()(s.permute(0, 3, 1, 2)).permute(0, 2, 3, 1),
    along_another_axis=lambda s: F.softmax(s.mT, 2).mT,
    along_the_first_axis=lambda s: F.softmax(s.movedim(-1, 0), 0).movedim(0, -1),
    along_the_first_axis_by_permute=lambda s: s.permute(3, 2, 1, 0).softmax(0).permute(3, 2, 1, 0),
    of_rows=lambda s: F.softmax(s.reshape(-1, s.shape[-1]), 1).view_as(s),
    of_heads_in_the_batch=lambda s: F.softmax(s.flatten(0, 1), -1).unflatten(0, s.shape[:2]),
    of_rows_one_by_one=lambda s: torch.stack([r.softmax(-1) for r in s.unbind(2)], 2),
    of_heads_one_by_one=lambda s: torch.cat([F.softmax(h, -1) for h in s.split(1, 1)], 1),
    of_samples_one_by_one=lambda s: torch.stack([F.softmax(x, -1) for x in s]),
    vmap=lambda s: torch.vmap(lambda x: F.softmax(x, -1))(s),
    vmap_of_quotients=lambda s: torch.vmap(lambda x: _ratio(x.exp()), 1, 1)(s),
    keys_reversed=lambda s: F.softmax(s.flip(-1), -1).flip(-1),
    exp_and_sum=lambda s: _ratio(s.exp()),
    exp_twice=lambda s: torch.exp(s) / torch.exp(s).sum(dim=-1, keepdim=True),
    exp_and_index=lambda s: s.exp() / s.exp().sum(-1)[..., None],
    exp_and_unsqueeze=lambda s: s.exp().div(s.exp().sum(3).unsqueeze(3)),
    shift_detached=lambda s: _ratio(torch.exp(s - _top(s).detach())),
    shift_under_no_grad=lambda s: _ratio(torch.exp(s - _without_gradient(s))),
    shift_by_max=lambda s: _ratio(torch.exp(s - s.max(-1, keepdim=True)[0])),
    shift_by_max_values=lambda s: _ratio((s - s.max(dim=-1, keepdim=True).values).exp()),
    shift_by_the_largest_of_all=lambda s: _ratio(torch.exp(s - s.amax((1, 2, 3), keepdim=True))),
    shift_by_mean=lambda s: _ratio(torch.exp(s - s.mean(-1, keepdim=True))),
    shift_by_the_first_key=lambda s: _ratio(torch.exp(s - s[..., :1])),
    shift_by_a_number=lambda s: _ratio(torch.exp(s - 3.0)),
    shift_by_something_of_the_query=lambda s: F.softmax(s + s.square().sum(-1, keepdim=True), -1),
    shifted_twice=lambda s: F.softmax(s - _top(s), -1),
    shifted_by_a_constant=lambda s: F.softmax(s + 7, -1),
    temperature=lambda s: F.softmax(2 * s / 2, -1),
    exp2=lambda s: _ratio(torch.exp2(s * math.log2(math.e))),
    power_of_e=lambda s: _ratio(math.e**s),
    power_of_e_by_pow=lambda s: _ratio(torch.pow(torch.tensor(math.e, dtype=s.dtype), s)),
    expm1=lambda s: _ratio(torch.expm1(s) + 1),
    reciprocal=lambda s: s.exp() * s.exp().sum(-1, keepdim=True).reciprocal(),
    one_over_the_sum=lambda s: s.exp() * (1 / s.exp().sum(-1, keepdim=True)),
    pow_of_the_sum=lambda s: s.exp() * s.exp().sum(-1, keepdim=True) ** -1,
    normalize=lambda s: F.normalize(s.exp(), p=1.0, dim=-1),
    one_norm=lambda s: s.exp() / torch.linalg.vector_norm(s.exp(), ord=1, dim=-1, keepdim=True),
    sum_by_matmul=lambda s: s.exp() / (s.exp() @ torch.ones(s.shape[-1], 1, dtype=s.dtype)),
    sum_by_einsum=lambda s: s.exp() / torch.einsum("bhqk->bhq", s.exp())[..., None],
    sum_by_cumsum=lambda s: s.exp() / s.exp().cumsum(-1)[..., -1:],
    sum_by_mean=lambda s: s.exp() / (s.exp().mean(-1, keepdim=True) * s.shape[-1]),
    sum_by_a_loop=lambda s: s.exp() / sum(s.exp().unbind(-1))[..., None],
    quotient_by_einsum=lambda s: torch.einsum("bhqk,bhq->bhqk", s.exp(), 1 / s.exp().sum(-1)),
    in_place=lambda s: _in_place(s * 1),
    special_log_softmax=lambda s: torch.exp(torch.special.log_softmax(s, -1)),
    log_softmax_in_place=lambda s: s.log_softmax(-1).add(0).exp_(),
    log_softmax_exp2=lambda s: torch.exp2(F.log_softmax(s, -1) / math.log(2)),
    logsumexp_of_its_own=lambda s: torch.exp(s - s.logsumexp(3).unsqueeze(3)),
    logcumsumexp=lambda s: torch.exp(s - torch.logcumsumexp(s, -1)[..., -1:]),
    logaddexp=lambda s: torch.exp(s - functools.reduce(torch.logaddexp, s.split(1, -1))),
    log_of_a_sum=lambda s: torch.exp(s - s.exp().sum(-1, keepdim=True).log()),
    scores_from_logarithms=lambda s: F.softmax(s.exp().log(), -1),
    key_by_key=lambda s: torch.stack(
        [s[..., k].exp() / s.exp().sum(-1) for k in range(s.shape[-1])], -1
    ),
    one_key_more=lambda s: F.softmax(F.pad(s, (0, 1), value=-math.inf), -1)[..., :-1],
    nan_to_num=lambda s: torch.nan_to_num(F.softmax(s, -1)),
    where_not_nan=lambda s: torch.where(F.softmax(s, -1).isnan(), 0.0, F.softmax(s, -1)),
    chunked_in_halves=lambda s: (
        torch.cat([(s[..., part] - _top(s)).exp() for part in (slice(2), slice(2, None))], -1)
        / (s - _top(s)).exp().sum(-1, keepdim=True)
    ),
)

# Every two keys against each other, and a derivative taken inside the model: right or refused.
spell(
    "softmax",
    PLAIN,
    either=True,
    pairs=lambda s: 1 / torch.exp(s[..., None, :] - s[..., None]).sum(-1),
    pairs_of_sigmoids=lambda s: 1 / (1 / torch.sigmoid(s[..., None] - s[..., None, :]) - 1).sum(-1),
    gradient_of_logsumexp=lambda s: torch.func.grad(lambda t: t.logsumexp(-1).sum())(s),
)


def _without_gradient(s):
    with torch.no_grad():
        return _top(s)


def _in_place(s):
    e = s.sub_(_without_gradient(s)).exp_()
    return e.clone().div_(e.sum(-1, keepdim=True))


# Divided after the values are summed.


def _numbers(parts, q, k, allowed):
    """exp of the scores."""
    s = parts.scores(q, k)
    return torch.exp(s if allowed is None else parts.hide(s, allowed))


@spells("attend", PLAIN, PADDED, CAUSAL)
def divided_after_the_product(parts, q, k, v, allowed):
    e = _numbers(parts, q, k, allowed)
    return (e @ v) / e.sum(-1, keepdim=True)


@spells("attend", PLAIN)
def divided_after_an_einsum(parts, q, k, v, allowed):
    e = _numbers(parts, q, k, allowed)
    return torch.einsum("bhqk,bhkd->bhqd", e, v) / torch.einsum("bhqk->bhq", e)[..., None]


@spells("attend", PLAIN)
def multiplied_by_a_reciprocal(parts, q, k, v, allowed):
    e = _numbers(parts, q, k, allowed)
    return e.sum(-1, keepdim=True).reciprocal() * (e @ v)


@spells("attend", PLAIN)
def values_divided(parts, q, k, v, allowed):
    """Each query's own values, divided before they are summed."""
    e = _numbers(parts, q, k, allowed)
    shares = v[:, :, None] / e.sum(-1)[..., None, None]
    return (e[..., None] * shares).sum(3)


@spells("attend", PLAIN)
def weights_of_log_softmax(parts, q, k, v, allowed):
    logarithms = F.log_softmax(parts.scores(q, k), -1)
    return logarithms.exp().matmul(v)


# Key by key, as kernels do it: right or refused.


def _online(parts, q, k, v, allowed, sizes):
    """Running maximum, sum and weighted values over parts of the keys."""
    top = q.new_full((*q.shape[:3], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    for keys, values in zip(k.split(sizes, 2), v.split(sizes, 2), strict=True):
        s = parts.scores(q, keys)
        new = torch.maximum(top, _top(s))
        e, old = torch.exp(s - new), torch.exp(top - new)
        total, out = total * old + e.sum(-1, keepdim=True), out * old + e @ values
        top = new
    return out / total


spell(
    "attend",
    PLAIN,
    either=True,
    apart=OTHER_MAP,
    online_in_two_parts=lambda *a: _online(*a, [2, 3]),
    online_in_unequal_parts=lambda *a: _online(*a, [2, 2, 1]),
    online_key_by_key=lambda *a: _online(*a, [1] * 5),
    online_in_one_part=lambda *a: _online(*a, [5]),
    parts_joined_by_their_logarithms=lambda *a: _joined(*a),
)


def _joined(parts, q, k, v, allowed):
    """Two softmaxes, each over its keys, weighed by the sums behind them."""
    halves, weights = [], []
    for keys, values in zip(k.split([2, 3], 2), v.split([2, 3], 2), strict=True):
        s = parts.scores(q, keys)
        halves.append(F.softmax(s, -1) @ values)
        weights.append(s.logsumexp(-1, keepdim=True))
    shares = torch.stack(weights).softmax(0)
    return (shares * torch.stack(halves)).sum(0)


spell(
    "attend",
    PLAIN,
    unshifted_sums_in_parts=lambda *a: _sums_in_parts(*a),
    accumulated_key_by_key=lambda *a: _accumulated(*a),
    either=True,
    apart=OTHER_MAP,
)


def _sums_in_parts(parts, q, k, v, allowed):
    pieces = [
        (parts.scores(q, keys).exp(), values)
        for keys, values in zip(k.split([2, 3], 2), v.split([2, 3], 2), strict=True)
    ]
    return sum(e @ t for e, t in pieces) / sum(e.sum(-1, keepdim=True) for e, _ in pieces)


def _accumulated(parts, q, k, v, allowed):
    above, below = 0.0, 0.0
    for i in range(k.shape[2]):
        e = parts.scores(q, k[:, :, i : i + 1]).exp()
        above, below = above + e * v[:, :, i : i + 1], below + e
    return above / below


# ---- beside a score of 0


def _less_the_largest(s, largest):
    e = (s - largest).exp()
    return e / ((-largest).exp() + e.sum(-1, keepdim=True))


spell(
    "softmax",
    BESIDE,
    BESIDE_HIDDEN,
    padded=lambda s: F.softmax(F.pad(s, (0, 1)), -1)[..., :-1],
    padded_in_front=lambda s: F.pad(s, (1, 0)).softmax(-1)[..., 1:],
    column_in_front=lambda s: torch.cat([s.new_zeros(*s.shape[:-1], 1), s], -1).softmax(-1)[
        ..., 1:
    ],
    one_more_than_the_sum=lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True)),
    less_the_largest=lambda s: _less_the_largest(s, s.amax(-1, keepdim=True)),
    less_the_largest_or_zero=lambda s: _less_the_largest(s, s.amax(-1, keepdim=True).clamp(min=0)),
)
