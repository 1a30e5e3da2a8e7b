"""Other calls in place of a graph's own, that make the same values: with another derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, fx

from relprop.operations import Value
from relprop.tracer.calls import Reads, call_node, cast

Scale = Callable[[Tensor, float], Tensor]


class Factors(NamedTuple):
    """By what the gradient of a fused attention kernel is multiplied at each of its operands."""

    queries: float = 1.0
    keys: float = 1.0
    values: float = 1.0
    mask: float = 1.0


@dataclass(frozen=True, eq=False)
class Forms:
    """``made``: how the values of some nodes are made of what they read. ``kernels``: the attention
    sites that PyTorch's fused kernel may run, by their contraction, with what becomes of its
    gradients; ``whole``: those whose map must be whole. ``scaled(value, factor)`` is a value whose
    gradient is multiplied. ``of_gradient``: they are for gradients that a method reads, and not for
    relevance; ``at_maps``: then by what the gradient of a site's result is multiplied on its way to
    the map, by its contraction."""

    made: Mapping[fx.Node, Callable[[Reads], Value]] = field(default_factory=dict)
    kernels: Mapping[fx.Node, Factors] = field(default_factory=dict)
    whole: frozenset[fx.Node] = frozenset()
    scaled: Scale = lambda value, factor: value
    of_gradient: bool = False
    at_maps: Mapping[fx.Node, float] = field(default_factory=dict)

    def call(
        self,
        node: fx.Node,
        values: Reads,
        dtype: torch.dtype | None,
        replaced: tuple[int, object] | None = None,
    ) -> Value:
        """One sample's value of a node, as ``call_node`` makes it, or as it is made here."""
        if node not in self.made:
            return call_node(node, values, dtype, replaced)
        made = self.made[node](values)
        return cast(made, dtype) if isinstance(made, Tensor) else made


#: The graph's own calls.
PLAIN = Forms()
