# mypy: ignore-errors
"""A library's model, unchanged, whose calls are other calls of the same function while it runs:
``with Rewritten(names): model(x)``."""

import math
import random
from collections import defaultdict

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

#: By name, the functions that are called otherwise, and how: it is given the function and its
#: arguments.
WAYS = {}
LINEAR, SOFTMAX = (torch._C._nn.linear,), (torch.softmax, torch.Tensor.softmax, F.softmax)
ATTENTION, NORM = (torch._C._nn.scaled_dot_product_attention,), (F.layer_norm, torch.layer_norm)
ADD = (torch.add, torch.Tensor.add, torch.Tensor.__add__)
TIMES = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__)
MEAN = (torch.mean, torch.Tensor.mean)
PRODUCT = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def way(*functions):
    def named(f):
        WAYS[f.__name__] = functions, f
        return f

    return named


class Rewritten(TorchFunctionMode):
    """While it is on, functions are called in the ways named, each call in one that is drawn by
    chance if ``mixed`` is a seed; single precision is double, so that rounding hides nothing.
    ``used``: the ways that were."""

    def __init__(self, names, mixed=None):
        super().__init__()
        self.names, self.mixed, self.used = frozenset(names), mixed, set()
        self.ways = {f: [n for n in WAYS if f in WAYS[n][0]] for w in WAYS.values() for f in w[0]}

    def __enter__(self):
        self.calls = 0
        return super().__enter__()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if a is torch.float32 else a for k, a in (kwargs or {}).items()}
        name = self.way_of(function)
        if name not in self.names:
            return function(*args, **kwargs)
        self.used.add(name)
        return WAYS[name][1](function, *args, **kwargs)

    def way_of(self, function):
        ways = self.ways.get(function, ())
        if self.mixed is None or not ways:
            return next((name for name in ways if name in self.names), None)
        self.calls += 1
        return random.Random(f"{self.mixed} {self.calls}").choice([None, *ways])


def is_float(x):
    return isinstance(x, torch.Tensor) and x.is_floating_point()


# Layers.


@way(*LINEAR)
def linear_by_einsum(_, x, weight, bias=None):
    if weight.dim() != 2:
        return F.linear(x, weight, bias)
    y = torch.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias


@way(*LINEAR)
def linear_from_the_left(own, x, weight, bias=None):
    if x.dim() < 2 or weight.dim() != 2:
        return own(x, weight, bias)
    y = (weight @ x.mT).mT
    return y if bias is None else bias + y


