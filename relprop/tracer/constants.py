"""The values of what depends on neither an input nor the model's tensors: worked out when they are
asked for, once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from relprop.operations import Kind, Value, kind
from relprop.tracer.calls import Values, template
from relprop.tracer.editing import emit, operands_first, tensor_inputs, val

MOST = 1 << 22  # elements of a constant that is looked at


class Constants:
    """``given``: the tensors that a graph holds by name and that belong to no module. ``device``:
    where new ones are made."""

    def __init__(
        self, given: Mapping[str, Tensor] | None = None, device: torch.device | None = None
    ) -> None:
        self.given, self.device = given or {}, device or torch.device("cpu")
        self._known: Values = {}

    def value(self, node: fx.Node) -> Value:
        """The value of a node, or ``None`` where it depends on an input, a parameter or chance."""
        for n in operands_first(node, self._known.__contains__):
            self._known[n] = self._work_out(n)
        return self._known[node]

    def _work_out(self, node: fx.Node) -> Value:
        if node.op == "get_attr":
            held = self.given.get(str(node.target))
            return None if held is None else held.cpu()
        if node.op != "call_function" or val(node) is None or kind(node) is Kind.RANDOM:
            return None
        inputs = [self._known[i] for i in tensor_inputs(node)]
        if any(i is None for i in inputs):
            return None
        _, rebuild = template(node)
        args, kwargs = rebuild(*inputs)
        kwargs = {k: v for k, v in kwargs.items() if k != "device"}
        try:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, TypeError):
            return None

    def number(self, node: object) -> float | int | None:
        """The number that a constant holds everywhere."""
        if not isinstance(node, fx.Node):
            return node if isinstance(node, (int, float)) else None
        if not isinstance(val(node), Tensor) or val(node).is_complex():
            return None
        if val(node).dtype == torch.bool or not 0 < val(node).numel() <= MOST:
            return None
        found = self.value(node)
        if not isinstance(found, Tensor) or found.layout != torch.strided:
            return None
        first = found.flatten()[0]
        return first.item() if found.numel() == 1 or bool((found == first).all()) else None

    def full(self, at: fx.Node, number: float) -> fx.Node:
        """A tensor like ``at`` that holds one number."""
        made = val(at)
        shape, options = list(made.shape), {"dtype": made.dtype, "device": self.device}
        return emit(at, torch.ops.aten.full.default, shape, number, **options)
