"""Features cut into heads and joined again, and keys and values that several heads share."""

import math

import torch
from torch.nn import functional as F

from tests.spellings.bases import GROUPED, PLAIN
from tests.spellings.families.attentions import attend_plainly
from tests.spellings.model import Attention
from tests.spellings.spelling import spell, spells

# Cutting features into heads, and joining them again.

spell(
    "split",
    PLAIN,
    view_and_transpose=lambda x, h: x.view(len(x), -1, h, x.shape[-1] // h).transpose(1, 2),
    reshape_and_permute=lambda x, h: x.reshape(*x.shape[:2], h, -1).permute(0, 2, 1, 3),
    view_and_swapaxes=lambda x, h: x.view(*x.shape[:-1], h, -1).swapaxes(1, 2),
    view_and_movedim=lambda x, h: x.view(*x.shape[:-1], h, -1).movedim(2, 1),
    chunks_stacked=lambda x, h: torch.stack(x.chunk(h, -1), 1),
    slices_stacked=lambda x, h: torch.stack([x[..., 4 * i : 4 * i + 4] for i in range(h)], dim=1),
    split_and_cat=lambda x, h: torch.cat([p[:, None] for p in x.split(x.shape[-1] // h, -1)], 1),
    tensor_split=lambda x, h: torch.stack(torch.tensor_split(x, h, dim=-1), dim=1),
    unfold=lambda x, h: x.unfold(-1, x.shape[-1] // h, x.shape[-1] // h).transpose(1, 2),
    features_first=lambda x, h: x.mT.unflatten(1, (h, -1)).mT,
    narrow=lambda x, h: torch.stack([x.narrow(-1, 4 * i, 4) for i in range(h)], 1),
    gather_of_features=lambda x, h: torch.stack(
        [x.index_select(-1, torch.arange(4 * i, 4 * i + 4)) for i in range(h)], 1
    ),
    index_of_features=lambda x, h: x[..., torch.arange(8).view(h, -1)].transpose(1, 2),
    as_strided=lambda x, h: x.contiguous().as_strided(
        (len(x), h, x.shape[1], 4), (x.shape[1] * 8, 4, 8, 1)
    ),
    product_with_an_eye=lambda x, h: torch.einsum(
        "bnd,dhe->bhne", x, torch.eye(8, dtype=x.dtype).view(8, h, -1)
    ),
    vmap=lambda x, h: torch.vmap(lambda s: s.unflatten(-1, (h, -1)).transpose(0, 1))(x),
    into_a_buffer=lambda x, h: _filled(x, h),
    hsplit=lambda x, h: torch.stack(torch.dsplit(x, h), 1),
    pixel_shuffled=lambda x, h: x.mT.reshape(len(x), h, -1, x.shape[1]).permute(0, 1, 3, 2),
)


def _filled(x, h):
    out = x.new_zeros(len(x), h, x.shape[1], x.shape[-1] // h)
    for i, part in enumerate(x.chunk(h, -1)):
        out[:, i] = part
    return out


spell(
    "join",
    PLAIN,
    permute_and_reshape=lambda x: x.permute(0, 2, 1, 3).reshape(len(x), x.shape[2], -1),
    contiguous_view=lambda x: x.transpose(1, 2).contiguous().view(len(x), -1, 8),
    heads_joined=lambda x: torch.cat(x.unbind(1), -1),
    heads_joined_by_index=lambda x: torch.cat([x[:, h] for h in range(x.shape[1])], dim=2),
    heads_stacked=lambda x: torch.stack(x.unbind(1), 2).flatten(2),
    tokens_stacked=lambda x: torch.stack([x[:, :, i].flatten(1) for i in range(x.shape[2])], 1),
    features_first=lambda x: x.mT.flatten(1, 2).mT,
    einsum=lambda x: torch.einsum("bhne->bnhe", x).reshape(len(x), x.shape[2], -1),
    movedim=lambda x: x.movedim(1, 2).flatten(-2),
    into_a_buffer=lambda x: _into_slices(x),
    hstacked=lambda x: torch.dstack(list(x.unbind(1))),
    column_stacked=lambda x: torch.stack([torch.cat(list(s), -1) for s in x]),
    padded_and_added=lambda x: F.pad(x[:, 0], (0, 4)) + F.pad(x[:, 1], (4, 0)),
    product_with_an_eye=lambda x: torch.einsum(
        "bhne,hed->bnd", x, torch.eye(8, dtype=x.dtype).view(2, 4, 8)
    ),
    fold=lambda x: F.fold(x.mT.flatten(1, 2), (1, x.shape[2]), 1)[:, :, 0].mT,
    feature_by_feature=lambda x: torch.stack([x[:, i // 4, :, i % 4] for i in range(8)], -1),
    picked=lambda x: x.mT[:, torch.arange(8) // 4, torch.arange(8) % 4].mT,
    taken=lambda x: x.take(_places(x)),
    gathered=lambda x: (
        x.flatten(1).gather(1, _places(x[:1]).flatten(1).expand(len(x), -1)).unflatten(1, (-1, 8))
    ),
    added_by_index=lambda x: (
        x.new_zeros(len(x), x.shape[2], 8)
        .index_add(2, torch.arange(4), x[:, 0])
        .index_add(2, torch.arange(4) + 4, x[:, 1])
    ),
    heads_in_the_batch=lambda x: torch.cat(x.transpose(0, 1).flatten(0, 1).split(len(x), 0), 2),
    tokens_joined_and_turned=lambda x: (
        torch.cat([x[:, :, i] for i in range(x.shape[2])], 2)
        .unflatten(2, (-1, 4))
        .transpose(1, 2)
        .flatten(2)
    ),
)


def _places(x):
    """Where each feature of each token lies among the numbers of all heads."""
    whole = torch.arange(x.numel()).view(x.shape)
    return torch.cat(list(whole.unbind(1)), -1)


def _into_slices(x):
    out = x.new_empty(len(x), x.shape[2], 8)
    out[..., :4], out[..., 4:] = x[:, 0], x[:, 1]
    return out


# Keys and values that several heads share.

spell(
    "share",
    GROUPED,
    expand_and_reshape=lambda x, r: (
        x[:, :, None].expand(-1, -1, r, -1, -1).reshape(len(x), -1, *x.shape[2:])
    ),
    unsqueeze_and_repeat=lambda x, r: x.unsqueeze(2).repeat(1, 1, r, 1, 1).flatten(1, 2),
    stacked=lambda x, r: torch.stack([x] * r, 2).flatten(1, 2),
    joined=lambda x, r: torch.cat([h for h in x.split(1, 1) for _ in range(r)], 1),
    indexed=lambda x, r: x[:, torch.arange(x.shape[1]).repeat_interleave(r)],
    indexed_by_a_list=lambda x, r: x[:, [0, 0, 1, 1]],
    index_select=lambda x, r: x.index_select(1, torch.tensor([0, 0, 1, 1])),
    gathered=lambda x, r: x.gather(
        1, torch.tensor([0, 0, 1, 1])[None, :, None, None].expand(len(x), -1, *x.shape[2:])
    ),
    tiled_and_ordered=lambda x, r: x.repeat(1, r, 1, 1)[:, [0, 2, 1, 3]],
    times_ones=lambda x, r: (x[:, :, None] * torch.ones(r, 1, 1, dtype=x.dtype)).flatten(1, 2),
    einsum_with_ones=lambda x, r: torch.einsum(
        "bgne,r->bgrne", x, torch.ones(r, dtype=x.dtype)
    ).flatten(1, 2),
    one_hot=lambda x, r: torch.einsum(
        "hg,bgne->bhne", F.one_hot(torch.tensor([0, 0, 1, 1])).to(x.dtype), x
    ),
    upsampled=lambda x, r: F.interpolate(
        x.flatten(2).mT, scale_factor=r, mode="nearest"
    ).mT.unflatten(2, x.shape[2:]),
    into_a_buffer=lambda x, r: _shared(x, r),
    broadcast_to=lambda x, r: torch.broadcast_to(
        x.unsqueeze(2), (len(x), x.shape[1], r, *x.shape[2:])
    ).flatten(1, 2),
    kron=lambda x, r: torch.stack(
        [torch.kron(s, torch.ones(r, 1, 1, dtype=s.dtype)) for s in x.contiguous()]
    ),
    kron_of_all=lambda x, r: torch.kron(x.contiguous(), x.new_ones(r, 1, 1)),
    kron_of_tokens=lambda x, r: torch.kron(x.transpose(1, 2), x.new_ones(r, 1)).transpose(1, 2),
)


def _shared(x, r):
    out = x.new_zeros(len(x), x.shape[1] * r, *x.shape[2:])
    for i in range(r):
        out[:, i::r] = x
    return out


class _Groups(Attention):
    """Keys and values stay as they are; queries have an axis for their group."""

    def forward(self, x, allowed):
        split = self.parts.split
        q, k, v = (split(f(x), h) for f, h in zip(
            (self.query, self.key, self.value), (self.heads, self.groups, self.groups), strict=True
        ))  # fmt: skip
        return self.out(self.parts.join(self.mixed(q, k, v)))


@spells("attention", GROUPED)
class FusedGroups(_Groups):
    def mixed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@spells("attention", GROUPED)
class GroupsOfFiveAxes(_Groups):
    def mixed(self, q, k, v):
        q = q.unflatten(1, (self.groups, -1))
        return attend_plainly(q, k[:, :, None], v[:, :, None]).flatten(1, 2)


@spells("attention", GROUPED)
class GroupsByEinsum(_Groups):
    def mixed(self, q, k, v):
        q = q.unflatten(1, (self.groups, -1))
        s = torch.einsum("bgrqd,bgkd->bgrqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bgrqk,bgkd->bgrqd", s.softmax(-1), v).flatten(1, 2)


@spells("attention", GROUPED)
class GroupsOneByOne(_Groups):
    def mixed(self, q, k, v):
        pieces = zip(q.chunk(self.groups, 1), k.split(1, 1), v.split(1, 1), strict=True)
        return torch.cat([attend_plainly(*piece) for piece in pieces], 1)


@spells("attention", GROUPED)
class GroupsAsLongerSequences(_Groups):
    """The queries of a group's heads one after the other, as one long sequence."""

    def mixed(self, q, k, v):
        long = q.unflatten(1, (self.groups, -1)).flatten(2, 3)
        return attend_plainly(long, k, v).unflatten(2, (-1, q.shape[2])).flatten(1, 2)


@spells("attention", GROUPED)
class GroupsAsMoreQueries(_Groups):
    """The queries of a group's heads beside each other, token by token."""

    def mixed(self, q, k, v):
        long = q.unflatten(1, (self.groups, -1)).transpose(2, 3).flatten(2, 3)
        made = attend_plainly(long, k, v).unflatten(2, (q.shape[2], -1))
        return made.transpose(2, 3).flatten(1, 2)


@spells("attention", GROUPED)
class GroupsKeysFirst(_Groups):
    """Longer sequences, each query a column of the map."""

    def mixed(self, q, k, v):
        long = q.unflatten(1, (self.groups, -1)).flatten(2, 3)
        a = (k @ long.mT / math.sqrt(q.shape[-1])).softmax(2)
        return (v.mT @ a).mT.unflatten(2, (-1, q.shape[2])).flatten(1, 2)


@spells("attention", GROUPED)
class GroupsHeadByHead(_Groups):
    def mixed(self, q, k, v):
        times = self.heads // self.groups
        heads = [
            attend_plainly(q[:, h], k[:, h // times], v[:, h // times]) for h in range(self.heads)
        ]
        return torch.stack(heads, 1)
