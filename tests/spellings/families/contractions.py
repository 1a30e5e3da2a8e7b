"""Values weighted by attention and summed: every product that does it."""

import functools

import torch
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, PLAIN, SQUARED
from tests.spellings.spelling import OTHER_MAP, spell


def _mapped(function):
    """``function`` of every head of every sample, stacked."""
    return lambda a, v: torch.stack(
        [
            torch.stack([function(x, y) for x, y in zip(s, t, strict=True)])
            for s, t in zip(a, v, strict=True)
        ]
    )


spell(
    "contract",
    PLAIN,
    matmul=lambda a, v: torch.matmul(a, v),
    transposed=lambda a, v: (v.mT @ a.mT).mT,
    transposed_by_permute=lambda a, v: (
        v.permute(0, 1, 3, 2).matmul(a.transpose(2, 3)).swapdims(2, 3)
    ),
    bmm=lambda a, v: torch.bmm(a.flatten(0, 1), v.flatten(0, 1)).view_as(v),
    baddbmm=lambda a, v: torch.baddbmm(
        torch.zeros((), dtype=v.dtype), a.flatten(0, 1), v.flatten(0, 1)
    ).view_as(v),
    einsum=lambda a, v: torch.einsum("bhqk,bhkd->bhqd", a, v),
    einsum_other_letters=lambda a, v: torch.einsum("nhij,nhjc->nhic", a, v),
    einsum_values_first=lambda a, v: torch.einsum("bhkd,bhqk->bhqd", v, a),
    einsum_transposed=lambda a, v: torch.einsum("bhqk,bhkd->bhdq", a, v).mT,
    einsum_queries_before_heads=lambda a, v: torch.einsum("bhqk,bhkd->bqhd", a, v).transpose(1, 2),
    einsum_of_tokens_before_heads=lambda a, v: torch.einsum(
        "bhqk,bkhd->bqhd", a, v.transpose(1, 2)
    ).transpose(1, 2),
    einsum_of_keys_first=lambda a, v: torch.einsum("kbhq,bhkd->bhqd", a.movedim(-1, 0), v),
    einsum_with_an_ellipsis=lambda a, v: torch.einsum("...qk,...kd->...qd", a, v),
    einsum_by_numbers=lambda a, v: torch.einsum(a, [0, 1, 2, 3], v, [0, 1, 3, 4], [0, 1, 2, 4]),
    einsum_with_a_third=lambda a, v: torch.einsum(
        "bhqk,bhkd,q->bhqd", a, v, torch.ones(a.shape[2], dtype=a.dtype)
    ),
    product_and_sum=lambda a, v: (a[..., None] * v[:, :, None]).sum(3),
    product_and_sum_keeping_the_axis=lambda a, v: (
        (a.unsqueeze(-1) * v.unsqueeze(2)).sum(-2, keepdim=True).squeeze(-2)
    ),
    product_and_sum_over_the_last=lambda a, v: (a[:, :, :, None] * v.mT[:, :, None]).sum(-1),
    product_and_mean=lambda a, v: (a[..., None] * v[:, :, None]).mean(3) * a.shape[-1],
    product_and_nanmean=lambda a, v: (a[..., None] * v[:, :, None]).nanmean(3) * a.shape[-1],
    product_and_cumsum=lambda a, v: (a[..., None] * v[:, :, None]).cumsum(3)[:, :, :, -1],
    product_and_pool=lambda a, v: _pooled(a[:, :, :, None] * v.mT[:, :, None]),
    product_and_ones=lambda a, v: (
        (a[:, :, :, None] * v.mT[:, :, None]) @ torch.ones(a.shape[-1], dtype=a.dtype)
    ),
    vecdot=lambda a, v: torch.linalg.vecdot(a[:, :, :, None], v.mT[:, :, None]),
    feature_by_feature=lambda a, v: torch.cat([a @ f for f in v.split(1, -1)], -1),
    mm_of_every_head=_mapped(torch.mm),
    linear_of_every_head=_mapped(lambda x, y: F.linear(x, y.T)),
    tensordot_of_every_head=_mapped(lambda x, y: torch.tensordot(x, y, 1)),
    inner_of_every_head=_mapped(lambda x, y: torch.inner(x, y.T)),
    multi_dot_of_every_head=_mapped(lambda x, y: torch.linalg.multi_dot([x, y])),
    vmap=lambda a, v: torch.vmap(torch.vmap(torch.mm))(a, v),
    vmap_over_queries=lambda a, v: torch.vmap(
        lambda w: (w[..., None] * v).sum(-2), in_dims=2, out_dims=2
    )(a),
    all_heads_with_all_heads_masked=lambda a, v: torch.einsum(
        "bhqk,bgkd,hg->bhqd", a, v, torch.eye(v.shape[1], dtype=v.dtype)
    ),
    all_values_of_every_head=lambda a, v: torch.stack(
        [
            (a[:, h] @ v.transpose(1, 2).flatten(2))[..., 4 * h : 4 * h + 4]
            for h in range(a.shape[1])
        ],
        1,
    ),
    convolution_by_weights=lambda a, v: F.conv1d(
        v.flatten(0, 2)[None, :, :], a.flatten(0, 2)[..., None], groups=a.shape[0] * a.shape[1]
    ).view_as(v),
    convolution_of_every_head=_mapped(lambda x, y: F.conv1d(y[None], x[..., None])[0]),
    complex=lambda a, v: (a.to(torch.complex128) @ v.to(torch.complex128)).real,
)

