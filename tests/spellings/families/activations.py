"""Activations by every formula there is for them."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import (
    GATED,
    HARDSWISH,
    LLAMA,
    MISH,
    PLAIN,
    QUICK,
    RELU,
    SILU,
    SOFTPLUS,
    SQUARED_RELU,
    TANH,
)
from tests.spellings.model import HIDDEN
from tests.spellings.spelling import spell, spells

ROOT = math.sqrt(2)

spell(
    "activation",
    PLAIN,
    erf=lambda x: 0.5 * x * (1 + torch.erf(x / ROOT)),
    erf_in_another_order=lambda x: x * (torch.erf(x * 0.5**0.5) + 1) * 0.5,
    erf_multiplied_out=lambda x: 0.5 * x + 0.5 * x * torch.erf(x / ROOT),
    erf_method=lambda x: (x / ROOT).erf().add(1).mul(x).div(2),
    special_erf=lambda x: x * 0.5 * (1.0 + torch.special.erf(x / ROOT)),
    erfc=lambda x: x * torch.erfc(-x / ROOT) / 2,
    one_less_erfc=lambda x: x * (1 - 0.5 * torch.erfc(x / ROOT)),
    ndtr=lambda x: x * torch.special.ndtr(x),
    less_its_mirror=lambda x: x - x * torch.special.ndtr(-x),
    log_ndtr=lambda x: x * torch.exp(torch.special.log_ndtr(x)),
    distribution=lambda x: (
        x
        * torch.distributions.Normal(
            torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype), validate_args=False
        ).cdf(x)
    ),
    relu_less_a_tail=lambda x: F.relu(x) - x.abs() * torch.special.ndtr(-x.abs()),
    where=lambda x: torch.where(
        x > 0, x - x * torch.erfc(x / ROOT) / 2, x * torch.erfc(-x / ROOT) / 2
    ),
    aten=lambda x: torch.ops.aten.gelu.default(x),
    functional_with_a_name=lambda x: F.gelu(x, approximate="none"),
    module=lambda x: nn.GELU()(x),
    sequence_of_modules=lambda x: nn.Sequential(nn.Identity(), nn.GELU(), nn.Dropout(0.5)).eval()(
        x
    ),
    chunks_of_features=lambda x: torch.cat([F.gelu(p) for p in x.split(5, -1)], -1),
    token_by_token=lambda x: torch.stack([F.gelu(t) for t in x.unbind(1)], 1),
    transposed=lambda x: F.gelu(x.mT).mT,
    vmap=lambda x: torch.vmap(F.gelu)(x),
    written_into_another=lambda x: torch.empty_like(x).copy_(F.gelu(x)),
    in_place_formula=lambda x: x.clone().div_(ROOT).erf_().add_(1).mul_(x).mul_(0.5),
    einsum=lambda x: torch.einsum("bnd,bnd->bnd", x, torch.special.ndtr(x)),
    addcmul=lambda x: torch.addcmul(x / 2, x, torch.erf(x / ROOT), value=0.5),
    lerp=lambda x: torch.lerp(torch.zeros_like(x), x, torch.special.ndtr(x)),
    scripted=lambda x: _scripted_gelu(x),
    parts_by_sign=lambda x: (
        x.clamp(min=0) * torch.special.ndtr(x) + x.clamp(max=0) * torch.special.ndtr(x)
    ),
)


@torch.jit.script
def _scripted_gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))


INNER = math.sqrt(2 / math.pi)

spell(
    "activation",
    TANH,
    gpt2=lambda x: 0.5 * x * (1.0 + torch.tanh(INNER * (x + 0.044715 * torch.pow(x, 3.0)))),
    products=lambda x: x * 0.5 * (1 + torch.tanh(INNER * x * (1 + 0.044715 * x * x))),
    cubed_by_operator=lambda x: 0.5 * x * (1 + (INNER * (x + 0.044715 * x**3)).tanh()),
    sigmoid=lambda x: x * torch.sigmoid(2 * INNER * (x + 0.044715 * x.pow(3))),
    exp=lambda x: x / (1 + torch.exp(-2 * INNER * (x + 0.044715 * x.pow(3)))),
    silu_of_another=lambda x: x * (1 - torch.sigmoid(-2 * INNER * (x + 0.044715 * x * x.square()))),
    module=lambda x: nn.GELU(approximate="tanh")(x),
    addcmul=lambda x: x.mul(0.5).mul(
        torch.addcmul(x, x.square(), x, value=0.044715).mul(INNER).tanh().add(1)
    ),
    einsum_cubed=lambda x: (
        0.5
        * x
        * (1 + torch.tanh(INNER * (x + 0.044715 * torch.einsum("ijk,ijk,ijk->ijk", x, x, x))))
    ),
)

spell(
    "activation",
    QUICK,
    method=lambda x: x.mul(x.mul(1.702).sigmoid()),
    exp=lambda x: x / (1 + torch.exp(-1.702 * x)),
    silu=lambda x: F.silu(1.702 * x) / 1.702,
    glu=lambda x: F.glu(torch.cat([x, 1.702 * x], -1), -1),
    expit=lambda x: x * torch.special.expit(1.702 * x),
    tanh=lambda x: x * (1 + torch.tanh(0.851 * x)) / 2,
    sigmoid_first=lambda x: torch.sigmoid(1.702 * x) * x,
)

spell(
    "activation",
    SILU,
    sigmoid=lambda x: x * torch.sigmoid(x),
    sigmoid_functional=lambda x: F.sigmoid(x) * x,
    exp=lambda x: x / (1 + torch.exp(-x)),
    exp_and_reciprocal=lambda x: x * ((-x).exp() + 1).reciprocal(),
    expit=lambda x: torch.special.expit(x) * x,
    tanh=lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x)),
    logsigmoid=lambda x: x * F.logsigmoid(x).exp(),
    less_its_mirror=lambda x: x - x * torch.sigmoid(-x),
    softmax_of_two=lambda x: x * torch.stack([x, torch.zeros_like(x)]).softmax(0)[0],
    glu=lambda x: F.glu(torch.cat([x, x], -1), -1),
    glu_of_tokens=lambda x: F.glu(torch.cat([x, x], 1), 1),
    module=lambda x: nn.SiLU()(x),
    in_place_module=lambda x: nn.SiLU(inplace=True)(x.clone()),
    in_place=lambda x: F.silu(x * 1.0, inplace=True),
    mul_in_place=lambda x: torch.sigmoid(x).clone().mul_(x),
    softplus=lambda x: x * torch.exp(x - F.softplus(x)),
    by_a_function_of_ones_own=lambda x: Swish.apply(x),
    scripted=lambda x: _scripted_silu(x),
    beta_is_a_tensor=lambda x: x * torch.sigmoid(torch.ones((), dtype=x.dtype) * x),
    logaddexp=lambda x: x * torch.exp(-torch.logaddexp(torch.zeros_like(x), -x)),
)


@torch.jit.script
def _scripted_silu(x):
    return x.mul(x.sigmoid())


class Swish(torch.autograd.Function):
    """The memory-saving form of EfficientNet: the derivative is written by hand, and right."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


