"""An oracle for AttnLRP and CP-LRP that shares nothing with ``relprop``: input × gradient of the
user's own eager model, in which the derivative of single functions is another. As ε → 0 the rules
of Achtibat et al. 2024 and Ali et al. 2022 are such derivatives.

Norms divide by a constant (or are x·const as a whole), activations are x·const, products of two
activations pass half the derivative to each. Everything is computed in the model's own type: casts
to float32, which many models make on their way, are left out.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

ACTIVATIONS = {
    F.gelu,
    F.silu,
    F.relu,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    Tensor.tanh,
    Tensor.sigmoid,
    Tensor.relu,
}
PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}
TIMES = {torch.mul, Tensor.mul, Tensor.__mul__}
SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
CASTS = {Tensor.to, Tensor.float, Tensor.type_as}


def constant(x: Tensor, y: Tensor) -> Tensor:
    """y as x·const."""
    return x * (y / torch.where(x == 0, 1.0, x)).detach()


def half(x: Tensor) -> Tensor:
    """x, with half the derivative."""
    return x / 2 + (x / 2).detach()


def live(x: object) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


class LocalGradients(TorchFunctionMode):
    """``norm``: ``"deviation"`` is the constant, or the whole norm is (``"identity"``).
    ``constants``: attention maps and gates are."""

    def __init__(self, norm: str = "deviation", constants: bool = False) -> None:
        super().__init__()
        self.norm, self.constants = norm, constants
        self.activated: list[Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        x = args[0] if args else kwargs.get("input")
        if function is Tensor.float:
            return x.double()
        whole = any(a is torch.int64 for a in (*args, *kwargs.values()))
        if function in CASTS and isinstance(x, Tensor) and x.dtype == torch.float64 and not whole:
            return x
        if function in SOFTMAX and live(x):
            y = F.softmax(x, args[1] if len(args) > 1 else kwargs["dim"])
            return y.detach() if self.constants else y
        if function in ACTIVATIONS and live(x):
            y = constant(x, function(*args, **kwargs))
            self.activated.append(y)
            return y
        if function in (torch.rsqrt, torch.sqrt, Tensor.sqrt):
            return function(*args).detach()
        if function is F.scaled_dot_product_attention:
            return self.attention(*args, **kwargs)
        if function is F.layer_norm:
            return self.layer_norm(*args, **kwargs)
        if function in PRODUCTS and live(args[0]) and live(args[1]):
            return torch.matmul(half(args[0]), half(args[1]))
        if function in TIMES and live(args[0]) and live(args[1]):
            return self.product(*args)
        return function(*args, **kwargs)

    def attention(self, q, k, v):
        a = (half(q) @ half(k).mT / q.shape[-1] ** 0.5).softmax(-1)
        return a.detach() @ v if self.constants else half(a) @ half(v)

    def layer_norm(self, x, shape, weight=None, bias=None, eps=1e-5):
        if self.norm == "identity":
            return constant(x, F.layer_norm(x, shape, weight, bias, eps))
        dims = tuple(range(-len(shape), 0))
        y = (x - x.mean(dims, keepdim=True)) / (
            x.var(dims, unbiased=False, keepdim=True) + eps
        ).sqrt().detach()
        return y * (1 if weight is None else weight) + (0 if bias is None else bias)

    def product(self, u, v):
        passed = [any(x is y for y in self.activated) for x in (u, v)]
        if self.constants and passed[0] != passed[1]:
            return u.detach() * v if passed[0] else u * v.detach()
        return half(u) * half(v)


def contributions(model: nn.Module, x: Tensor, scalar, **rules) -> Tensor:
    """x ⊙ ∂ scalar(model, x)/∂x under these rules, of x's shape. ``scalar`` gives one number per
    sample, (batch,)."""
    model = copy.deepcopy(model).requires_grad_(False)
    x = x.detach().clone().requires_grad_()
    with LocalGradients(**rules):
        y = scalar(model, x)
    return x.detach() * torch.autograd.grad(y.sum(), x)[0]
