"""Layer and RMS norms written out: mean and variance any way, scale and bias inside or outside."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, IDS, LLAMA, PLAIN
from tests.spellings.model import EPS, WIDTH
from tests.spellings.spelling import spell, spells


def _mean(x):
    return x.mean(-1, keepdim=True)


def _centred(x):
    return x - _mean(x)


def _variance(x):
    return x.var(-1, unbiased=False, keepdim=True)


def _ones(x):
    """A column that averages features."""
    return x.new_full((x.shape[-1], 1), 1 / x.shape[-1])


def _written_out(x, w, b):
    return (x - _mean(x)) / torch.sqrt(_variance(x) + EPS) * w + b


spell("norm", PLAIN, IDS, CAUSAL, written_out=_written_out)

# The mean.

spell(
    "norm",
    PLAIN,
    mean_by_sum=lambda x, w, b: _affine(x - x.sum(-1, keepdim=True) / x.shape[-1], w, b),
    mean_by_unsqueeze=lambda x, w, b: _affine(x - x.mean(dim=2).unsqueeze(2), w, b),
    mean_by_index=lambda x, w, b: _affine(x - x.mean(-1)[..., None], w, b),
    mean_by_matmul=lambda x, w, b: _affine(x - x @ _ones(x), w, b),
    mean_by_linear=lambda x, w, b: _affine(x - F.linear(x, _ones(x).T), w, b),
    mean_by_einsum=lambda x, w, b: _affine(
        x - torch.einsum("bnd->bn", x)[..., None] / x.shape[-1], w, b
    ),
    mean_by_avg_pool=lambda x, w, b: _affine(x - F.avg_pool1d(x, x.shape[-1]), w, b),
    mean_by_adaptive_pool=lambda x, w, b: _affine(x - F.adaptive_avg_pool1d(x, 1), w, b),
    mean_by_cumsum=lambda x, w, b: _affine(x - x.cumsum(-1)[..., -1:] / x.shape[-1], w, b),
    mean_by_a_loop=lambda x, w, b: _affine(x - sum(x.unbind(-1))[..., None] / x.shape[-1], w, b),
    mean_by_nanmean=lambda x, w, b: _affine(x - x.nanmean(-1, keepdim=True), w, b),
    mean_subtracted_in_place=lambda x, w, b: _affine(x.clone().sub_(_mean(x)), w, b),
    mean_by_a_centring_matrix=lambda x, w, b: _affine(
        x @ (torch.eye(x.shape[-1], dtype=x.dtype) - 1 / x.shape[-1]), w, b
    ),
    mean_by_running_averages=lambda x, w, b: _affine(x - _running_mean(x), w, b),
    mean_of_features_first=lambda x, w, b: _affine((x.mT - x.mT.mean(1, keepdim=True)).mT, w, b),
)


def _affine(centred, w, b):
    return centred * (centred.square().mean(-1, keepdim=True) + EPS).rsqrt() * w + b


def _running_mean(x):
    mean = torch.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        mean = mean + (x[..., i : i + 1] - mean) / (i + 1)
    return mean


# The variance.

spell(
    "norm",
    PLAIN,
    var_of_correction_0=lambda x, w, b: _scaled(x, x.var(-1, correction=0, keepdim=True), w, b),
    var_of_torch=lambda x, w, b: _scaled(x, torch.var(x, 2, False, True), w, b),
    var_unbiased_and_corrected=lambda x, w, b: _scaled(
        x, x.var(-1, keepdim=True) * (x.shape[-1] - 1) / x.shape[-1], w, b
    ),
    var_of_std=lambda x, w, b: _scaled(x, x.std(-1, unbiased=False, keepdim=True) ** 2, w, b),
    var_of_squares_less_the_square=lambda x, w, b: _scaled(
        x, (x * x).mean(-1, keepdim=True) - _mean(x) ** 2, w, b
    ),
    var_mean=lambda x, w, b: _both(x, *torch.var_mean(x, -1, correction=0, keepdim=True), w, b),
    std_mean=lambda x, w, b: _both(
        x,
        *(
            t**p
            for t, p in zip(
                torch.std_mean(x, -1, unbiased=False, keepdim=True), (2, 1), strict=True
            )
        ),
        w,
        b,
    ),
    var_of_pow=lambda x, w, b: _scaled(x, _centred(x).pow(2).mean(-1, keepdim=True), w, b),
    var_of_product=lambda x, w, b: _scaled(x, _mean(_centred(x) * _centred(x)), w, b),
    var_by_einsum=lambda x, w, b: _scaled(
        x, torch.einsum("bnd,bnd->bn", _centred(x), _centred(x))[..., None] / WIDTH, w, b
    ),
    var_by_vecdot=lambda x, w, b: _scaled(
        x, torch.linalg.vecdot(_centred(x), _centred(x)).unsqueeze(-1) / WIDTH, w, b
    ),
    var_by_bmm=lambda x, w, b: _scaled(
        x, (_centred(x)[:, :, None] @ _centred(x)[..., None])[..., 0] / WIDTH, w, b
    ),
    var_by_vector_norm=lambda x, w, b: _scaled(
        x, torch.linalg.vector_norm(_centred(x), dim=-1, keepdim=True) ** 2 / WIDTH, w, b
    ),
    var_by_norm=lambda x, w, b: _scaled(
        x, _centred(x).norm(dim=-1, keepdim=True).pow(2) / WIDTH, w, b
    ),
    var_by_linalg_norm=lambda x, w, b: _scaled(
        x, torch.linalg.norm(_centred(x), dim=-1, keepdim=True).square().div(WIDTH), w, b
    ),
    var_by_matmul=lambda x, w, b: _scaled(x, _centred(x).square() @ _ones(x), w, b),
    var_by_pairs=lambda x, w, b: _scaled(
        x, (x[..., None] - x[..., None, :]).square().mean((-2, -1))[..., None] / 2, w, b
    ),
    var_by_mse=lambda x, w, b: _scaled(
        x, F.mse_loss(x, _mean(x).expand_as(x), reduction="none").mean(-1, keepdim=True), w, b
    ),
    var_by_cumsum=lambda x, w, b: _scaled(
        x, _centred(x).square().cumsum(-1)[..., -1:] / WIDTH, w, b
    ),
    var_by_adding_features=lambda x, w, b: _scaled(
        x, torch.stack([f**2 for f in _centred(x).unbind(-1)]).sum(0)[..., None] / WIDTH, w, b
    ),
    var_by_avg_pool=lambda x, w, b: _scaled(x, F.avg_pool1d(_centred(x) ** 2, WIDTH), w, b),
)


def _scaled(x, variance, w, b):
    return (x - _mean(x)) * torch.rsqrt(variance + EPS) * w + b


def _both(x, variance, mean, w, b):
    return (x - mean) * torch.rsqrt(variance + EPS) * w + b


# The root, and what is done with it.

spell(
    "norm",
    PLAIN,
    divided_by_sqrt=lambda x, w, b: _centred(x) / (_variance(x) + EPS).sqrt() * w + b,
    div_and_true_divide=lambda x, w, b: (
        torch.true_divide(_centred(x), torch.sqrt(_variance(x) + EPS)).mul(w).add(b)
    ),
    half_a_power=lambda x, w, b: _centred(x) / (_variance(x) + EPS) ** 0.5 * w + b,
    minus_half_a_power=lambda x, w, b: _centred(x) * (_variance(x) + EPS).pow(-0.5) * w + b,
    reciprocal_of_sqrt=lambda x, w, b: (
        _centred(x) * (_variance(x) + EPS).sqrt().reciprocal() * w + b
    ),
    one_over_sqrt=lambda x, w, b: _centred(x) * (1 / torch.sqrt(_variance(x) + EPS)) * w + b,
    exp_of_half_a_log=lambda x, w, b: (
        _centred(x) * torch.exp(-0.5 * (_variance(x) + EPS).log()) * w + b
    ),
    hypot=lambda x, w, b: (
        _centred(x) / torch.hypot(_variance(x).sqrt(), x.new_tensor(EPS**0.5)) * w + b
    ),
    float_power=lambda x, w, b: _centred(x) * torch.float_power(_variance(x) + EPS, -0.5) * w + b,
    divided_in_place=lambda x, w, b: _centred(x).div_((_variance(x) + EPS).sqrt()).mul_(w).add_(b),
    product_by_einsum=lambda x, w, b: (
        torch.einsum("bnd,bn,d->bnd", _centred(x), torch.rsqrt(_variance(x)[..., 0] + EPS), w) + b
    ),
)

# Scale and bias.

spell(
    "norm",
    PLAIN,
    addcmul=lambda x, w, b: torch.addcmul(b, F.layer_norm(x, (WIDTH,), None, None, EPS), w),
    affine_behind_the_norm=lambda x, w, b: F.layer_norm(x, (WIDTH,), eps=EPS) * w + b,
    affine_in_place=lambda x, w, b: F.layer_norm(x, (WIDTH,), eps=EPS).mul_(w).add_(b),
    bias_behind_the_norm=lambda x, w, b: F.layer_norm(x, (WIDTH,), w, None, EPS) + b,
    scale_behind_the_norm=lambda x, w, b: F.layer_norm(x, (WIDTH,), None, b / w, EPS) * w,
    scale_inside=lambda x, w, b: (w * _centred(x)) / torch.sqrt(_variance(x) + EPS) + b,
    scale_on_the_root=lambda x, w, b: _centred(x) * (w * torch.rsqrt(_variance(x) + EPS)) + b,
    scale_under_the_root=lambda x, w, b: _centred(x) / (torch.sqrt(_variance(x) + EPS) / w) + b,
    bias_inside=lambda x, w, b: (
        (_centred(x) * w + b * torch.sqrt(_variance(x) + EPS)) / torch.sqrt(_variance(x) + EPS)
    ),
    mean_folded_into_the_bias=lambda x, w, b: (
        x * (w * torch.rsqrt(_variance(x) + EPS))
        + (b - _mean(x) * w * torch.rsqrt(_variance(x) + EPS))
    ),
    addcdiv=lambda x, w, b: torch.addcdiv(b, _centred(x) * w, torch.sqrt(_variance(x) + EPS)),
    affine_by_a_grouped_convolution=lambda x, w, b: (
        F.conv1d(F.layer_norm(x, (WIDTH,), eps=EPS).mT, w[:, None, None], b, groups=WIDTH).mT
    ),
)

# By other norms, and along other axes.

spell(
    "norm",
    PLAIN,
    native_layer_norm=lambda x, w, b: torch.native_layer_norm(x, (WIDTH,), w, b, EPS)[0],
    torch_layer_norm=lambda x, w, b: torch.layer_norm(x, [WIDTH], w, b, EPS),
    layer_norm_of_two_axes=lambda x, w, b: F.layer_norm(
        x[:, :, None], (1, WIDTH), w[None], b[None], EPS
    )[:, :, 0],
    rms_norm_of_the_centred=lambda x, w, b: F.rms_norm(_centred(x), (WIDTH,), w, EPS) + b,
    group_norm=lambda x, w, b: F.group_norm(x.flatten(0, 1), 1, w, b, EPS).view_as(x),
    group_norm_of_many_groups=lambda x, w, b: (
        F.group_norm(x.flatten(1)[..., None], x.shape[1], None, None, EPS).view_as(x) * w + b
    ),
    instance_norm=lambda x, w, b: F.instance_norm(x, eps=EPS) * w + b,
    instance_norm_of_one=lambda x, w, b: (
        F.instance_norm(x.flatten(0, 1)[None], eps=EPS)[0].view_as(x) * w + b
    ),
    batch_norm_of_the_transposed=lambda x, w, b: (
        F.batch_norm(x.flatten(0, 1).T, None, None, training=True, eps=EPS).T.view_as(x) * w + b
    ),
    features_first=lambda x, w, b: _features_first(x.mT, w[:, None], b[:, None]).mT,
    features_first_of_four_axes=lambda x, w, b: (
        _features_first(x.mT[..., None], w[:, None, None], b[:, None, None])[..., 0].mT
    ),
    layer_norm_2d=lambda x, w, b: (
        F.layer_norm(x.mT[..., None].permute(0, 2, 3, 1), (WIDTH,), w, b, EPS)
        .permute(0, 3, 1, 2)[..., 0]
        .mT
    ),
    flattened=lambda x, w, b: F.layer_norm(x.reshape(-1, WIDTH), (WIDTH,), w, b, EPS).view_as(x),
    tokens_first=lambda x, w, b: F.layer_norm(x.transpose(0, 1), (WIDTH,), w, b, EPS).transpose(
        0, 1
    ),
    token_by_token=lambda x, w, b: torch.stack(
        [F.layer_norm(t, (WIDTH,), w, b, EPS) for t in x.unbind(1)], 1
    ),
    sample_by_sample_written_out=lambda x, w, b: torch.stack([_written_out(s, w, b) for s in x]),
    vmap_over_tokens=lambda x, w, b: torch.vmap(
        lambda t: F.layer_norm(t, (WIDTH,), w, b, EPS), 1, 1
    )(x),
    vmap_written_out=lambda x, w, b: torch.vmap(torch.vmap(lambda t: _written_out(t, w, b)))(x),
    features_reversed=lambda x, w, b: F.layer_norm(
        x.flip(-1), (WIDTH,), w.flip(0), b.flip(0), EPS
    ).flip(-1),
    of_ten_times_the_input=lambda x, w, b: F.layer_norm(10 * x, (WIDTH,), w, b, 100 * EPS),
    of_the_shifted_input=lambda x, w, b: F.layer_norm(x + 3, (WIDTH,), w, b, EPS),
    of_the_norm_without_scale=lambda x, w, b: F.layer_norm(_centred(x), (WIDTH,), w, b, EPS),
)


def _features_first(x, w, b):
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return w * ((x - u) / torch.sqrt(s + EPS)) + b


@spells("norm", PLAIN)
class LayerNorm(nn.LayerNorm):
    """PyTorch's own module."""

    def __init__(self, weight, bias):
        super().__init__(WIDTH, EPS, dtype=weight.dtype)
        self.load_state_dict({"weight": weight, "bias": bias})


