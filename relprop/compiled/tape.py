"""A tape: every operation of PyTorch that a run makes, as a graph that makes them again."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from relprop.operations import Args, Kwargs, Operator
from relprop.operations.looking import is_recorded
from relprop.tracer.recorded import record_value

#: What hands a value to Python.
READS = frozenset({torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default})


class LooksAtValues(Exception):
    """A run that hands values to Python cannot be made again with others."""


class Tape(TorchDispatchMode):
    """Records what runs while it is active, inside of ``recorded``. It holds no tensor of the run
    but those that the run did not make."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.held = fx.Graph(), dict[str, Tensor]()
        self._made: dict[int, tuple[ref[Tensor], fx.Node]] = {}
        for i, tensor in enumerate(given):
            self._note(tensor, self.graph.placeholder(f"given_{i}"))

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_recorded():
            return func(*args, **kwargs)
        if func in READS:
            raise LooksAtValues(str(func))
        read = tree_map_only(Tensor, self._node, (args, kwargs))
        made = func(*args, **kwargs)
        self._note(made, self.graph.call_function(func, *read))
        return made

    def module(self, outputs: Mapping[str, Tensor]) -> fx.GraphModule:
        """The graph, which gives these tensors by name."""
        self.graph.output({name: self._node(t) for name, t in outputs.items()})
        return fx.GraphModule(self.held, self.graph)

    def _node(self, tensor: Tensor) -> fx.Node:
        """What made a tensor: an operation, or nothing that is on the tape."""
        known = self._made.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        name = f"held_{len(self.held)}"
        self.held[name] = tensor
        node = self.graph.get_attr(name)
        self._note(tensor, node)
        return node

    def _note(self, made: object, node: fx.Node) -> None:
        """What an operation gave."""
        if isinstance(made, Tensor):
            record_value(node, made)
            self._made[id(made)] = ref(made), node
        elif isinstance(made, (tuple, list)):
            for i, part in enumerate(made):
                if part is not None:
                    self._note(part, self.graph.call_function(operator.getitem, (node, i)))
