"""Masks: made in many ways, applied in many ways, before the softmax, in it, or after it."""

import math

import torch
from torch.nn import functional as F

from tests.spellings.bases import BOTH, CAUSAL, LLAMA, PADDED
from tests.spellings.model import TOKENS
from tests.spellings.spelling import OTHER_MAP, spell, spells

LOWEST = torch.finfo(torch.float64).min


def _added(allowed, number=-math.inf):
    """A mask to add: 0 where a key is seen."""
    return torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, number)


# Which keys are seen.

spell(
    "causal",
    CAUSAL,
    tril_of_numbers=lambda n: torch.tril(torch.ones(n, n)).bool(),
    tril_compared=lambda n: torch.tril(torch.ones(n, n)) == 1,
    not_triu=lambda n: ~torch.ones(n, n, dtype=torch.bool).triu(1),
    triu_compared=lambda n: torch.triu(torch.ones(n, n), diagonal=1) == 0,
    arange_compared=lambda n: torch.arange(n)[:, None] >= torch.arange(n),
    arange_compared_the_other_way=lambda n: torch.arange(n) <= torch.arange(n).view(-1, 1),
    indices=lambda n: torch.ge(*torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")),
    cumsum=lambda n: torch.eye(n).cumsum(0).bool(),
    cumsum_of_the_row=lambda n: torch.eye(n).flip(1).cumsum(1).flip(1).bool().T.T,
    list_of_lists=lambda n: torch.tensor([[k <= q for k in range(n)] for q in range(n)]),
    four_axes=lambda n: torch.ones(1, 1, n, n, dtype=torch.bool).tril(),
    cut_from_a_larger_one=lambda n: torch.ones(16, 16, dtype=torch.bool).tril()[:n, :n],
    written_by_indices=lambda n: _written(n),
    row_by_row=lambda n: torch.stack([torch.arange(n) < i + 1 for i in range(n)]),
    matmul_of_steps=lambda n: (torch.eye(n).cumsum(1).T @ torch.eye(n)) > 0.5,
)


def _written(n):
    mask = torch.zeros(n, n, dtype=torch.bool)
    rows, columns = torch.tril_indices(n, n)
    mask[rows, columns] = True
    return mask


spell("causal", LLAMA, not_triu=lambda n: ~torch.ones(n, n, dtype=torch.bool).triu(1))

# Hidden in the scores.

spell(
    "hide",
    CAUSAL,
    PADDED,
    BOTH,
    lowest_number=lambda s, m: s.masked_fill(~m, LOWEST),
    large_number=lambda s, m: s.masked_fill(m.logical_not(), -1e9),
    where=lambda s, m: torch.where(m, s, -math.inf),
    where_lowest=lambda s, m: torch.where(m, s, torch.full((), LOWEST, dtype=s.dtype)),
    added=lambda s, m: s + _added(m),
    added_lowest=lambda s, m: s + _added(m, LOWEST),
    added_as_bert=lambda s, m: s + (1.0 - m.to(s.dtype)) * LOWEST,
    added_as_old_bert=lambda s, m: s + (1.0 - m.double()) * -10000.0,
    subtracted=lambda s, m: s - 1e9 * (~m),
    logarithm_added=lambda s, m: s + m.to(s.dtype).log(),
    multiplied_and_added=lambda s, m: s * m - 1e10 * (1 - m.to(s.dtype)),
    in_place=lambda s, m: s.masked_fill_(~m, -math.inf),
)

spell(
    "hide",
    CAUSAL,
    mask_of_ints=lambda s, m: s.masked_fill(m.int() == 0, -math.inf),
    mask_expanded=lambda s, m: s.masked_fill(~m.expand_as(s), -math.inf),
    where_of_zeros=lambda s, m: torch.where(m.long() > 0, s, torch.full_like(s, -math.inf)),
    triu_added=lambda s, m: s + torch.full_like(s[0, 0], -math.inf).triu(1),
    triu_of_full=lambda s, m: s + torch.triu(torch.full(s.shape[-2:], -math.inf, dtype=s.dtype), 1),
    tril_multiplied=lambda s, m: s.tril() + torch.full_like(s, LOWEST).triu(1),
    tril_where_zero=lambda s, m: s.masked_fill(torch.ones_like(s).tril() == 0, -math.inf),
    minimum=lambda s, m: torch.minimum(s, _added(m).neg().nan_to_num(0).neg() + m * 1e9),
    minimum_of_infinity=lambda s, m: torch.minimum(s, torch.where(m, math.inf, -math.inf)),
    clamp_by_a_mask=lambda s, m: s.clamp(max=torch.where(m, math.inf, -math.inf).to(s.dtype)),
    masked_write=lambda s, m: _rewritten(s.clone(), m),
    written_by_index=lambda s, m: _written_by_index(s.clone()),
    masked_scatter=lambda s, m: torch.masked_fill(s, torch.ones_like(s).triu(1).bool(), -math.inf),
    gpt2=lambda s, m: torch.where(m[None, None], s, torch.full([], LOWEST, dtype=s.dtype)),
    gpt_neo=lambda s, m: torch.where(m, s, torch.tensor(LOWEST, dtype=s.dtype)) + 0.0,
    nan_to_num=lambda s, m: (s + _added(m)).nan_to_num(neginf=LOWEST),
    maximum_of_lowest=lambda s, m: torch.max(s + _added(m, LOWEST), s.new_tensor(LOWEST)),
    row_by_row=lambda s, m: torch.stack(
        [F.pad(s[:, :, i, : i + 1], (0, TOKENS - i - 1), value=-math.inf) for i in range(TOKENS)], 2
    ),
)


def _rewritten(s, m):
    s[:, :, ~m] = -math.inf
    return s


def _written_by_index(s):
    for i in range(s.shape[2]):
        s[:, :, i, i + 1 :] = -math.inf
    return s


spell(
    "hide",
    PADDED,
    added_expanded=lambda s, m: s + _added(m).expand(-1, -1, s.shape[2], -1),
    added_per_head=lambda s, m: s + _added(m).repeat_interleave(s.shape[1], 1),
    as_key_padding=lambda s, m: s.view(-1, s.shape[1], *s.shape[2:]).masked_fill(
        m[:, 0, 0][:, None, None].logical_not(), -math.inf
    ),
    merged_heads=lambda s, m: (
        s.flatten(0, 1).masked_fill(~m[:, 0].repeat_interleave(s.shape[1], 0), -math.inf).view_as(s)
    ),
    product_of_masks=lambda s, m: torch.where(
        (torch.ones(s.shape[2], 1) * m[:, 0, 0, None].float())[:, None] > 0, s, LOWEST
    ),
    transposed=lambda s, m: s.mT.masked_fill(~m.mT, -math.inf).mT,
)

# Scores to attention at once.


def _numbers(s, allowed):
    return torch.exp(s - s.amax(-1, keepdim=True)) * allowed


spell(
    "normalise",
    CAUSAL,
    PADDED,
    BOTH,
    numbers_times_mask=lambda p, s, m: _numbers(s, m) / _numbers(s, m).sum(-1, keepdim=True),
    numbers_where_mask=lambda p, s, m: _ratio(torch.where(m, s.exp(), 0.0)),
    numbers_masked_fill=lambda p, s, m: _ratio(s.exp().masked_fill(~m, 0)),
    softmax_masked_and_renormalised=lambda p, s, m: _ratio(F.softmax(s, -1) * m),
    softmax_masked_again=lambda p, s, m: F.softmax(s.masked_fill(~m, -math.inf), -1) * m,
    softmax_filled_again=lambda p, s, m: F.softmax(s.masked_fill(~m, LOWEST), -1).masked_fill(
        ~m, 0.0
    ),
    softmax_without_nan=lambda p, s, m: F.softmax(torch.where(m, s, -math.inf), -1).nan_to_num(0.0),
    log_softmax=lambda p, s, m: F.log_softmax(s.masked_fill(~m, -math.inf), -1).exp(),
    logarithm_of_the_mask=lambda p, s, m: F.softmax(s + torch.log(m.double()), -1),
    small_number_below=lambda p, s, m: (
        (_numbers(s, m) + 0.0) / (_numbers(s, m).sum(-1, keepdim=True) + 0.0)
    ),
    numbers_times_mask_of_ints=lambda p, s, m: _ratio(s.exp() * m.expand_as(s).int()),
    numbers_times_what_is_left_of_one=lambda p, s, m: _ratio(s.exp() * (1 - (~m).to(s.dtype))),
    numbers_times_two_masks=lambda p, s, m: _ratio(m.double() * m.int() * s.exp()),
    softmax_where_mask_and_renormalised=lambda p, s, m: _ratio(torch.where(m, s.softmax(-1), 0.0)),
    softmax_masked_twice_and_renormalised=lambda p, s, m: _ratio(
        F.softmax(s.masked_fill(~m, -math.inf), -1) * m
    ),
    softmax_masked_and_normalised=lambda p, s, m: F.normalize(F.softmax(s, -1) * m, p=1, dim=-1),
    sum_clamped=lambda p, s, m: (
        _numbers(s, m) / _numbers(s, m).sum(-1, keepdim=True).clamp(min=1e-9)
    ),
    times_the_reciprocal=lambda p, s, m: (
        m * s.exp() * (s.exp() * m).sum(-1, keepdim=True).reciprocal()
    ),
)

# The masked softmax of a part of PyTorch that few use.
spell(
    "normalise",
    CAUSAL,
    either=True,
    masked_package=lambda p, s, m: torch.masked.softmax(s, -1, mask=m.expand_as(s)),
)


def _ratio(e):
    return e / e.sum(-1, keepdim=True)


# Attention at once.


@spells("attend", CAUSAL, LLAMA)
def fused_causal(parts, q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@spells("attend", CAUSAL, PADDED, BOTH)
def fused_bool_mask(parts, q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


@spells("attend", CAUSAL, PADDED, BOTH)
def fused_float_mask(parts, q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_added(allowed))


@spells("attend", CAUSAL, PADDED, BOTH)
def values_divided_by_what_is_left(parts, q, k, v, allowed):
    e = parts.scores(q, k).exp() * allowed
    return e @ v / e.sum(-1, keepdim=True)


@spells("attend", CAUSAL)
def fused_float_mask_of_lowest(parts, q, k, v, allowed):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_added(allowed, LOWEST)[None, None])


@spells("attend", PADDED)
def fused_mask_of_all_queries(parts, q, k, v, allowed):
    mask = allowed.expand(-1, q.shape[1], q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@spells("attend", CAUSAL, either=True, apart=OTHER_MAP)
def only_the_keys_before(parts, q, k, v, allowed):
    """Query by query, over the keys it sees and no others."""
    out = []
    for i in range(q.shape[2]):
        a = F.softmax(parts.scores(q[:, :, i : i + 1], k[:, :, : i + 1]), -1)
        out.append(a @ v[:, :, : i + 1])
    return torch.cat(out, 2)


@spells("attend", CAUSAL)
def only_the_keys_before_padded(parts, q, k, v, allowed):
    """The same, with the map put together before the values are read."""
    n, rows = q.shape[2], []
    for i in range(n):
        a = F.softmax(parts.scores(q[:, :, i : i + 1], k[:, :, : i + 1]), -1)
        rows.append(F.pad(a, (0, n - i - 1)))
    return torch.cat(rows, 2) @ v


@spells("attend", CAUSAL, either=True, apart=OTHER_MAP)
def from_a_growing_cache(parts, q, k, v, allowed):
    """As a decoder runs: each step appends its key and value."""
    keys, values, out = k[:, :, :0], v[:, :, :0], []
    for i in range(q.shape[2]):
        keys = torch.cat([keys, k[:, :, i : i + 1]], 2)
        values = torch.cat([values, v[:, :, i : i + 1]], 2)
        out.append(F.softmax(parts.scores(q[:, :, i : i + 1], keys), -1) @ values)
    return torch.cat(out, 2)


@spells("attend", CAUSAL, either=True, apart=OTHER_MAP)
def in_two_chunks_of_queries(parts, q, k, v, allowed):
    out = []
    for first, last in ((0, 2), (2, 5)):
        s = parts.scores(q[:, :, first:last], k[:, :, :last])
        s = s.masked_fill(~allowed[first:last, :last], -math.inf)
        out.append(F.softmax(s, -1) @ v[:, :, :last])
    return torch.cat(out, 2)


def _log_sum(s):
    return s.logsumexp(-1, keepdim=True)


spell(
    "normalise",
    PADDED,
    less_the_log_sum=lambda p, s, m: _ratio((s - _log_sum(s)).exp() * m),
    less_that_of_kept=lambda p, s, m: (s - _log_sum(s.masked_fill(~m, -torch.inf))).exp() * m,
    less_that_of_hidden=lambda p, s, m: (lambda z: (z - _log_sum(z)).exp())(
        s.masked_fill(~m, -1e9)
    ),
)