@spells("norm", PLAIN)
class GroupNorm(nn.GroupNorm):
    def __init__(self, weight, bias):
        super().__init__(1, WIDTH, EPS, dtype=weight.dtype)
        self.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, x):
        return super().forward(x.reshape(-1, WIDTH)).view(x.shape)


@spells("norm", PLAIN)
class OneAndMore(nn.Module):
    """The stored scale is the difference from 1, as in Gemma."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight - 1), nn.Parameter(bias)

    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), eps=EPS) * (1 + self.weight) + self.bias


@spells("norm", PLAIN)
class WrittenOutInTypes(nn.Module):
    """As half-precision models have it: upcast, norm, back to the type of the input."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x):
        kind, x = x.dtype, x.to(torch.float64)
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + EPS)
        return self.weight * x.to(kind) + self.bias


# RMS norms.

spell(
    "norm",
    LLAMA,
    llama=lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)),
    scale_behind=lambda x, w: F.rms_norm(x, (WIDTH,), eps=EPS) * w,
    divided_by_sqrt=lambda x, w: x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS) * w,
    product_of_itself=lambda x, w: x * ((x * x).mean(-1, keepdim=True) + EPS) ** -0.5 * w,
    scale_first=lambda x, w: (w * x) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS),
    scale_on_the_root=lambda x, w: x * (w * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)),
    vector_norm=lambda x, w: (
        x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / WIDTH + EPS).sqrt() * w
    ),
    normalize_with_a_feature_more=lambda x, w: (
        F.normalize(F.pad(x, (0, 1), value=(WIDTH * EPS) ** 0.5), dim=-1, eps=0)[..., :-1]
        * WIDTH**0.5
        * w
    ),
    sum_instead_of_mean=lambda x, w: (
        x * WIDTH**0.5 / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + WIDTH * EPS) * w
    ),
    einsum=lambda x, w: (
        x * torch.rsqrt(torch.einsum("bnd,bnd->bn", x, x)[..., None] / WIDTH + EPS) * w
    ),
    vecdot=lambda x, w: x * torch.rsqrt(torch.linalg.vecdot(x, x)[..., None] / WIDTH + EPS) * w,
    matmul=lambda x, w: x * torch.rsqrt(x.square() @ _ones(x) + EPS) * w,
    reciprocal=lambda x, w: x * (x.square().mean(-1, True) + EPS).sqrt().reciprocal() * w,
    hypot=lambda x, w: (
        x / torch.hypot(x.norm(dim=-1, keepdim=True) / WIDTH**0.5, x.new_tensor(EPS**0.5)) * w
    ),
    in_place=lambda x, w: x.clone().mul_(torch.rsqrt(x.pow(2).mean(-1, True) + EPS)).mul_(w),
    features_first=lambda x, w: (
        (x.mT * torch.rsqrt(x.mT.pow(2).mean(1, keepdim=True) + EPS) * w[:, None]).mT
    ),
    token_by_token=lambda x, w: torch.stack(
        [t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + EPS) * w for t in x.unbind(1)], 1
    ),
    mean_written_into_a_list=lambda x, w: (
        torch.cat(
            [x[..., i : i + 1] * torch.rsqrt(x.pow(2).mean(-1, True) + EPS) for i in range(WIDTH)],
            -1,
        )
        * w
    ),
    expanded=lambda x, w: F.rms_norm(x, (WIDTH,), eps=EPS) * w.expand_as(x),
)


