"""Whether anybody may look at values: not while a run is recorded to be repeated with others, and,
within a ``vmap``, one sample after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

_RECORDED = ContextVar("recorded", default=False)


@contextmanager
def recorded(yes: bool = True) -> Iterator[None]:
    """While this is active, a run is recorded; ``recorded(False)``: what is done meanwhile is no
    part of it."""
    before = _RECORDED.set(yes)
    try:
        yield
    finally:
        _RECORDED.reset(before)


def is_recorded() -> bool:
    """Whether a run is recorded, to be repeated with other values."""
    return _RECORDED.get()


def cannot_look(x: Tensor) -> bool:
    """Whether nobody may look at values, or there are none."""
    return is_recorded() or x.is_meta or is_fake(x)


class SampleBySample(torch.autograd.Function):
    """A function of tensors that looks at their values, and gives a tuple of tensors: within a
    ``vmap`` it is called for each sample. Nothing is differentiated."""

    @staticmethod
    def forward(function: Callable[..., tuple[Tensor, ...]], *given: Tensor) -> tuple[Tensor, ...]:
        """What the function gives."""
        return function(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], function: Any, *given: Any) -> Any:
        """One sample after another."""

        def of_sample(i: int) -> Any:
            both = zip(given, in_dims[1:], strict=True)
            return SampleBySample.apply(
                function, *(t if d is None else t.select(d, i) for t, d in both)
            )

        each = [of_sample(i) for i in range(info.batch_size)]
        return tuple(map(torch.stack, zip(*each, strict=True))), (0,) * len(each[0])