spell("activation", LLAMA, sigmoid=lambda x: x * x.sigmoid(), exp=lambda x: x / (1 + (-x).exp()))

spell(
    "activation",
    RELU,
    clamp=lambda x: x.clamp(min=0),
    clamp_min=lambda x: torch.clamp_min(x, 0),
    clip=lambda x: torch.clip(x, 0),
    clamp_both=lambda x: x.clamp(0, math.inf),
    maximum=lambda x: torch.maximum(x, torch.zeros_like(x)),
    maximum_of_a_number=lambda x: torch.maximum(x, x.new_zeros(())),
    max_of_two=lambda x: torch.max(x, torch.zeros(1, dtype=x.dtype)),
    fmax=lambda x: torch.fmax(x, torch.zeros_like(x)),
    amax=lambda x: torch.stack([x, torch.zeros_like(x)]).amax(0),
    max_with_indices=lambda x: torch.stack([x, torch.zeros_like(x)], -1).max(-1).values,
    where=lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    where_with_a_number=lambda x: torch.where(x > 0, x, 0.0),
    where_the_other_way=lambda x: torch.where(x <= 0, 0.0, x),
    mask=lambda x: x * (x > 0),
    float_mask=lambda x: x * (x > 0).to(x.dtype),
    mask_by_sign=lambda x: x * (x.sign() + 1) / 2,
    heaviside=lambda x: x * torch.heaviside(x.detach(), x.new_zeros(())),
    half_of_itself_and_its_size=lambda x: (x + x.abs()) / 2,
    size_by_sqrt=lambda x: 0.5 * (x + x.square().sqrt()),
    less_its_negative_part=lambda x: x - x.clamp(max=0),
    turned_twice=lambda x: -(-x).clamp(max=0),
    minimum_turned=lambda x: -torch.minimum(-x, torch.zeros_like(x)),
    threshold=lambda x: F.threshold(x, 0, 0),
    masked_fill=lambda x: x.masked_fill(x < 0, 0),
    masked_fill_in_place=lambda x: x.clone().masked_fill_(x < 0, 0.0),
    masked_write=lambda x: _zeroed(x.clone()),
    masked_write_of_a_copy=lambda x: x.clone().index_put_((x < 0,), x.new_zeros(())),
    leaky_by_nothing=lambda x: F.leaky_relu(x, 0.0),
    prelu_of_zero=lambda x: F.prelu(x, torch.zeros(1, dtype=x.dtype)),
    hardtanh=lambda x: F.hardtanh(x, 0.0, 1e9),
    relu_in_place=lambda x: torch.relu_(x * 1),
    module_in_place=lambda x: nn.ReLU(inplace=True)(x.clone()),
    module=lambda x: nn.ReLU()(x),
    max_pooled=lambda x: F.max_pool1d(
        torch.stack([x, x * 0], -1).flatten(0, 2)[:, None], 2
    ).view_as(x),
    elu_of_nothing=lambda x: F.elu(x, alpha=0.0),
    sorted=lambda x: torch.stack([x, torch.zeros_like(x)]).sort(0).values[1],
    two_of_it=lambda x: F.relu(F.relu(x)),
)


