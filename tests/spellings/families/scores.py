"""Scores of queries and keys: every product, and the scale anywhere around it."""

import math

import torch
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, PLAIN
from tests.spellings.spelling import spell


def _scale(q):
    return q.shape[-1] ** -0.5


def _features(q, k):
    return zip(q.unbind(-1), k.unbind(-1), strict=True)


spell(
    "scores",
    PLAIN,
    matmul_and_mT=lambda q, k: torch.matmul(q, k.mT) * _scale(q),
    permute=lambda q, k: q @ k.permute(0, 1, 3, 2) / math.sqrt(q.shape[-1]),
    swapaxes=lambda q, k: q.matmul(k.swapaxes(-1, -2)).mul(_scale(q)),
    movedim=lambda q, k: q.matmul(k.movedim(-1, 2)).div(math.sqrt(q.shape[-1])),
    keys_first=lambda q, k: (k @ q.mT).mT * _scale(q),
    transposed_keys_first=lambda q, k: (k @ q.mT * _scale(q)).transpose(2, 3),
    bmm=lambda q, k: (
        torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, q.shape[:2]) * _scale(q)
    ),
    baddbmm=lambda q, k: torch.baddbmm(
        torch.empty(0, dtype=q.dtype).new_zeros(()),
        q.flatten(0, 1),
        k.flatten(0, 1).mT,
        beta=0,
        alpha=_scale(q),
    ).view(*q.shape[:-1], -1),
    baddbmm_onto_zeros=lambda q, k: torch.baddbmm(
        q.new_zeros(len(q) * q.shape[1], q.shape[2], k.shape[2]),
        q.flatten(0, 1),
        k.flatten(0, 1).mT,
        alpha=_scale(q),
    ).view(*q.shape[:-1], -1),
    einsum=lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k) * _scale(q),
    einsum_other_letters=lambda q, k: torch.einsum("zyad,zybd->zyab", q, k) * _scale(q),
    einsum_keys_first=lambda q, k: torch.einsum("bhkd,bhqd->bhqk", k, q) * _scale(q),
    einsum_transposed=lambda q, k: torch.einsum("bhqd,bhkd->bhkq", q, k).mT * _scale(q),
    einsum_heads_last=lambda q, k: (
        torch.einsum("bhqd,bhkd->bqkh", q, k).permute(0, 3, 1, 2) * _scale(q)
    ),
    einsum_heads_first=lambda q, k: (
        torch.einsum("bhqd,bhkd->hbqk", q, k).transpose(0, 1) * _scale(q)
    ),
    einsum_queries_first=lambda q, k: (
        torch.einsum("bhqd,bhkd->qbhk", q, k).movedim(0, 2) * _scale(q)
    ),
    einsum_of_tokens_before_heads=lambda q, k: (
        torch.einsum("bqhd,bkhd->bhqk", q.transpose(1, 2), k.transpose(1, 2)) * _scale(q)
    ),
    einsum_of_tokens_first=lambda q, k: (
        torch.einsum("qbhd,kbhd->bhqk", q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3)) * _scale(q)
    ),
    einsum_with_an_ellipsis=lambda q, k: torch.einsum("...qd,...kd->...qk", q, k) * _scale(q),
    einsum_by_numbers=lambda q, k: (
        torch.einsum(q, [0, 1, 2, 4], k, [0, 1, 3, 4], [0, 1, 2, 3]) * _scale(q)
    ),
    einsum_with_the_scale=lambda q, k: torch.einsum(
        "bhqd,bhkd,->bhqk", q, k, q.new_tensor(_scale(q))
    ),
    einsum_with_a_scale_per_feature=lambda q, k: torch.einsum(
        "bhqd,bhkd,d->bhqk", q, k, torch.full(q.shape[-1:], _scale(q), dtype=q.dtype)
    ),
    einsum_with_a_scale_per_head_and_feature=lambda q, k: torch.einsum(
        "bhqd,bhkd,hd->bhqk", q, k, torch.full((q.shape[1], 4), _scale(q), dtype=q.dtype)
    ),
    einsum_with_a_matrix=lambda q, k: torch.einsum(
        "bhqd,bhke,de->bhqk", q, k, _scale(q) * torch.eye(q.shape[-1], dtype=q.dtype)
    ),
    product_and_sum=lambda q, k: (q[:, :, :, None] * k[:, :, None]).sum(-1) * _scale(q),
    product_and_sum_over_an_inner_axis=lambda q, k: (
        (q[..., None] * k.mT[:, :, None]).sum(3) * _scale(q)
    ),
    product_and_mean=lambda q, k: (q[:, :, :, None] * k[:, :, None]).mean(-1) * q.shape[-1] ** 0.5,
    vecdot=lambda q, k: torch.linalg.vecdot(q[:, :, :, None], k[:, :, None]) * _scale(q),
    feature_by_feature=lambda q, k: (
        sum(q[..., i, None] * k[..., i][:, :, None] for i in range(q.shape[-1])) * _scale(q)
    ),
    feature_by_feature_scaled=lambda q, k: sum(
        torch.einsum("bhq,bhk->bhqk", _scale(q) * q[..., i], k[..., i]) for i in range(q.shape[-1])
    ),
    features_stacked=lambda q, k: (
        torch.stack([a[..., None] * b[:, :, None] for a, b in _features(q, k)]).sum(0) * _scale(q)
    ),
    two_halves_of_the_features=lambda q, k: (
        sum(a @ b.mT for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)) * _scale(q)
    ),
    query_by_query=lambda q, k: (
        torch.stack([(k @ t[..., None])[..., 0] for t in q.unbind(2)], 2) * _scale(q)
    ),
    key_by_key=lambda q, k: (
        torch.stack([(q * t[:, :, None]).sum(-1) for t in k.unbind(2)], -1) * _scale(q)
    ),
    inner_of_every_head=lambda q, k: (
        torch.stack(
            [
                torch.stack([torch.inner(a, b) for a, b in zip(s, t, strict=True)])
                for s, t in zip(q, k, strict=True)
            ]
        )
        * _scale(q)
    ),
    mm_of_every_head=lambda q, k: (
        torch.stack(
            [
                torch.stack([a.mm(b.t()) for a, b in zip(s, t, strict=True)])
                for s, t in zip(q, k, strict=True)
            ]
        )
        * _scale(q)
    ),
    linear_of_every_head=lambda q, k: (
        torch.stack(
            [
                torch.stack([F.linear(a, b) for a, b in zip(s, t, strict=True)])
                for s, t in zip(q, k, strict=True)
            ]
        )
        * _scale(q)
    ),
    tensordot_of_every_sample=lambda q, k: (
        torch.stack(
            [
                torch.stack([torch.tensordot(s[h], t[h], ([1], [1])) for h in range(len(s))])
                for s, t in zip(q, k, strict=True)
            ]
        )
        * _scale(q)
    ),
    all_heads_with_all_heads=lambda q, k: (
        torch.einsum("bhqd,bgkd->bhgqk", q, k).diagonal(dim1=1, dim2=2).movedim(-1, 1) * _scale(q)
    ),
    convolution_by_keys=lambda q, k: (
        F.conv1d(
            q.flatten(0, 1).mT.flatten(0, 1)[None],
            k.flatten(0, 2)[..., None],
            groups=q.shape[0] * q.shape[1],
        )
        .view(*k.shape[:3], q.shape[2])
        .mT
        * _scale(q)
    ),
    convolution_by_queries_of_every_head=lambda q, k: (
        torch.stack(
            [
                torch.stack(
                    [
                        F.conv2d(b.T[None, :, :, None], a[:, :, None, None])[0, :, :, 0]
                        for a, b in zip(s, t, strict=True)
                    ]
                )
                for s, t in zip(q, k, strict=True)
            ]
        )
        * _scale(q)
    ),
    vmap=lambda q, k: torch.vmap(torch.vmap(lambda a, b: a @ b.T))(q, k) * _scale(q),
    vmap_over_heads=lambda q, k: torch.vmap(lambda a, b: a @ b.mT, (1, 1), 1)(q, k) * _scale(q),
    vmap_over_pairs=lambda q, k: _all_pairs(q, k) * _scale(q),
    features_reversed=lambda q, k: q.flip(-1) @ k.flip(-1).mT * _scale(q),
)


