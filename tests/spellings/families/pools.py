"""What the head reads: means of tokens, means of real tokens, one token."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import BOTH, CAUSAL, IDS, LARGEST, LLAMA, PADDED, PLAIN, START
from tests.spellings.spelling import OTHER_TERMS, spell


def _column(x):
    """A weight per token that averages them."""
    return x.new_full((x.shape[1],), 1 / x.shape[1])


spell(
    "pool",
    PLAIN,
    torch_mean=lambda x: torch.mean(x, dim=-2),
    mean_of_keepdim=lambda x: x.mean(1, keepdim=True).squeeze(1),
    mean_of_keepdim_indexed=lambda x: x.mean((1,), True)[:, 0],
    sum_divided=lambda x: x.sum(1) / x.shape[1],
    sum_of_the_divided=lambda x: (x / x.shape[1]).sum(1),
    sum_times_inverse=lambda x: x.sum(dim=1) * (1 / x.size(1)),
    einsum=lambda x: torch.einsum("bnd->bd", x) / x.shape[1],
    einsum_with_weights=lambda x: torch.einsum("bnd,n->bd", x, _column(x)),
    einsum_with_ones=lambda x: (
        torch.einsum("n,bnd->bd", torch.ones(x.shape[1], dtype=x.dtype), x) / x.shape[1]
    ),
    loop=lambda x: sum(x[:, i] for i in range(x.shape[1])) / x.shape[1],
    loop_in_place=lambda x: _added_up(x),
    reduced=lambda x: functools.reduce(torch.add, x.unbind(1)).div(x.shape[1]),
    running_mean=lambda x: _running(x),
    stack_of_tokens=lambda x: torch.stack(x.unbind(1)).mean(0),
    matmul=lambda x: _column(x) @ x,
    matmul_from_the_left=lambda x: (_column(x)[None] @ x)[:, 0],
    matmul_from_the_right=lambda x: (x.mT @ _column(x)[:, None]).squeeze(-1),
    matmul_with_a_vector=lambda x: x.mT @ _column(x),
    bmm=lambda x: torch.bmm(_column(x).expand(len(x), 1, -1), x).squeeze(1),
    linear=lambda x: F.linear(x.mT, _column(x)[None]).squeeze(-1),
    tensordot=lambda x: torch.tensordot(x, _column(x), ([1], [0])),
    product_and_sum=lambda x: (x * _column(x)[:, None]).sum(1),
    adaptive_pool=lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1).squeeze(-1),
    adaptive_pool_module=lambda x: nn.AdaptiveAvgPool1d(1)(x.mT).flatten(1),
    adaptive_pool_2d=lambda x: F.adaptive_avg_pool2d(x.mT[..., None], (1, 1)).flatten(1),
    adaptive_pool_of_one_axis=lambda x: F.adaptive_avg_pool2d(x[:, None], (1, None))[:, 0, 0],
    average_pool=lambda x: F.avg_pool1d(x.mT, x.shape[1])[..., 0],
    average_pool_2d=lambda x: F.avg_pool2d(x[:, None], (x.shape[1], 1))[:, 0, 0],
    cumsum=lambda x: x.cumsum(1)[:, -1] / x.shape[1],
    cumsum_of_means=lambda x: (
        x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
    )[:, -1],
    nanmean=lambda x: x.nanmean(1),
    mean_of_the_transposed=lambda x: x.mT.mean(-1),
    mean_of_means=lambda x: torch.stack([x[..., i].mean(1) for i in range(x.shape[-1])], -1),
    two_parts=lambda x: (x[:, :2].sum(1) + x[:, 2:].sum(1)) / x.shape[1],
    two_parts_weighted=lambda x: 0.4 * x[:, :2].mean(1) + 0.6 * x[:, 2:].mean(1),
    convolution=lambda x: F.conv1d(x.mT, _column(x).expand(x.shape[-1], 1, -1), groups=x.shape[-1])[
        ..., 0
    ],
    convolution_of_tokens=lambda x: F.conv1d(x, _column(x)[None, :, None])[:, 0],
    var_mean=lambda x: torch.var_mean(x, 1)[1],
    std_mean=lambda x: torch.std_mean(x, dim=1)[1],
    index_add=lambda x: (
        torch.zeros(len(x), 1, x.shape[-1], dtype=x.dtype).index_add(
            1, torch.zeros(x.shape[1], dtype=torch.long), x
        )[:, 0]
        / x.shape[1]
    ),
    scatter_mean=lambda x: torch.zeros(len(x), 1, x.shape[-1], dtype=x.dtype).scatter_reduce(
        1, torch.zeros(1, dtype=torch.long).expand_as(x), x, "mean", include_self=False
    )[:, 0],
    scattered_sums_and_counts=lambda x: (lambda to: to(x) / to(torch.ones_like(x)))(
        lambda what: torch.zeros_like(x).scatter_add(
            1, torch.zeros(x.shape, dtype=torch.long), what
        )[:, 0]
    ),
    ones_like_summed=lambda x: x.sum(1) / torch.ones_like(x).sum(1),
    embedding_of_groups=lambda x: x.unfold(1, x.shape[1], 1).mean(-1)[:, 0],
    vmap=lambda x: torch.vmap(lambda s: s.mean(0))(x),
    sample_by_sample=lambda x: torch.stack([s.mean(0) for s in x]),
    attention_of_zeros=lambda x: _column(x).expand(len(x), -1)[:, None].matmul(x).squeeze(1),
    lerped=lambda x: torch.lerp(x[:, :2].mean(1), x[:, 2:].mean(1), 0.6),
)

# By Fourier transform, whose first coefficient is the sum, and there and back again; what has no
# form in real numbers is refused by its name.
spell(
    "pool",
    PLAIN,
    fft=lambda x: torch.fft.fft(x, dim=1)[:, 0].real / x.shape[1],
    fft_divided=lambda x: torch.fft.fft(x, dim=1, norm="forward").real[:, 0],
    rfft=lambda x: torch.fft.rfft(x, dim=1).real[:, 0] / x.shape[1],
    fft_and_back=lambda x: torch.fft.ifft(torch.fft.fft(x, dim=1), dim=1).real.mean(1),
    rfft_and_back=lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1).mean(1),
    low_pass=lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1)[:, :1], n=x.shape[1], dim=1)[:, 0],
)
spell(
    "pool",
    PLAIN,
    refused="matrix_exp.* has no form in real numbers",
    complex_matrices=lambda x: (
        (x.mean(1) + 0j).diag_embed().matrix_exp().diagonal(dim1=-2, dim2=-1).log().real
    ),
)


def _added_up(x):
    total = torch.zeros_like(x[:, 0])
    for token in x.unbind(1):
        total += token
    return total / x.shape[1]


def _running(x):
    mean = x[:, 0]
    for i in range(1, x.shape[1]):
        mean = mean + (x[:, i] - mean) / (i + 1)
    return mean


# Real tokens.


def _counted(m):
    return m.sum(1, keepdim=True)


spell(
    "pool",
    PADDED,
    BOTH,
    float_mask=lambda x, m: (x * m[..., None].to(x.dtype)).sum(1) / _counted(m),
    expanded_mask=lambda x, m: (
        (x * m.unsqueeze(-1).expand(x.size()).double()).sum(1)
        / torch.clamp(m.unsqueeze(-1).expand(x.size()).double().sum(1), min=1e-9)
    ),
    masked_fill=lambda x, m: x.masked_fill(~m[..., None], 0).sum(1) / _counted(m),
    where=lambda x, m: torch.where(m[..., None], x, 0.0).sum(1) / _counted(m),
    einsum=lambda x, m: torch.einsum("bnd,bn->bd", x, m.to(x.dtype)) / _counted(m),
    einsum_of_shares=lambda x, m: torch.einsum("bnd,bn->bd", x, m / _counted(m).to(x.dtype)),
    matmul=lambda x, m: (m[:, None].to(x.dtype) @ x)[:, 0] / _counted(m),
    matmul_of_shares=lambda x, m: ((m / _counted(m).double())[:, None] @ x).squeeze(1),
    bmm=lambda x, m: torch.bmm(x.mT, m[..., None].to(x.dtype)).squeeze(-1) / _counted(m),
    weights_normalised=lambda x, m: (F.normalize(m.double(), p=1, dim=1)[..., None] * x).sum(1),
    softmax_of_the_mask=lambda x, m: (
        torch.where(m, 0.0, -torch.inf).double().softmax(1)[..., None] * x
    ).sum(1),
    mean_times_ratio=lambda x, m: (x * m[..., None]).mean(1) * (m.shape[1] / _counted(m).double()),
    means_divided=lambda x, m: (x * m[..., None]).mean(1) / m.double().mean(1, keepdim=True),
    index_add_by_sample=lambda x, m: _by_sample(x, m) / _counted(m),
    cumsum=lambda x, m: (x * m[..., None]).cumsum(1)[:, -1] / m.cumsum(1)[:, -1:],
    vmap=lambda x, m: torch.vmap(lambda s, k: (s * k[:, None]).sum(0) / k.sum())(x, m),
    in_place=lambda x, m: x.clone().masked_fill_(~m[..., None], 0).sum(1).div_(_counted(m)),
)


def _by_sample(x, m):
    out = x.new_zeros(len(x), x.shape[-1])
    rows = torch.arange(len(x)).repeat_interleave(x.shape[1])
    return out.index_add(0, rows, (x * m[..., None]).flatten(0, 1))


# The first token.

spell(
    "pool",
    START,
    IDS,
    select=lambda x: x.select(1, 0),
    index_with_an_ellipsis=lambda x: x[..., 0, :],
    slice_and_squeeze=lambda x: x[:, :1].squeeze(1),
    slice_and_flatten=lambda x: x[:, :1, :].flatten(1),
    slice_and_sum=lambda x: x[:, :1].sum(1),
    slice_and_mean=lambda x: x[:, 0:1].mean(dim=1),
    narrow=lambda x: x.narrow(1, 0, 1).reshape(len(x), -1),
    gather=lambda x: x.gather(1, torch.zeros(len(x), 1, x.shape[-1], dtype=torch.long))[:, 0],
    index_select=lambda x: x.index_select(1, torch.tensor([0])).squeeze(1),
    index_of_a_tensor=lambda x: x[:, torch.tensor(0)],
    index_of_a_list=lambda x: x[:, [0]][:, 0],
    index_of_two_tensors=lambda x: x[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)],
    index_of_item=lambda x: x[:, torch.tensor(0).item()],
    take_along_dim=lambda x: torch.take_along_dim(x, torch.zeros(1, 1, 1, dtype=torch.long), 1)[
        :, 0
    ],
    unbind=lambda x: x.unbind(1)[0],
    split=lambda x: torch.split(x, [1, x.shape[1] - 1], 1)[0].squeeze(1),
    tensor_split=lambda x: torch.tensor_split(x, [1], 1)[0][:, 0],
    one_hot_matmul=lambda x: (F.one_hot(torch.tensor([0]), x.shape[1]).to(x.dtype) @ x)[:, 0],
    one_hot_einsum=lambda x: torch.einsum(
        "n,bnd->bd", F.one_hot(torch.tensor(0), x.shape[1]).double(), x
    ),
    mask_and_sum=lambda x: (x * (torch.arange(x.shape[1]) == 0)[:, None]).sum(1),
    where_and_sum=lambda x: torch.where((torch.arange(x.shape[1]) < 1)[:, None], x, 0.0).sum(1),
    bool_index=lambda x: x[:, torch.arange(x.shape[1]) == 0].squeeze(1),
    masked_select=lambda x: x.masked_select((torch.arange(x.shape[1]) == 0)[:, None]).view(
        len(x), -1
    ),
    flip=lambda x: x.flip(1)[:, -1],
    roll=lambda x: x.roll(-1, 1)[:, -1],
    transposed=lambda x: x.transpose(0, 1)[0],
    features_first=lambda x: x.mT[..., 0],
    flattened=lambda x: x.flatten(1)[:, : x.shape[-1]],
    cumsum=lambda x: x.cumsum(1)[:, 0],
    vmap=lambda x: torch.vmap(lambda s: s[0])(x),
    sample_by_sample=lambda x: torch.stack([s[0] for s in x]),
    as_strided=lambda x: x.contiguous().as_strided(
        (len(x), x.shape[-1]), (x.shape[1] * x.shape[2], 1)
    ),
    tuple_of_an_iterator=lambda x: next(iter(x.transpose(0, 1))),
    dsplit=lambda x: torch.hsplit(x, x.shape[1])[0][:, 0],
    diff_of_a_pad=lambda x: F.pad(x, (0, 0, 1, 0)).diff(dim=1)[:, 0],
    max_of_one=lambda x: x[:, :1].amax(1),
)

# The last token.

spell(
    "pool",
    CAUSAL,
    LLAMA,
    positive_index=lambda x: x[:, x.shape[1] - 1],
    select=lambda x: x.select(1, -1),
    slice_and_squeeze=lambda x: x[:, -1:].squeeze(1),
    narrow=lambda x: x.narrow(1, x.shape[1] - 1, 1)[:, 0],
    gather=lambda x: x.gather(1, torch.full((len(x), 1, x.shape[-1]), x.shape[1] - 1))[:, 0],
    index_select=lambda x: x.index_select(1, torch.tensor([x.shape[1] - 1])).squeeze(1),
    unbind=lambda x: x.unbind(1)[-1],
    unpacked=lambda x: (lambda *tokens: tokens[-1])(*x.unbind(1)),
    flip=lambda x: x.flip(1)[:, 0],
    roll=lambda x: x.roll(1, 1)[:, 0],
    one_hot=lambda x: (F.one_hot(torch.tensor([x.shape[1] - 1]), x.shape[1]).to(x) @ x)[:, 0],
    mask_and_sum=lambda x: (x * (torch.arange(x.shape[1]) == x.shape[1] - 1)[:, None]).sum(1),
    index_of_item=lambda x: x[:, torch.tensor(x.shape[1]).item() - 1],
    index_of_two_tensors=lambda x: x[torch.arange(len(x)), torch.full((len(x),), -1)],
    chunk=lambda x: x.chunk(x.shape[1], 1)[-1][:, 0],
    flattened=lambda x: x.flatten(1)[:, -x.shape[-1] :],
    unflattened=lambda x: x.reshape(len(x), -1, 8)[:, -1, :],
    transposed=lambda x: x.transpose(0, 1)[-1],
)

spell(
    "pool",
    LARGEST,
    adaptive_pool=lambda x: F.adaptive_max_pool1d(x.transpose(1, 2), 1).squeeze(-1),
    adaptive_pool_module=lambda x: nn.AdaptiveMaxPool1d(1)(x.mT).flatten(1),
    adaptive_pool_2d=lambda x: F.adaptive_max_pool2d(x.mT[..., None], (1, 1)).flatten(1),
    adaptive_pool_of_one_axis=lambda x: F.adaptive_max_pool2d(x[:, None], (1, None))[:, 0, 0],
    torch_max=lambda x: torch.max(x, dim=-2).values,
    topk=lambda x: x.topk(1, 1)[0].squeeze(1),
    sorted=lambda x: x.sort(1, descending=True).values[:, 0],
    max_pool=lambda x: F.max_pool1d(x.mT, x.shape[1]).squeeze(-1),
    max_pool_2d=lambda x: F.max_pool2d(x[:, None], (x.shape[1], 1)).flatten(1),
    largest_of_two=lambda x: torch.maximum(x[:, :3].amax(1), x[:, 3:].amax(1)),
    largest_so_far=lambda x: functools.reduce(torch.maximum, x.unbind(1)),
    largest_by_where=lambda x: functools.reduce(lambda a, b: torch.where(a > b, a, b), x.unbind(1)),
    less_the_smallest=lambda x: -(-x).amin(1),
)

# What is not read is added and taken off again.
spell(
    "pool",
    PADDED,
    BOTH,
    apart=OTHER_TERMS,
    less_what_is_padding=lambda x, m: (x.sum(1) - (x * ~m[..., None]).sum(1)) / _counted(m),
)
spell(
    "pool",
    START,
    IDS,
    apart=OTHER_TERMS,
    less_the_others=lambda x: x.sum(1) - x[:, 1:].sum(1),
)
spell(
    "pool",
    CAUSAL,
    LLAMA,
    apart=OTHER_TERMS,
    cumsum_difference=lambda x: x.cumsum(1)[:, -1] - x.cumsum(1)[:, -2],
)