def _zeroed(x):
    x[x < 0] = 0
    return x


spell(
    "activation",
    SQUARED_RELU,
    operator=lambda x: F.relu(x) ** 2,
    square=lambda x: F.relu(x).square(),
    product=lambda x: F.relu(x) * F.relu(x),
    product_with_itself=lambda x: x * F.relu(x),
    clamp_and_product=lambda x: x.clamp(min=0) * x,
    where=lambda x: torch.where(x > 0, x * x, 0.0),
    mask=lambda x: (x > 0) * x.pow(2),
    float_power=lambda x: torch.float_power(torch.relu(x), 2),
    signed=lambda x: (x * x.abs() + x * x) / 2,
)

# ``F.hardsigmoid`` is not among these: its derivative holds a sixth in single precision.
spell(
    "activation",
    HARDSWISH,
    relu6=lambda x: x * F.relu6(x + 3) / 6,
    relu6_times_a_sixth=lambda x: x * F.relu6(x + 3.0) * (1 / 6),
    relu6_divided_first=lambda x: x * (F.relu6(x + 3) / 6),
    clamp=lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
    clamp_of_a_sixth=lambda x: x * (x / 6 + 0.5).clamp(0, 1),
    clip=lambda x: x * torch.clip(x + 3, min=0, max=6).div(6),
    clamp_min_and_max=lambda x: x * (x + 3).clamp_min(0).clamp_max(6) / 6,
    hardtanh=lambda x: x * F.hardtanh(x + 3, 0.0, 6.0) / 6,
    module=lambda x: nn.Hardswish()(x),
    module_in_place=lambda x: nn.Hardswish(inplace=True)(x.clone()),
    relu6_in_place=lambda x: x * nn.ReLU6(inplace=True)(x + 3.0) / 6.0,
    minimum_and_maximum=lambda x: (
        x * torch.minimum(torch.maximum(x + 3, torch.zeros_like(x)), torch.full_like(x, 6)) / 6
    ),
    where=lambda x: torch.where(
        x < -3, torch.zeros_like(x), torch.where(x > 3, x, x * (x + 3) / 6)
    ),
    masks=lambda x: x * (x >= 3) + x * (x + 3) / 6 * ((x > -3) & (x < 3)),
    two_relus=lambda x: x * (F.relu(x + 3) - F.relu(x - 3)) / 6,
    masked_fill=lambda x: x * ((x + 3) / 6).masked_fill(x < -3, 0).masked_fill(x > 3, 1),
)

