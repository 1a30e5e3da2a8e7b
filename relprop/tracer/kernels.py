"""Operators that the run computes by their formula, since a kernel of PyTorch's is wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from relprop.operations import Args, Kwargs, Operator

aten = torch.ops.aten


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> Tensor:
    """Batch norm in eval mode, (x − mean)·weight/√(variance + ε) + bias over axis 1.

    At batch 1 a permuted tensor may have the strides of a layout it does not have. Where those of
    input and gradient differ, PyTorch's backward kernel on the CPU (torch 2.15) takes one for the
    other: gradients wrong by 100 %, as in timm's iformer and tiny_vit.
    """
    if training or mean is None or variance is None:
        y: Tensor = aten.batch_norm.default(
            x, weight, bias, mean, variance, training, momentum, eps, cudnn
        )
        return y
    shape = [-1 if i == 1 else 1 for i in range(x.dim())]
    scale = torch.rsqrt(variance + eps) if weight is None else weight * torch.rsqrt(variance + eps)
    scaled = (x - mean.reshape(shape)) * scale.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


def _called(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.batch_norm``, whose inner call a mode does not see."""
    return batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps, False
    )


KERNELS: dict[Operator, Callable[..., Tensor]] = {aten.batch_norm.default: batch_norm}
#: The same in the user's own calls.
CALLS: dict[Operator, Callable[..., Tensor]] = {torch.batch_norm: batch_norm, F.batch_norm: _called}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Operator,
) -> Tensor:
    """``scaled_dot_product_attention`` by its formula, which makes the map.

    Of a query that sees no key (padding before a text, all of its scores at -1e9 or less) the fused
    kernel's backward on the CPU (torch 2.15) gives each key the share 1 instead of 1/n.
    """
    made: Tensor = aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, **options
    )[0]
    return made


class Formulas(TorchFunctionMode):
    """While this is active, a model computes by the formulas, too, attention included."""

    def __torch_function__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        whole = F.scaled_dot_product_attention
        formula: Operator = attention if func is whole else CALLS.get(func, func)
        return formula(*args, **(kwargs or {}))
