"""A projection from its weight and bias: every product, sum and convolution that is one."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import IDS, LLAMA, PLAIN
from tests.spellings.spelling import spell, spells


def _flat(x):
    return x.reshape(-1, x.shape[-1])


def _rows(x, w):
    """``w`` once per sample."""
    return w.expand(len(x), -1, -1)


spell(
    "project",
    PLAIN,
    matmul_of_the_transposed=lambda x, w, b: x @ w.T + b,
    matmul_and_mT=lambda x, w, b: torch.matmul(x, w.mT).add(b),
    bias_first=lambda x, w, b: b + x @ w.t(),
    linear_then_bias=lambda x, w, b: F.linear(x, w) + b,
    linear_with_a_zero_bias_then_bias=lambda x, w, b: F.linear(x, w, torch.zeros_like(b)) + b,
    bias_in_place=lambda x, w, b: F.linear(x, w).add_(b),
    bias_by_expand=lambda x, w, b: F.linear(x, w) + b[None, None].expand(len(x), x.shape[1], -1),
    bias_as_half_and_half=lambda x, w, b: F.linear(x, w, b / 2) + b / 2,
    weight_from_the_left=lambda x, w, b: (w @ x.mT).mT + b,
    weight_from_the_left_bias_as_a_column=lambda x, w, b: (w @ x.mT + b[:, None]).mT,
    matrix_times_vectors=lambda x, w, b: (w @ x[..., None]).squeeze(-1) + b,
    matrix_times_vectors_bias_inside=lambda x, w, b: (w @ x[..., None] + b[:, None])[..., 0],
    vectors_times_matrix=lambda x, w, b: (x[:, :, None] @ w.T)[:, :, 0] + b,
    einsum_bnd_od_bno=lambda x, w, b: torch.einsum("bnd,od->bno", x, w) + b,
    einsum_od_bnd_bno=lambda x, w, b: torch.einsum("od,bnd->bno", w, x) + b,
    einsum_with_the_weight_transposed=lambda x, w, b: torch.einsum("bnd,do->bno", x, w.T) + b,
    einsum_with_an_ellipsis=lambda x, w, b: torch.einsum("...d,od->...o", x, w) + b,
    einsum_features_first=lambda x, w, b: torch.einsum("bnd,od->bon", x, w).mT + b,
    einsum_tokens_first=lambda x, w, b: torch.einsum("bnd,od->nbo", x, w).transpose(0, 1) + b,
    einsum_outputs_first=lambda x, w, b: torch.einsum("bnd,od->obn", x, w).movedim(0, -1) + b,
    einsum_by_numbers=lambda x, w, b: torch.einsum(x, [0, 1, 2], w, [3, 2], [0, 1, 3]) + b,
    tensordot=lambda x, w, b: torch.tensordot(x, w, dims=([2], [1])) + b,
    tensordot_by_count=lambda x, w, b: torch.tensordot(x, w.T, 1) + b,
    tensordot_weight_first=lambda x, w, b: torch.tensordot(w, x, ([1], [2])).permute(1, 2, 0) + b,
    inner=lambda x, w, b: torch.inner(x, w) + b,
    inner_weight_first=lambda x, w, b: torch.inner(w, x).permute(1, 2, 0) + b,
    bmm_with_the_weight_expanded=lambda x, w, b: torch.bmm(x, _rows(x, w.T)) + b,
    bmm_with_the_weight_repeated=lambda x, w, b: torch.bmm(x, w.T.repeat(len(x), 1, 1)) + b,
    bmm_from_the_left=lambda x, w, b: torch.bmm(_rows(x, w), x.mT).mT + b,
    baddbmm=lambda x, w, b: torch.baddbmm(b, x, _rows(x, w.T)),
    baddbmm_of_zeros=lambda x, w, b: torch.baddbmm(x.new_zeros(()), x, _rows(x, w.T), beta=0) + b,
    addmm=lambda x, w, b: torch.addmm(b, _flat(x), w.T).view(*x.shape[:2], -1),
    addmm_with_beta=lambda x, w, b: torch.addmm(2 * b, _flat(x), w.T, beta=0.5).view(
        *x.shape[:2], -1
    ),
    mm_then_bias_then_reshape=lambda x, w, b: (_flat(x).mm(w.t()) + b).reshape(*x.shape[:2], -1),
    mm_then_reshape_then_bias=lambda x, w, b: _flat(x).mm(w.t()).reshape(*x.shape[:2], -1) + b,
    product_and_sum=lambda x, w, b: (x[:, :, None] * w).sum(-1) + b,
    product_and_sum_over_an_inner_axis=lambda x, w, b: (x[..., None] * w.T).sum(2) + b,
    product_and_mean=lambda x, w, b: (x[:, :, None] * w).mean(-1) * x.shape[-1] + b,
    vecdot=lambda x, w, b: torch.linalg.vecdot(x[:, :, None], w) + b,
    two_halves_of_the_inputs=lambda x, w, b: (
        sum(F.linear(p, v) for p, v in zip(x.chunk(2, -1), w.chunk(2, 1), strict=True)) + b
    ),
    unequal_parts_of_the_inputs=lambda x, w, b: (
        F.linear(x[..., :3], w[:, :3], b) + F.linear(x[..., 3:], w[:, 3:])
    ),
    one_input_at_a_time=lambda x, w, b: sum(
        (x[..., i, None] * w[:, i] for i in range(x.shape[-1])), b
    ),
    even_and_odd_inputs=lambda x, w, b: x[..., ::2] @ w[:, ::2].T + x[..., 1::2] @ w[:, 1::2].T + b,
    second_half_of_the_inputs_first=lambda x, w, b: (
        F.linear(x[..., 4:], w[:, 4:], b) + F.linear(x[..., :4], w[:, :4])
        if x.shape[-1] == 8
        else F.linear(x, w, b)
    ),
    inputs_in_a_square=lambda x, w, b: sum(
        (
            F.linear(p, v)
            for p, v in zip(
                x.unflatten(-1, (-1, 2)).unbind(-1),
                w.unflatten(-1, (-1, 2)).unbind(-1),
                strict=True,
            )
        ),
        b,
    ),
    inputs_by_index=lambda x, w, b: sum(
        (
            x[..., [i, i + x.shape[-1] // 2]] @ w[:, [i, i + x.shape[-1] // 2]].T
            for i in range(x.shape[-1] // 2)
        ),
        b,
    ),
    one_output_at_a_time=lambda x, w, b: torch.stack(
        [x @ row + c for row, c in zip(w, b, strict=True)], -1
    ),
    one_token_at_a_time=lambda x, w, b: torch.stack([F.linear(t, w, b) for t in x.unbind(1)], 1),
    one_sample_at_a_time=lambda x, w, b: torch.stack([F.linear(s, w, b) for s in x]),
    one_sample_at_a_time_by_addmm=lambda x, w, b: torch.stack([torch.addmm(b, s, w.T) for s in x]),
    mv_of_every_token=lambda x, w, b: torch.stack(
        [torch.stack([torch.mv(w, t) + b for t in s]) for s in x]
    ),
    addmv_by_vmap=lambda x, w, b: torch.vmap(torch.vmap(lambda t: torch.addmv(b, w, t)))(x),
    vmap_over_samples=lambda x, w, b: torch.vmap(lambda s: F.linear(s, w, b))(x),
    vmap_over_tokens=lambda x, w, b: torch.vmap(lambda t: t @ w.T + b, 1, 1)(x),
    vmap_over_rows_of_the_weight=lambda x, w, b: torch.vmap(
        lambda row, c: x @ row + c, out_dims=-1
    )(w, b),
    tokens_first=lambda x, w, b: F.linear(x.transpose(0, 1), w, b).transpose(0, 1),
    features_reversed=lambda x, w, b: F.linear(x.flip(-1), w.flip(1), b),
    outputs_reversed=lambda x, w, b: F.linear(x, w.flip(0), b.flip(0)).flip(-1),
    features_permuted=lambda x, w, b: F.linear(x[..., _mixed(x)], w[:, _mixed(x)], b),
    scaled_and_back_transposed=lambda x, w, b: (x * 0.5) @ (2 * w.T) + b,
    scaled_and_back=lambda x, w, b: F.linear(2 * x, w / 2, b),
    divided_and_back=lambda x, w, b: F.linear(x / 3, 3 * w, b),
    each_feature_scaled_and_back=lambda x, w, b: F.linear(x * _sizes(x), w / _sizes(x), b),
    output_scaled_and_back=lambda x, w, b: F.linear(x, 4 * w, 4 * b) / 4,
    alpha_of_add=lambda x, w, b: torch.add(F.linear(x, w), b, alpha=1),
    bias_subtracted=lambda x, w, b: F.linear(x, w) - (-b),
    bias_by_addcmul=lambda x, w, b: torch.addcmul(F.linear(x, w), b, torch.ones_like(b)),
    aten_linear=lambda x, w, b: torch.ops.aten.linear.default(x, w, b),
    multi_dot=lambda x, w, b: torch.stack([torch.linalg.multi_dot([s, w.T]) for s in x]) + b,
    weight_computed=lambda x, w, b: F.linear(x, (w.square() * w.sign()) / w.abs(), b),
    weight_by_a_product=lambda x, w, b: F.linear(x, torch.eye(len(w), dtype=w.dtype) @ w, b),
    weight_masked=lambda x, w, b: F.linear(x, w * torch.ones_like(w), b),
    weight_normalised=lambda x, w, b: F.linear(
        x, w.norm(dim=1, keepdim=True) * (w / w.norm(dim=1, keepdim=True)), b
    ),
    weight_contiguous_transposed=lambda x, w, b: x @ w.T.contiguous() + b,
)


def _sizes(x):
    """A fixed number for each feature."""
    return torch.linspace(1, 2, x.shape[-1], dtype=x.dtype)


def _mixed(x):
    """A fixed order of the features."""
    return torch.arange(x.shape[-1]).roll(3)


# Convolutions.

spell(
    "project",
    PLAIN,
    conv1d=lambda x, w, b: F.conv1d(x.mT, w[..., None], b).mT,
    conv2d=lambda x, w, b: (
        F.conv2d(x.permute(0, 2, 1)[..., None], w[..., None, None], b)[..., 0].mT
    ),
    conv2d_token_grid=lambda x, w, b: (
        F.conv2d(x.mT[:, :, None], w[:, :, None, None], b).flatten(2).transpose(1, 2)
    ),
    conv2d_of_full_width=lambda x, w, b: F.conv2d(x[:, None], w[:, None, None], b)[..., 0].mT,
    conv1d_batches_of_tokens=lambda x, w, b: F.conv1d(_flat(x)[..., None], w[..., None], b)[
        ..., 0
    ].unflatten(0, x.shape[:2]),
    conv1d_tokens_as_batches_of_channels=lambda x, w, b: (
        F.conv1d(_flat(x)[:, None], w[:, None], b).unflatten(0, x.shape[:2]).squeeze(-1)
    ),
    conv1d_with_one_group_per_token=lambda x, w, b: F.conv1d(
        x.flatten(1)[..., None],
        w.repeat(x.shape[1], 1)[..., None],
        b.repeat(x.shape[1]),
        groups=x.shape[1],
    ).reshape(len(x), x.shape[1], -1),
    conv_transpose1d=lambda x, w, b: F.conv_transpose1d(x.mT, w.T[..., None], b).mT,
    conv2d_of_blocks=lambda x, w, b: (
        F.conv2d(x.unflatten(-1, (2, -1)).transpose(1, 2), w.view(len(w), 2, 1, -1), b)[..., 0].mT
    ),
    bilinear_with_one_first=lambda x, w, b: F.bilinear(
        torch.ones_like(x[..., :1]), x, w[:, None], b
    ),
    unfold=lambda x, w, b: F.linear(x.flatten(1).unfold(1, x.shape[-1], x.shape[-1]), w, b),
    unfold_image=lambda x, w, b: (w @ F.unfold(x[:, None], (1, x.shape[-1])) + b[:, None]).mT,
    bilinear_with_one=lambda x, w, b: F.bilinear(x, torch.ones_like(x[..., :1]), w[..., None], b),
)


# In places that other projections do not reach.

spell(
    "head",
    PLAIN,
    matmul=lambda x, w, b: x @ w.T + b,
    addmm=lambda x, w, b: torch.addmm(b, x, w.T),
    einsum=lambda x, w, b: torch.einsum("bd,cd->bc", x, w) + b,
    einsum_classes_first=lambda x, w, b: torch.einsum("cd,bd->cb", w, x).T + b,
    weight_from_the_left=lambda x, w, b: (w @ x.T).T + b,
    mv_of_every_sample=lambda x, w, b: torch.stack([w.mv(s) for s in x]) + b,
    dot_of_every_class=lambda x, w, b: torch.stack([(x * row).sum(-1) for row in w], -1) + b,
    as_a_sequence_of_one=lambda x, w, b: F.linear(x[:, None], w, b)[:, 0],
    conv2d_of_one_pixel=lambda x, w, b: F.conv2d(
        x[:, :, None, None], w[:, :, None, None], b
    ).flatten(1),
    product_and_sum=lambda x, w, b: (x[:, None] * w).sum(2) + b,
    bmm=lambda x, w, b: torch.bmm(_rows(x, w), x[..., None])[..., 0] + b,
    inner=lambda x, w, b: torch.inner(x, w) + b,
)

spell(
    "patch",
    PLAIN,
    matmul=lambda x, w, b: x @ w.T + b,
    weight_from_the_left=lambda x, w, b: (w @ x.mT).mT + b,
    einsum=lambda x, w, b: torch.einsum("bnd,od->bno", x, w) + b,
    tensordot=lambda x, w, b: torch.tensordot(x, w, ([-1], [-1])) + b,
    product_and_sum=lambda x, w, b: (x[:, :, None] * w).sum(-1) + b,
    one_token_at_a_time=lambda x, w, b: torch.stack([F.linear(t, w, b) for t in x.unbind(1)], 1),
    baddbmm=lambda x, w, b: torch.baddbmm(b[None, None], x, _rows(x, w.T)),
    reduced=lambda x, w, b: functools.reduce(
        torch.add, [x[..., i : i + 1] * w[:, i] for i in range(x.shape[-1])], b
    ),
)

# Without a bias, and between norms after the sums.

spell(
    "project",
    IDS,
    matmul=lambda x, w, b: x @ w.T + b,
    einsum=lambda x, w, b: torch.einsum("oi,bti->bto", w, x) + b,
    conv1d=lambda x, w, b: F.conv1d(x.mT, w[..., None], b).mT,
)
spell(
    "project",
    LLAMA,
    matmul=lambda x, w, b: x @ w.T,
    einsum=lambda x, w, b: torch.einsum("oi,bti->bto", w, x),
    bmm=lambda x, w, b: torch.bmm(x, w.T.expand(len(x), -1, -1)),
    weight_from_the_left=lambda x, w, b: (w @ x.mT).mT,
    product_and_sum=lambda x, w, b: (x[:, :, None] * w).sum(-1),
)


# What linear maps cannot be told from, but Eq. 4 can: it asks which *inputs* are positive.

spell(
    "project",
    PLAIN,
    apart={"lrp": "Eq. 4 reads the sign of each input, and here it is the other"},
    both_signs_turned=lambda x, w, b: F.linear(-x, -w, b),
)


@spells("project", PLAIN)
class LinearModule(nn.Linear):
    """PyTorch's own module."""

    def __init__(self, weight, bias):
        super().__init__(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        self.load_state_dict({"weight": weight, "bias": bias})


# A sign that is turned on the way in or out.
spell(
    "project",
    PLAIN,
    input_turned=lambda x, w, b: F.linear(-x, -w, b),
    input_doubled_and_turned=lambda x, w, b: (x / -2) @ (w.T * 2) * -1 + b,
    whole_turned=lambda x, w, b: -F.linear(x, -w, -b),
)
