"""The operations of a canonical graph that torch has no name for. Among them is a linear map by one
expert of several for each row: the rows of an expert are multiplied together with its own matrix,
so that no matrix is copied for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.operations.kinds import Kind
from relprop.operations.looking import cannot_look
from relprop.operations.table import Operation


def grouped_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_g = x_g W_gᵀ + b_g: a linear map for each head, expert or position.

    ``x`` (..., groups, rows, inputs), ``weight`` (groups, outputs, inputs), ``bias``
    (groups, 1, outputs).
    """
    y = x @ weight.mT
    return y if bias is None else y + bias


grouped_linear.operation = Operation(Kind.LINEAR)  # type: ignore[attr-defined]
grouped_linear.arguments = ("input", "weight", "bias")  # type: ignore[attr-defined]


def sum_of(*terms: Tensor) -> Tensor:
    """The sum of three or more tensors, whichever two of them were added first."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


sum_of.operation = Operation(Kind.SUM)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Written:
    """A function of every element of one tensor that the user's code writes out, as one operation.

    ``function`` takes the tensor and the parameters it reads.
    """

    function: Callable[..., Tensor]
    operation: ClassVar[Operation] = Operation(Kind.FUNCTION)
    __name__: ClassVar[str] = "written_function"

    def __call__(self, x: Tensor, *parameters: Tensor) -> Tensor:
        return _at_least_float32(self.function, x, *parameters)

    def __str__(self) -> str:
        return "activation written out"


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor that a pass has worked out: which positions the user's code never compares."""

    tensor: Tensor
    operation: ClassVar[Operation] = Operation(Kind.FACTORY)
    __name__: ClassVar[str] = "held"

    def __call__(self) -> Tensor:
        return self.tensor

    def __str__(self) -> str:
        return "constant"


@dataclass(frozen=True, eq=False)
class WrittenNorm:
    """y = w ⊙ (x − κ·mean(x))·r(x) + b over ``axes``, with a scale r(x) that only the user's code
    knows (the variance by another formula, ε in another place, another power).

    ``core`` (x, *parameters) is (x − κ·mean(x))·r(x); κ is 1 if it is ``centred``, else 0.
    """

    core: Callable[..., Tensor]
    axes: tuple[int, ...]
    centred: bool | None
    operation: ClassVar[Operation] = Operation(Kind.NORM)
    arguments: ClassVar[tuple[str, ...]] = ("input", "weight", "bias")
    __name__: ClassVar[str] = "written_norm"

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *others: Tensor
    ) -> Tensor:
        y = _at_least_float32(self.core, x, *others)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    def __str__(self) -> str:
        return "norm written out"

    def centre(self, x: Tensor) -> Tensor:
        """x − κ·mean(x)."""
        return x - x.mean(self.axes, keepdim=True) if self.centred else x

    def scale(self, x: Tensor, *others: Tensor) -> Tensor:
        """r(x), one number where the axes were."""
        centred = self.centre(x)
        size = centred.square().sum(self.axes, keepdim=True)
        along = (_at_least_float32(self.core, x, *others) * centred).sum(self.axes, keepdim=True)
        return torch.where(size > 0, along / torch.where(size > 0, size, 1.0), 0.0)


def _at_least_float32(function: Callable[..., Tensor], x: Tensor, *others: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    if wide == x.dtype:
        return function(x, *others)
    widened = (t.to(wide) if t.is_floating_point() else t for t in others)
    return function(x.to(wide), *widened).to(x.dtype)


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
