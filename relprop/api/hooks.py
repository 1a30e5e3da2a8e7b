"""Hooks on relevance as it flows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, fx

from relprop.errors import RelpropError
from relprop.tracer.program import place

RelevanceHook = Callable[[Tensor], Tensor | None]


def chain(node: fx.Node, functions: list[RelevanceHook]) -> Callable[[Tensor], Tensor]:
    """The hooks at a node, one after another. Raises ``RelpropError`` for what is no relevance."""

    def call(relevance: Tensor) -> Tensor:
        for function in functions:
            shown = tidy(relevance)
            replaced = function(shown)
            if replaced is None:
                continue
            if not isinstance(replaced, Tensor) or replaced.shape != shown.shape:
                found = getattr(replaced, "shape", None)
                got = type(replaced).__name__ if found is None else list(found)
                raise RelpropError(
                    f"a relevance hook at {place(node).call!r} returned {got}; the "
                    f"relevance there is {list(shown.shape)}"
                )
            relevance = replaced.to(relevance.dtype).reshape(relevance.shape)
        return relevance

    return call


def tidy(value: Tensor) -> Tensor:
    """Without the leading 1 of a single sample's call."""
    return value[:, 0] if value.dim() > 1 and value.shape[1] == 1 else value