spell(
    "activation",
    SOFTPLUS,
    log1p=lambda x: torch.log1p(torch.exp(x)),
    log=lambda x: (1 + x.exp()).log(),
    logaddexp=lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    logsumexp=lambda x: torch.stack([x, torch.zeros_like(x)]).logsumexp(0),
    logsigmoid=lambda x: -F.logsigmoid(-x),
    relu_and_a_tail=lambda x: F.relu(x) + torch.log1p(torch.exp(-x.abs())),
    another_beta=lambda x: F.softplus(x / 2, beta=2) * 2,
    module=lambda x: nn.Softplus()(x),
    log_of_sigmoid=lambda x: x - torch.log(torch.sigmoid(x)),
)

spell(
    "activation",
    MISH,
    softplus=lambda x: x * torch.tanh(F.softplus(x)),
    log1p=lambda x: x * torch.log1p(x.exp()).tanh(),
    module=lambda x: nn.Mish()(x),
    quotient=lambda x: x * ((1 + x.exp()).square() - 1) / ((1 + x.exp()).square() + 1),
)

# Gates.

spell(
    "gate",
    LLAMA,
    GATED,
    the_other_way=lambda a, b: b * a,
    over_the_inverse=lambda a, b: b / a.reciprocal(),
    mul=lambda a, b: torch.mul(a, b),
    in_place=lambda a, b: a.mul_(b),
    einsum=lambda a, b: torch.einsum("bnd,bnd->bnd", a, b),
    addcmul=lambda a, b: torch.addcmul(torch.zeros_like(a), a, b),
    vmap=lambda a, b: torch.vmap(torch.mul)(a, b),
    product_of_a_stack=lambda a, b: torch.stack([a, b]).prod(0),
    matrices_of_one=lambda a, b: (a[..., None, None] @ b[..., None, None])[..., 0, 0],
    diagonal=lambda a, b: (torch.diag_embed(a) @ b[..., None]).squeeze(-1),
)


class _Merged(nn.Module):
    """Gate and values from one projection."""

    def __init__(self, parts, weights):
        super().__init__()
        self.parts = parts
        both = [weights["up"], weights["gate"]]
        self.both = nn.Parameter(torch.cat([w for w, _ in both]))
        self.bias = None if both[0][1] is None else nn.Parameter(torch.cat([b for _, b in both]))
        weight, bias = weights["down"]
        self.weight = nn.Parameter(weight)
        self.last = None if bias is None else nn.Parameter(bias)

    def halves(self, x):
        return F.linear(x, self.both, self.bias).chunk(2, -1)

    def forward(self, x):
        a, b = self.halves(x)
        return F.linear(self.parts.activation(a) * b, self.weight, self.last)


@spells("mlp", LLAMA, GATED)
class MergedAndChunked(_Merged):
    pass


@spells("mlp", LLAMA, GATED)
class MergedAndSliced(_Merged):
    def halves(self, x):
        y = F.linear(x, self.both, self.bias)
        return y[..., :HIDDEN], y[..., HIDDEN:]


@spells("mlp", LLAMA, GATED)
class MergedAndSplit(_Merged):
    def halves(self, x):
        return torch.split(F.linear(x, self.both, self.bias), HIDDEN, dim=-1)


@spells("mlp", LLAMA, GATED)
class MergedAndViewed(_Merged):
    def halves(self, x):
        return F.linear(x, self.both, self.bias).view(*x.shape[:2], 2, HIDDEN).unbind(2)


@spells("mlp", LLAMA, GATED)
class MergedWeightsSplit(_Merged):
    def halves(self, x):
        biases = (None, None) if self.bias is None else self.bias.chunk(2)
        return [F.linear(x, w, b) for w, b in zip(self.both.chunk(2), biases, strict=True)]


spell(
    "mlp",
    LLAMA,
    silu_by_a_quotient=lambda at, x: at.down(_swish_by_quotient(at.up(x), at.gate(x))),
)


def _swish_by_quotient(a, b):
    """The gate divided by what a sigmoid is the inverse of."""
    return b * a / (1 + torch.exp(-a))
