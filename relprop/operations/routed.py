"""A linear map by one expert of several for each row: the rows of an expert are multiplied together
with its own matrix, so that no matrix is copied for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.operations.kinds import Kind
from relprop.operations.looking import cannot_look
from relprop.operations.table import Operation


def routed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
    """y_r = x_r W_eᵀ + b_e with e the expert of row r.

    ``x`` (rows, inputs), ``weight`` (experts, outputs, inputs), ``bias`` (experts, outputs),
    ``experts`` (rows,): whole numbers.
    """
    if cannot_look(x):
        return _of_copies(x, weight, bias, experts)
    made: Tensor = _Routed.apply(x, weight, bias, experts)
    return made


routed_linear.operation = Operation(Kind.LINEAR, routed=True)  # type: ignore[attr-defined]
routed_linear.arguments = ("input", "weight", "bias", "experts")  # type: ignore[attr-defined]


def rows_of(experts: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
    """Each of ``count`` experts that some row goes to, and these rows; numbers below 0 count from
    the last expert."""
    experts = torch.where(experts < 0, experts + count, experts)
    counts = experts.bincount().tolist()
    for expert, rows in enumerate(experts.argsort(stable=True).split(counts)):
        if len(rows):
            yield expert, rows


def _of_copies(x: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
    """The same with a copy of its expert's matrix for each row."""
    y = (x.unsqueeze(-2) @ weight[experts].mT).squeeze(-2)
    return y if bias is None else y + bias[experts]


class _Routed(torch.autograd.Function):
    """The map of rows, and its derivative by them; of a batch, the rows of all samples at once."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
        """What each expert makes of its rows."""
        y = x.new_empty(len(x), weight.shape[1])
        for e, rows in rows_of(experts, len(weight)):
            y[rows] = F.linear(x[rows], weight[e], None if bias is None else bias[e])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the matrices, and who reads which."""
        _, weight, _, experts = inputs
        ctx.save_for_backward(weight, experts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient by the rows."""
        weight, experts = ctx.saved_tensors
        back = routed_linear(gradients[0], weight.mT, None, experts)
        return back, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
        """The rows of all samples are rows; matrices of each sample are copied."""
        x, weight, bias, experts = given
        if in_dims[1] is not None or in_dims[2] is not None:
            return torch.vmap(_of_copies, in_dims)(*given), 0
        x, experts = (
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in ((x, in_dims[0]), (experts, in_dims[3]))
        )
        y = routed_linear(x.flatten(0, 1), weight, bias, experts.flatten())
        return y.unflatten(0, x.shape[:2]), 0
