"""The model's tensors as a run reads them, and which of them take memory only because they are
read: what is kept elsewhere, what is made wider, and what is made of either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from relprop.errors import InputError
from relprop.tracer.calls import cast
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import is_batched
from relprop.tracer.follow import reached
from relprop.tracer.offloaded import tensor_of
from relprop.tracer.program import Program
from relprop.tracer.surroundings import normal

#: Weights of fewer elements are read once and kept while a graph runs.
LARGE = 2**16
#: How many bytes of weights are read for the operations of one section.
AT_ONCE = 2**24

Sizes = Mapping[fx.Node, int]


def weight(program: Program, model: nn.Module | None, node: fx.Node) -> Tensor:
    """The value of a node that names a parameter, a buffer or a constant, read now."""
    target = str(node.target)
    if target in program.constants:
        return cast(normal(program.constants[target]), program.dtype)
    assert model is not None
    name = target.removeprefix("model.")
    found = tensor_of(model, name)
    if found.device.type == "meta":
        raise InputError(f"parameter {name!r} has no values: it is on the meta device")
    return cast(normal(found), program.dtype)


def fetched(program: Program, model: nn.Module | None) -> Sizes:
    """The nodes whose values are large and there only while what reads them runs, and how many
    bytes each takes: weights that are not in memory as the graph reads them, and what is made of
    such and of no input."""
    large = program.memo.cache("large weights", lambda: _large(program))
    read = {n for n in large if model is not None and _is_made(program, model, n)}
    found: dict[fx.Node, int] = {}
    for node in program.graph.nodes if read else ():
        below = bool(found) and not is_batched(node)
        made = node in read or (below and any(i in found for i in tensor_inputs(node)))
        parts = [t for t in tree_leaves(val(node)) if isinstance(t, Tensor)] if made else []
        if sum(t.numel() for t in parts) >= LARGE:
            found[node] = sum(_bytes(t, program.dtype) for t in parts)
    return found


def _large(program: Program) -> list[fx.Node]:
    """The large tensors that the graph reads from the model."""
    own = (n for n in program.graph.nodes if n.op == "get_attr")
    named = ((n, val(n)) for n in own if str(n.target) not in program.constants)
    return [n for n, value in named if value is not None and value.numel() >= LARGE]


def _bytes(value: Tensor, dtype: torch.dtype | None) -> int:
    own = dtype if dtype is not None and value.is_floating_point() else value.dtype
    return int(value.numel() * own.itemsize)


def _is_made(program: Program, model: nn.Module, node: fx.Node) -> bool:
    """Whether a tensor of the model's takes memory when it is read, or stands for numbers that
    do."""
    target, value = str(node.target), val(node)
    if value.is_floating_point() and program.dtype not in (None, value.dtype):
        return True
    if value.dtype.itemsize == 1 and value.dtype != torch.bool:
        return True
    held = attrgetter(target.removeprefix("model."))(model)
    return held.device.type == "meta" or hasattr(held, "__tensor_flatten__")


def made_of(nodes: Iterable[fx.Node], sizes: Sizes) -> list[fx.Node]:
    """Those of ``sizes`` that must be there for those of it among ``nodes``, in the order in which
    they are made."""

    def above(node: fx.Node) -> list[fx.Node]:
        return [i for i in node.all_input_nodes if i in sizes]

    wanted = set(reached([n for n in nodes if n in sizes], above))
    return [n for n in sizes if n in wanted] if wanted else []
