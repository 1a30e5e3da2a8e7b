"""The default method for plain ViTs and BERTs, written from the paper alone (Eq. 3–14): relevance
is walked over the operations that PyTorch's dispatcher saw. Nothing of relprop is imported."""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.third_party.oracle import Unfused

aten = torch.ops.aten
SOFTMAX = (aten._softmax.default, aten._safe_softmax.default)
#: Functions of one variable, norms, factors that do not depend on the input: R as it is.
CARRY = {"native_layer_norm", "gelu", "relu", "tanh", "mul", "div", "_softmax", "_safe_softmax"}


class Tape(TorchDispatchMode):
    """Every operation, with copies of what went in and came out: some write in place."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, args)
        returned = function(*args, **(kwargs or {}))
        out = returned[0] if function is aten.native_layer_norm.default else returned
        value = out.clone() if isinstance(out, Tensor) else None
        self.lines.append((function, before, kwargs or {}, value, _tensors(args), _tensors(out)))
        return returned


def at_softmaxes(model, inputs, target):
    """The relevance of y_target of one sample at every softmax, in order, (heads, q, k)."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Unfused(), Tape() as tape:
        y = model(*inputs)
    y = getattr(y, "logits", y)
    active = {id(t) for t in inputs}  # what depends on the input
    for *_, operands, out in tape.lines:
        active |= {id(t) for t in out if any(id(o) in active for o in operands)}
    relevance = {id(y): torch.zeros_like(y).index_fill_(1, torch.tensor([target]), 1)}
    first = next(i for i, line in enumerate(tape.lines) if line[0] in SOFTMAX)
    found = []
    for function, args, kwargs, value, operands, out in reversed(tape.lines[first:]):
        arrived = [relevance.pop(id(t), None) for t in out]
        if all(r is None for r in arrived):
            continue
        if function in SOFTMAX:
            found.insert(0, arrived[0][0])
        both = all(id(o) in active for o in operands)
        shares = _shares(function, args, kwargs, value, arrived, both)
        for operand, share in zip(operands, shares, strict=False):
            if share is not None and id(operand) in active:
                relevance[id(operand)] = relevance.get(id(operand), 0) + share
    return found


def _tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _shares(function, args, kwargs, value, arrived, both):
    """What each tensor among ``args`` receives, by the rule of the operation."""
    name, tensors, r = function.__name__.split(".")[0].rstrip("_"), _tensors(args), arrived[0]
    if name == "addmm":
        return [None, _linear(r, *tensors[1:])]
    if name in ("mm", "bmm") and not both:
        return [_linear(r, *tensors)]
    if name in ("mm", "bmm"):  # Eq. 6, and Lemma 2, which makes it one half each
        (u, v), s = tensors, _divided(r, value)
        return [u * (s @ v.mT) / 2, v * (u.mT @ s) / 2]
    if name == "add" and len(tensors) == 2:  # Eq. 6 and Lemma 2
        shares = [t * _divided(r, value) for t in tensors]
        whole = sum(share.sum().abs() for share in shares)
        parts = [_divided(share.sum().abs(), whole) * r.sum() for share in shares]
        return [_divided(p, share.sum()) * share for p, share in zip(parts, shares, strict=True)]
    if name == "mean":  # Eq. 5: a linear layer whose weights are all positive
        plus = tensors[0].clamp(min=0)
        args = (plus, *args[1:])
        [back] = _back(function, args, kwargs, [_divided(r, function(*args, **kwargs))])
        return [plus * back]
    return [r.reshape(args[0].shape)] if name in CARRY else _back(function, args, kwargs, arrived)


def _divided(a, b):
    return a / (b + (b == 0) * 1e-9)


def _linear(r, x, w):
    """Eq. 5: only the terms x_j w_ji that are not negative."""
    pairs = [(x.clamp(min=0), w.clamp(min=0)), (x.clamp(max=0), w.clamp(max=0))]
    s = _divided(r, sum(a @ b for a, b in pairs))
    return sum(a * (s @ b.mT) for a, b in pairs)


def _back(function, args, kwargs, arrived):
    """Moves, and the transpose of a linear function: what the outputs hand back to the inputs."""
    args = tree_map(lambda t: t.detach().requires_grad_() if isinstance(t, Tensor) else t, args)
    with torch.enable_grad():
        made = zip(_tensors(function(*args, **kwargs)), arrived, strict=True)
    made, given = zip(*[(out, r) for out, r in made if r is not None], strict=True)
    return torch.autograd.grad(made, _tensors(args), given, allow_unused=True)