@way(*LINEAR)
def linear_of_flat_rows(own, x, weight, bias=None):
    if weight.dim() != 2:
        return own(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    y = rows.mm(weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return y.reshape(*x.shape[:-1], len(weight))


@way(*LINEAR)
def linear_in_two_outputs(own, x, weight, bias=None):
    half = len(weight) // 2
    if half == 0:
        return own(x, weight, bias)
    first, second = (None, None) if bias is None else (bias[:half], bias[half:])
    return torch.cat([own(x, weight[:half], first), own(x, weight[half:], second)], -1)


@way(*LINEAR)
def linear_of_two_inputs(own, x, weight, bias=None):
    half = weight.shape[-1] // 2
    if half == 0 or weight.dim() != 2:
        return own(x, weight, bias)
    return own(x[..., :half], weight[:, :half]) + own(x[..., half:], weight[:, half:], bias)


@way(*LINEAR)
def linear_as_convolution(own, x, weight, bias=None):
    return F.conv1d(x.mT, weight[..., None], bias).mT if x.dim() == 3 else own(x, weight, bias)


@way(torch.conv2d)
def convolution_of_columns(own, input, weight, bias=None, *rest, **more):
    stride, padding, dilation, groups = (*rest, *(1, 0, 1, 1)[len(rest) :])
    if more or groups != 1 or isinstance(padding, str):
        return own(input, weight, bias, *rest, **more)
    y = weight.flatten(1) @ F.unfold(input, weight.shape[2:], dilation, padding, stride)
    y = y if bias is None else y + bias[:, None]
    return y.unflatten(-1, own(input[:1], weight, bias, *rest).shape[2:])


@way(torch.conv2d)
def convolution_of_patches(own, input, weight, bias=None, *rest, **more):
    stride, padding, dilation, groups = (*rest, *(1, 0, 1, 1)[len(rest) :])
    stride = (stride, stride) if isinstance(stride, int) else tuple(stride)
    even = not any(n % k for n, k in zip(input.shape[-2:], weight.shape[2:], strict=True))
    apart = stride == tuple(weight.shape[2:]) and padding in (0, (0, 0)) and dilation in (1, (1, 1))
    if more or groups != 1 or not apart or not even:
        return own(input, weight, bias, *rest, **more)
    input = input.unflatten(-1, (-1, stride[1])).unflatten(-3, (-1, stride[0]))
    y = torch.einsum("bcipjq,ocpq->boij", input, weight)
    return y if bias is None else y + bias[:, None, None]


@way(torch.conv1d)
def convolution_over_an_image(own, input, weight, bias=None, *rest, **more):
    if more or any(isinstance(r, str) for r in rest) or input.dim() != 3:
        return own(input, weight, bias, *rest, **more)
    one = lambda t: t if isinstance(t, int) else t[0]  # noqa: E731
    given = zip(rest[:3], (1, 0, 1), strict=False)
    rest = ((default, one(r)) for r, default in given), rest[3:]
    return torch.conv2d(input[:, :, None], weight[:, :, None], bias, *rest[0], *rest[1])[:, :, 0]


@way(F.embedding, torch.embedding)
def embedding_by_one_of_each(_, a, b, *rest, **more):
    ids, table = (b, a) if is_float(a) else (a, b)
    if len(table) > 200:
        return table.index_select(0, ids.flatten()).reshape(*ids.shape, -1)
    return F.one_hot(ids.long(), len(table)).to(table.dtype) @ table


@way(F.embedding, torch.embedding)
def embedding_by_index(_, a, b, *rest, **more):
    ids, table = (b, a) if is_float(a) else (a, b)
    return table[ids]


# Norms and functions.


@way(*NORM)
def norm_by_mean_and_variance(_, x, shape, weight=None, bias=None, eps=1e-5, *rest):
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    y = centred / (centred**2).mean(axes, keepdim=True).add(eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@way(*NORM)
def norm_by_var_mean(_, x, shape, weight=None, bias=None, eps=1e-5, *rest):
    axes = tuple(range(-len(shape), 0))
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    y = (x - mean) * (variance + eps).rsqrt()
    if weight is None:
        return y
    return weight * y if bias is None else torch.addcmul(bias, weight, y)


@way(F.gelu, torch._C._nn.gelu)
def gelu_written_out(_, x, approximate="none"):
    if approximate == "none":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@way(F.silu, torch._C._nn.silu)
def silu_written_out(_, x, inplace=False):
    return x / (1 + torch.exp(-x))


@way(F.relu, torch.relu)
def relu_by_where(_, x, inplace=False):
    return torch.where(x > 0, x, torch.zeros_like(x))


@way(F.gelu, torch._C._nn.gelu)
def gelu_by_its_distribution(own, x, approximate="none"):
    if approximate != "none":
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return x * torch.special.ndtr(x)


@way(F.silu, torch._C._nn.silu)
def silu_by_a_tangent(_, x, inplace=False):
    return 0.5 * x * (1 + torch.tanh(0.5 * x))


@way(F.relu, torch.relu)
def relu_by_a_mask(_, x, inplace=False):
    return x * (x > 0)


@way(torch.sigmoid, torch.Tensor.sigmoid)
def sigmoid_by_exponentials(_, x):
    return 1 / (1 + torch.exp(-x))


@way(torch.tanh, torch.Tensor.tanh)
def tangent_by_a_sigmoid(_, x):
    return 2 * torch.sigmoid(2 * x) - 1


@way(torch.rsqrt, torch.Tensor.rsqrt)
def root_below(_, x):
    return 1 / x.sqrt()


@way(torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)
def power_by_products(own, x, power):
    if not is_float(x) or not isinstance(power, int | float) or power not in (2, 3):
        return own(x, power)
    return x * x if power == 2 else x * x * x


@way(F.rms_norm, torch.rms_norm)
def root_mean_square_written_out(_, x, shape, weight=None, eps=None):
    axes = tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = x / (x.square().mean(axes, keepdim=True) + eps) ** 0.5
    return y if weight is None else y * weight


@way(F.batch_norm, torch.batch_norm)
def batch_norm_written_out(own, x, mean, variance, weight=None, bias=None, *rest, **more):
    names = ("training", "momentum", "eps")
    given = {**dict(zip(names, rest, strict=False)), **more}
    if given.get("training") or mean is None:
        return own(x, mean, variance, weight, bias, *rest, **more)
    across = (-1, *[1] * (x.dim() - 2))
    scale = (variance + given.get("eps", 1e-5)).rsqrt().reshape(across)
    y = (x - mean.reshape(across)) * scale
    y = y if weight is None else y * weight.reshape(across)
    return y if bias is None else y + bias.reshape(across)


@way(F.batch_norm, torch.batch_norm)
def batch_norm_as_a_product_and_a_sum(
    own, x, mean, variance, weight=None, bias=None, *rest, **more
):
    names = ("training", "momentum", "eps")
    given = {**dict(zip(names, rest, strict=False)), **more}
    if given.get("training") or mean is None or weight is None:
        return own(x, mean, variance, weight, bias, *rest, **more)
    scale = weight * (variance + given.get("eps", 1e-5)).rsqrt()
    across = (-1, *[1] * (x.dim() - 2))
    return x * scale.reshape(across) + (bias - mean * scale).reshape(across)


@way(F.group_norm, torch.group_norm)
def group_norm_of_rows(_, x, groups, weight=None, bias=None, eps=1e-5, *rest):
    y = x.reshape(len(x), groups, -1)
    y = F.layer_norm(y, y.shape[-1:], eps=eps).reshape(x.shape)
    across = (-1, *[1] * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(across)
    return y if bias is None else y + bias.reshape(across)


@way(F.normalize)
def unit_vectors_written_out(_, x, p=2.0, dim=1, eps=1e-12, out=None):
    if p != 2:
        return x / x.norm(p, dim, keepdim=True).clamp_min(eps)
    return x / (x * x).sum(dim, keepdim=True).sqrt().clamp_min(eps)


# Softmax and attention.


def along(args, more):
    x, dtype = args[0], more.get("dtype")
    return x if dtype is None else x.to(dtype), more.get("dim", args[1] if len(args) > 1 else -1)


@way(*SOFTMAX)
def softmax_of_exponentials(_, *args, **more):
    x, dim = along(args, more)
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@way(*SOFTMAX)
def softmax_by_its_logarithm(_, *args, **more):
    return F.log_softmax(*along(args, more)).exp()


@way(*SOFTMAX)
def softmax_of_each_head(_, *args, **more):
    x, dim = along(args, more)
    if x.dim() != 4 or dim not in (-1, 3):
        return torch.softmax(x, dim)
    return torch.stack([torch.softmax(head, -1) for head in x.unbind(1)], 1)


@way(*SOFTMAX)
def softmax_in_powers_of_two(_, *args, **more):
    x, dim = along(args, more)
    e = torch.exp2((x - x.amax(dim, keepdim=True)) * math.log2(math.e))
    return e * e.sum(dim, keepdim=True).reciprocal()


@way(*SOFTMAX)
def softmax_less_its_log_sum(_, *args, **more):
    x, dim = along(args, more)
    return torch.exp(x - torch.logsumexp(x, dim, keepdim=True))


@way(*SOFTMAX)
def softmax_of_turned_scores(_, *args, **more):
    x, dim = along(args, more)
    return torch.softmax(x.movedim(dim, 0), 0).movedim(0, dim)


def attention_of(args, more):
    """Queries, keys, values, what hides scores, and their scale."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **more}
    q, k, v, mask = (given.get(n) for n in names[:4])
    if given.get("enable_gqa"):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))

    def hide(s):
        if given.get("is_causal"):
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        if mask is None or mask.dtype != torch.bool:
            return s if mask is None else s + mask
        nothing = torch.finfo(s.dtype).min  # a row of which nothing is seen is no NaN
        return s.masked_fill(~mask, nothing)

    return q, k, v, hide, given.get("scale") or q.shape[-1] ** -0.5


@way(*ATTENTION)
def attention_written_out(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    return hide(q @ k.mT * scale).softmax(-1) @ v


@way(*ATTENTION)
def attention_by_einsum(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    a = hide(torch.einsum("...qd,...kd->...qk", q * scale, k)).softmax(-1)
    return torch.einsum("...qk,...kd->...qd", a, v)


@way(*ATTENTION)
def attention_divided_late(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = hide(q @ k.mT * scale)
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


@way(*ATTENTION)
def attention_head_by_head(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = hide(q @ k.mT * scale)
    if s.dim() != 4:
        return s.softmax(-1) @ v
    heads = zip(s.unbind(1), v.expand(*s.shape[:2], -1, -1).unbind(1), strict=True)
    return torch.stack([a.softmax(-1) @ values for a, values in heads], 1)


@way(*ATTENTION)
def attention_by_some_queries(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = hide(q @ k.mT * scale)
    return torch.cat([part.softmax(-1) @ v for part in s.split(3, -2)], -2)


@way(*ATTENTION)
def attention_from_the_left(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = hide((k @ q.mT).mT * scale)
    return (v.mT @ s.softmax(-1).mT).mT


@way(*ATTENTION)
def attention_of_flat_heads(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = torch.bmm(q.flatten(0, -3) * scale, k.flatten(0, -3).transpose(1, 2))
    a = hide(s.reshape(*q.shape[:-1], k.shape[-2])).softmax(-1)
    return torch.bmm(a.flatten(0, -3), v.flatten(0, -3)).reshape(*q.shape[:-1], v.shape[-1])


@way(*ATTENTION)
def attention_over_some_keys_at_a_time(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    scores, values = (hide(q @ k.mT * scale)).split(3, -1), v.split(3, -2)
    most = torch.cat([s.amax(-1, keepdim=True) for s in scores], -1).amax(-1, keepdim=True)
    weights = [(s - most).exp() for s in scores]
    above = sum(w @ part for w, part in zip(weights, values, strict=True))
    return above / sum(w.sum(-1, keepdim=True) for w in weights)


@way(*ATTENTION)
def attention_by_broadcasting(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) * scale
    return (hide(s).softmax(-1).unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


@way(*ATTENTION)
def attention_written_in_place(_, *args, **more):
    q, k, v, hide, scale = attention_of(args, more)
    s = hide(q @ k.mT * scale)
    s -= s.amax(-1, keepdim=True)
    e = s.exp_()
    e /= e.sum(-1, keepdim=True)
    out = torch.empty_like(q[..., :1]).expand(*q.shape[:-1], v.shape[-1]).clone()
    for i in range(q.shape[-3]):
        out[..., i, :, :] = e[..., i, :, :] @ v.expand(*e.shape[:-2], *v.shape[-2:])[..., i, :, :]
    return out


# Sums, products, moves.


def is_plain_sum(a, b, rest, more):
    alike = is_float(a) and is_float(b) and a.shape == b.shape and a.dim() > 1
    return alike and not rest and not more


@way(*ADD)
def sum_of_a_stack(own, a, b, *rest, **more):
    plain = is_plain_sum(a, b, rest, more)
    return torch.stack([a, b]).sum(0) if plain else own(a, b, *rest, **more)


@way(*ADD)
def sum_in_place(own, a, b, *rest, **more):
    if not is_plain_sum(a, b, rest, more):
        return own(a, b, *rest, **more)
    made = torch.zeros_like(a)
    made[...] = a
    made += b
    return made


@way(*ADD)
def sum_as_a_difference(own, a, b, *rest, **more):
    return a - (-b) if is_plain_sum(a, b, rest, more) else own(a, b, *rest, **more)


@way(*PRODUCT)
def product_by_einsum(own, a, b):
    return torch.einsum("...ij,...jk->...ik", a, b) if min(a.dim(), b.dim()) > 1 else own(a, b)


@way(*PRODUCT)
def product_turned(own, a, b):
    return own(b.mT, a.mT).mT if min(a.dim(), b.dim()) > 1 else own(a, b)


@way(*PRODUCT)
def product_in_two_columns(own, a, b):
    if min(a.dim(), b.dim()) < 2 or b.shape[-1] < 2:
        return own(a, b)
    return torch.cat([own(a, part) for part in b.tensor_split(2, -1)], -1)


@way(torch.cat)
def join_into_a_buffer(own, tensors, dim=0):
    tensors = list(tensors)
    if not all(is_float(t) and t.numel() for t in tensors):
        return own(tensors, dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    made, first = tensors[0].new_empty(shape), 0
    for t in tensors:
        made.narrow(dim, first, t.shape[dim]).copy_(t)
        first += t.shape[dim]
    return made


@way(torch.cat)
def join_what_is_padded(own, tensors, dim=0):
    tensors, made, first = list(tensors), None, 0
    if not all(is_float(t) and t.numel() for t in tensors):
        return own(tensors, dim)
    axis = dim % tensors[0].dim()
    whole = sum(t.shape[axis] for t in tensors)
    for t in tensors:
        around = [first, whole - first - t.shape[axis]]
        padded = F.pad(t, [0] * (2 * (t.dim() - 1 - axis)) + around)
        made, first = padded if made is None else made + padded, first + t.shape[axis]
    return made


@way(*MEAN)
def mean_by_a_sum(own, x, *args, **more):
    if (not args and "dim" not in more) or "dtype" in more:
        return own(x, *args, **more)
    made = torch.sum(x, *args, **more)
    return made / (x.numel() // max(made.numel(), 1))


@way(torch.transpose, torch.Tensor.transpose)
def transpose_by_permute(_, x, i, j):
    order = list(range(x.dim()))
    order[i], order[j] = order[j], order[i]
    return x.permute(order)


@way(torch.chunk, torch.Tensor.chunk)
def chunks_by_index(own, x, count, dim=0):
    first, made = 0, []
    for part in own(x, count, dim):
        made.append(x.index_select(dim, torch.arange(first, first + part.shape[dim])))
        first += part.shape[dim]
    return tuple(made)


@way(torch.masked_fill, torch.Tensor.masked_fill)
def fill_by_where(_, x, mask, value):
    return torch.where(mask, torch.as_tensor(value, dtype=x.dtype), x)


@way(*ADD)
def sum_in_the_other_order(own, a, b, *rest, **more):
    return b + a if is_plain_sum(a, b, rest, more) else own(a, b, *rest, **more)


@way(*ADD)
def sum_as_twice_a_mean(own, a, b, *rest, **more):
    plain = is_plain_sum(a, b, rest, more)
    return 2 * torch.stack([a, b], -1).mean(-1) if plain else own(a, b, *rest, **more)


@way(torch.Tensor.__iadd__)
def sum_out_of_place(own, a, b, *rest, **more):
    return a + b if is_plain_sum(a, b, rest, more) else own(a, b, *rest, **more)


@way(*TIMES)
def product_by_letters(own, a, b):
    if not (is_float(a) and is_float(b) and a.dim() == b.dim() > 0):
        return own(a, b)
    return torch.einsum("...i,...i->...i", a, b) if a.shape[-1] == b.shape[-1] else b * a


@way(*TIMES)
def product_added_to_nothing(own, a, b):
    if not (is_float(a) and is_float(b) and a.shape == b.shape):
        return own(a, b)
    return torch.addcmul(torch.zeros_like(a), b, a)


@way(*TIMES)
def product_as_a_quotient(own, a, b):
    return a / (1 / b) if is_float(a) and isinstance(b, float) and b else own(a, b)


@way(torch.div, torch.Tensor.div, torch.Tensor.__truediv__)
def quotient_as_a_product(own, a, b, **more):
    if more or not is_float(a) or not (is_float(b) or isinstance(b, int | float)):
        return own(a, b, **more)
    return a * b.reciprocal() if isinstance(b, torch.Tensor) else a * (1 / b)


@way(*PRODUCT)
def product_by_broadcasting(own, a, b):
    if min(a.dim(), b.dim()) < 2:
        return own(a, b)
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


@way(*PRODUCT)
def product_in_two_rows(own, a, b):
    if min(a.dim(), b.dim()) < 2 or a.shape[-2] < 2:
        return own(a, b)
    return torch.cat([own(part, b) for part in a.tensor_split(2, -2)], -2)


@way(*PRODUCT)
def product_in_two_terms(own, a, b):
    if min(a.dim(), b.dim()) < 2 or a.shape[-1] < 2:
        return own(a, b)
    half = a.shape[-1] // 2
    return own(a[..., :half], b[..., :half, :]) + own(a[..., half:], b[..., half:, :])


@way(torch.bmm, torch.Tensor.bmm)
def batches_by_matmul(_, a, b):
    return a @ b


@way(torch.baddbmm, torch.Tensor.baddbmm)
def batches_added(_, c, a, b, beta=1, alpha=1):
    product = alpha * (a @ b)
    return product if beta == 0 else beta * c + product


@way(torch.addmm, torch.Tensor.addmm)
def layer_of_a_matrix(_, c, a, b, beta=1, alpha=1):
    return beta * c + alpha * (a @ b)


@way(torch.stack)
def stack_by_joining(_, tensors, dim=0):
    return torch.cat([t.unsqueeze(dim) for t in tensors], dim)


@way(torch.cat)
def join_what_is_scattered(own, tensors, dim=0):
    tensors, first = list(tensors), 0
    if not all(is_float(t) and t.numel() for t in tensors):
        return own(tensors, dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(t.shape[dim] for t in tensors)
    made = tensors[0].new_zeros(shape)
    for t in tensors:
        places = torch.arange(first, first + t.shape[dim])
        made, first = made.index_copy(dim, places, t), first + t.shape[dim]
    return made


@way(*MEAN)
def mean_by_letters(own, x, *args, **more):
    dim = args[0] if args else more.get("dim")
    if dim not in (-1, x.dim() - 1) or len(args) > 1 or "dtype" in more:
        return own(x, *args, **more)
    made = torch.einsum("...i->...", x) / x.shape[-1]
    return made.unsqueeze(-1) if more.get("keepdim") else made


@way(*MEAN)
def mean_by_a_matrix_of_numbers(own, x, *args, **more):
    dim = args[0] if args else more.get("dim")
    if not isinstance(dim, int) or len(args) > 1 or "dtype" in more or not is_float(x):
        return own(x, *args, **more)
    made = x.movedim(dim, -1) @ torch.full((x.shape[dim], 1), 1 / x.shape[dim])
    made = made.movedim(-1, dim)
    return made if more.get("keepdim") else made.squeeze(dim)


@way(torch.sum, torch.Tensor.sum)
def sum_by_numbers(own, x, *args, **more):
    dim = args[0] if args else more.get("dim")
    if not isinstance(dim, int) or len(args) > 1 or "dtype" in more or not is_float(x):
        return own(x, *args, **more)
    made = x.mean(dim, keepdim=bool(more.get("keepdim")))
    return made * x.shape[dim]


@way(torch.transpose, torch.Tensor.transpose)
def transpose_by_swapaxes(_, x, i, j):
    return x.swapaxes(j, i)


@way(torch.transpose, torch.Tensor.transpose)
def transpose_by_letters(own, x, i, j):
    letters = list(range(x.dim()))
    turned = list(letters)
    turned[i], turned[j] = turned[j], turned[i]
    return torch.einsum(x, letters, turned) if is_float(x) else own(x, i, j)


@way(torch.permute, torch.Tensor.permute)
def permute_by_moves(_, x, *order):
    order = order[0] if isinstance(order[0], list | tuple) else order
    return x.movedim(tuple(order), tuple(range(x.dim())))


@way(torch.permute, torch.Tensor.permute)
def permute_by_letters(own, x, *order):
    given = order[0] if isinstance(order[0], list | tuple) else order
    letters = list(range(x.dim()))
    plain = is_float(x) and len(given) == x.dim()
    return torch.einsum(x, letters, [letters[i] for i in given]) if plain else own(x, *order)


@way(torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
def shape_by_flattening(own, x, *shape):
    given = shape[0] if shape and isinstance(shape[0], list | tuple) else shape
    if not given or not all(isinstance(n, int) for n in given) or not x.numel() or not x.dim():
        return own(x, *shape)
    return x.flatten().unflatten(0, tuple(given))


@way(torch.flatten, torch.Tensor.flatten)
def flat_by_reshaping(own, x, start_dim=0, end_dim=-1):
    if not x.dim():
        return own(x, start_dim, end_dim)
    first, last = start_dim % x.dim(), end_dim % x.dim()
    return x.reshape(*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])


@way(torch.Tensor.expand)
def expand_by_repeating(own, x, *shape, **more):
    given = shape[0] if shape and isinstance(shape[0], list | tuple | torch.Size) else shape
    if more or not all(isinstance(n, int) for n in given):
        return own(x, *shape, **more)
    x = x.reshape(*[1] * (len(given) - x.dim()), *x.shape)
    return x.repeat(*[1 if n in (-1, m) else n for n, m in zip(given, x.shape, strict=True)])


@way(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def repeat_by_expanding(own, x, repeats, dim=None, **more):
    if dim is None or not isinstance(repeats, int):
        return own(x, repeats, dim, **more)
    dim = dim % x.dim()
    made = x.unsqueeze(dim + 1)
    return made.expand(*x.shape[: dim + 1], repeats, *x.shape[dim + 1 :]).flatten(dim, dim + 1)


@way(torch.split, torch.Tensor.split)
def parts_by_slicing(own, x, sizes, dim=0):
    made, first = [], 0
    for part in own(x, sizes, dim):
        made.append(x.narrow(dim, first, part.shape[dim]))
        first += part.shape[dim]
    return tuple(made)


@way(torch.unbind, torch.Tensor.unbind)
def parts_by_selecting(_, x, dim=0):
    return tuple(x.select(dim, i) for i in range(x.shape[dim]))


@way(torch.unbind, torch.Tensor.unbind)
def parts_by_splitting(_, x, dim=0):
    return tuple(part.squeeze(dim) for part in x.split(1, dim))


def picked(own, x, at, cut):
    """``x[at]`` where ``at`` are plain numbers and slices: ``cut(x, axis, start, stop, step)``."""
    given = list(at) if isinstance(at, tuple) else [at]
    plain = all(
        isinstance(i, slice) or i is Ellipsis or (isinstance(i, int) and not isinstance(i, bool))
        for i in given
    )
    if not plain or not is_float(x) or sum(i is Ellipsis for i in given) > 1:
        return own(x, at)
    if Ellipsis in given:
        k = given.index(Ellipsis)
        given[k : k + 1] = [slice(None)] * (x.dim() - len(given) + 1)
    axis = 0
    for i in given:
        if isinstance(i, int):
            n = i % x.shape[axis]
            x = cut(x, axis, n, n + 1, 1).squeeze(axis)
            continue
        limits = i.indices(x.shape[axis])
        if limits != (0, x.shape[axis], 1):
            x = cut(x, axis, *limits)
        axis += 1
    return x


@way(torch.Tensor.__getitem__)
def slice_by_index(own, x, at):
    return picked(own, x, at, lambda x, axis, *r: x.index_select(axis, torch.arange(*r)))


@way(torch.Tensor.__getitem__)
def slice_by_gathering(own, x, at):
    def cut(x, axis, *limits):
        places = torch.arange(*limits).reshape(-1, *[1] * (x.dim() - 1 - axis))
        shape = (*x.shape[:axis], places.shape[0], *x.shape[axis + 1 :])
        return x.gather(axis, places.expand(shape))

    return picked(own, x, at, cut)


@way(torch.Tensor.__getitem__)
def slice_of_single_places(own, x, at):
    def cut(x, axis, *limits):
        parts = x.unbind(axis)
        found = [parts[i] for i in range(*limits)]
        return torch.stack(found, axis) if found else x.narrow(axis, 0, 0)

    return picked(own, x, at, cut)


@way(torch.masked_fill, torch.Tensor.masked_fill)
def fill_in_place(_, x, mask, value):
    mask = mask.expand(torch.broadcast_shapes(mask.shape, x.shape))
    made = x.expand(mask.shape).clone()
    made.masked_fill_(mask, value)
    return made


@way(torch.where)
def where_turned(own, mask, *values):
    return own(~mask, *reversed(values)) if values else own(mask)


@way(F.pad, torch._C._nn.pad)
def pad_by_joining(own, x, around, mode="constant", value=None):
    if mode != "constant" or min(around) < 0 or not is_float(x):
        return own(x, around, mode, value)
    for k, (before, after) in enumerate(zip(around[::2], around[1::2], strict=True)):
        axis = x.dim() - 1 - k
        sides = [(*x.shape[:axis], n, *x.shape[axis + 1 :]) for n in (before, after)]
        a, b = (torch.full(side, value or 0.0, dtype=x.dtype) for side in sides)
        x = torch.cat([t for t in (a, x, b) if t.numel()], axis)
    return x


@way(torch.roll, torch.Tensor.roll)
def roll_by_joining(own, x, shifts, dims=None):
    if dims is None:
        return own(x, shifts, dims)
    shifts, dims = ((t,) if isinstance(t, int) else t for t in (shifts, dims))
    for shift, dim in zip(shifts, dims, strict=True):
        n = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, n, x.shape[dim] - n), x.narrow(dim, 0, n)], dim)
    return x


@way(F.adaptive_avg_pool2d, torch._C._nn.adaptive_avg_pool2d)
def pool_by_a_mean(own, x, size):
    return x.mean((-2, -1), keepdim=True) if size in (1, (1, 1), [1, 1]) else own(x, size)


@way(F.avg_pool2d, torch._C._nn.avg_pool2d)
def pool_of_columns(own, x, kernel, stride=None, padding=0, ceil_mode=False, *rest):
    sizes = (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)
    even = not any(n % k for n, k in zip(x.shape[-2:], sizes, strict=True))
    if stride not in (None, kernel, sizes) or padding not in (0, (0, 0)) or not even or rest:
        return own(x, kernel, stride, padding, ceil_mode, *rest)
    x = x.unflatten(-1, (-1, sizes[1])).unflatten(-3, (-1, sizes[0]))
    return x.mean((-3, -1))


def by_function():
    """The names of the ways of each function."""
    found = defaultdict(list)
    for name, (functions, _) in WAYS.items():
        found[functions].append(name)
    return found