# Key by key, and in parts of the keys: right or refused, with the map in parts.
spell(
    "contract",
    PLAIN,
    either=True,
    apart=OTHER_MAP,
    key_by_key=lambda a, v: sum(a[..., k, None] * v[:, :, k, None] for k in range(a.shape[-1])),
    key_by_key_reduced=lambda a, v: functools.reduce(
        torch.add, [w * t.unsqueeze(2) for w, t in zip(a.split(1, -1), v.unbind(2), strict=True)]
    ),
    key_by_key_stacked=lambda a, v: torch.stack(
        [a[..., k : k + 1] * v[:, :, k : k + 1] for k in range(a.shape[-1])]
    ).sum(0),
    key_by_key_in_place=lambda a, v: _summed_in_place(a, v),
    key_by_key_addcmul=lambda a, v: functools.reduce(
        lambda o, k: torch.addcmul(o, a[..., k, None], v[:, :, k, None]),
        range(a.shape[-1]),
        torch.zeros_like(v),
    ),
    two_parts_of_the_keys=lambda a, v: a[..., :2] @ v[:, :, :2] + a[..., 2:] @ v[:, :, 2:],
    even_and_odd_keys=lambda a, v: a[..., ::2] @ v[:, :, ::2] + a[..., 1::2] @ v[:, :, 1::2],
)
spell(
    "contract",
    CAUSAL,
    SQUARED,
    either=True,
    apart=OTHER_MAP,
    key_by_key=lambda a, v: sum(a[..., k, None] * v[:, :, k, None] for k in range(a.shape[-1])),
)


# One key more that no query weighs.
spell(
    "contract",
    PLAIN,
    apart=OTHER_MAP,
    one_value_more=lambda a, v: F.pad(a, (0, 1)) @ F.pad(v, (0, 0, 0, 1), value=3.0),
)

# What is contracted is twice the map, and its gradient half: each is as the model has it.
spell(
    "contract",
    PLAIN,
    apart=OTHER_MAP
    | dict.fromkeys(
        (
            "transformer_attribution",
            "rollout",
            "raw_attention",
            "attention_grad",
            "attcat",
        ),
        "the map that is contracted is twice the softmax, and its gradient half",
    ),
    scaled_and_back=lambda a, v: (a * 2) @ (v / 2),
)

# A bag of embeddings whose table are the values: it has no derivative of a batch in PyTorch.
spell(
    "contract",
    PLAIN,
    either=True,
    embedding_bag=lambda a, v: F.embedding_bag(
        _rows(a), v.flatten(0, 2), mode="sum", per_sample_weights=a.flatten(0, 2)
    ).view_as(v),
)

spell(
    "contract",
    CAUSAL,
    SQUARED,
    product_and_sum=lambda a, v: (a[..., None] * v[:, :, None]).sum(3),
    einsum=lambda a, v: torch.einsum("bhts,bhsd->bhtd", a, v),
    transposed=lambda a, v: (v.mT @ a.mT).mT,
)


def _pooled(products):
    """The sum over the last axis, as an average times its length."""
    return F.avg_pool1d(products.flatten(0, 2), products.shape[-1]).view(products.shape[:-1]) * 5


def _summed_in_place(a, v):
    out = torch.zeros_like(v)
    for k in range(a.shape[-1]):
        out += a[..., k, None] * v[:, :, k, None]
    return out


def _rows(a):
    """For every query of every head, where its keys' values are in the table of all values."""
    b, h, q, k = a.shape
    first = torch.arange(b * h)[:, None, None] * k
    return (first + torch.arange(k)).expand(b * h, q, k).reshape(-1, k)