@spells("norm", LLAMA)
class RmsNorm(nn.RMSNorm):
    """PyTorch's own module."""

    def __init__(self, weight):
        super().__init__(WIDTH, EPS, dtype=weight.dtype)
        self.load_state_dict({"weight": weight})


@spells("norm", LLAMA)
class Gemma(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight - 1)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1.0 + self.weight)


# The scale in pieces, of numbers too.


def _plain(x):
    return F.layer_norm(x, (WIDTH,), eps=EPS)


spell(
    "norm",
    PLAIN,
    IDS,
    scaled_by_a_number_later=lambda x, w, b: F.layer_norm(x, (WIDTH,), w / 3, None, EPS) * 3 + b,
    halved_and_doubled=lambda x, w, b: (_plain(x) / 2 * w) * 2 + b,
    turned_and_back=lambda x, w, b: -_plain(x) * -w + b,
    divided_by_a_tensor=lambda x, w, b: _plain(x) / (1 / w) + b,
    scaled_by_full=lambda x, w, b: _plain(x) * torch.full((WIDTH,), 3.0).double() * (w / 3) + b,
    number_after_a_permutation=lambda x, w, b: (_plain(x).mT * 4).mT * (w / 4) + b,
    itself_and_its_multiple=lambda x, w, b: (lambda y: y + y * (w - 1) + b)(_plain(x)),
    multiples_added=lambda x, w, b: (lambda y: y * (w + 2) - 2 * y + b)(_plain(x)),
    multiples_in_place=lambda x, w, b: (lambda y: torch.addcmul(y, y, w - 1) + b)(_plain(x)),
)
spell(
    "norm",
    LLAMA,
    itself_and_its_multiple=lambda x, w: (lambda y: y + y * (w - 1))(
        F.rms_norm(x, (WIDTH,), None, EPS)
    ),
    number_and_half_the_scale=lambda x, w: 2 * F.rms_norm(x, (WIDTH,), w / 2, EPS),
)
