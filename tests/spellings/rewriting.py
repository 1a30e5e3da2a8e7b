"""A library's model, unchanged, whose calls are other calls of the same function while it runs:
``with Rewritten(names): model(x)``."""

import math
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
PRODUCT = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def way(*functions):
    def named(f):
        WAYS[f.__name__] = functions, f
        return f

    return named


class Rewritten(TorchFunctionMode):
    """While it is on, functions are called in the ways named; ``used``: those that were."""

    def __init__(self, names):
        super().__init__()
        self.used, self.by_function = set(), {f: n for n in names for f in WAYS[n][0]}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = self.by_function.get(function)
        if name is None:
            return function(*args, **(kwargs or {}))
        self.used.add(name)
        return WAYS[name][1](function, *args, **(kwargs or {}))


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
def convolution_of_columns(own, x, w, b=None, *rest, **more):
    stride, padding, dilation, groups = (*rest, *(1, 0, 1, 1)[len(rest) :])
    if more or groups != 1 or isinstance(padding, str):
        return own(x, w, b, *rest, **more)
    y = w.flatten(1) @ F.unfold(x, w.shape[2:], dilation, padding, stride)
    y = y if b is None else y + b[:, None]
    return y.unflatten(-1, own(x[:1], w, b, *rest).shape[2:])


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


@way(torch.mean, torch.Tensor.mean)
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


def by_function():
    """The names of the ways of each function."""
    found = defaultdict(list)
    for name, (functions, _) in WAYS.items():
        found[functions].append(name)
    return found