def _all_pairs(q, k):
    dot = torch.vmap(torch.vmap(torch.dot, (None, 0)), (0, None))
    return torch.vmap(torch.vmap(dot))(q, k)


spell(
    "scores",
    PLAIN,
    CAUSAL,
    scale_in_the_queries=lambda q, k: (q * _scale(q)) @ k.mT,
    scale_in_the_keys=lambda q, k: q @ (k * _scale(q)).mT,
    scale_in_both=lambda q, k: (q * _scale(q) ** 0.5) @ (k * _scale(q) ** 0.5).mT,
    scale_divides_the_queries=lambda q, k: q / math.sqrt(q.shape[-1]) @ k.mT,
    scale_is_a_tensor=lambda q, k: q @ k.mT / torch.sqrt(q.new_tensor(q.shape[-1])),
    scale_by_rsqrt=lambda q, k: q @ k.mT * torch.rsqrt(torch.tensor(q.shape[-1], dtype=q.dtype)),
    scale_in_place=lambda q, k: (q @ k.mT).div_(math.sqrt(q.shape[-1])),
    scale_in_two_steps=lambda q, k: 2 * (q @ k.mT) * (_scale(q) / 2),
    scale_as_a_power=lambda q, k: torch.mul(q @ k.mT, q.size(-1) ** (-1 / 2)),
    scale_of_ones=lambda q, k: q @ k.mT * torch.full((q.shape[1], 1, 1), _scale(q), dtype=q.dtype),
)
