"""The operations of a canonical graph that torch has no name for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from relprop.operations.kinds import Kind
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
