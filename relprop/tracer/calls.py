"""One call of a graph: the tensors it reads put in their places, and its value for one sample or,
under ``vmap``, for every sample of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from relprop.errors import InputError, first_line, message, out_of_memory
from relprop.operations import Args, Kwargs, Value
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.facts import describe, place
from relprop.tracer.kernels import KERNELS

Values = dict[fx.Node, Value]
V = TypeVar("V")
#: Most of what stands beside a call's tensors.
NUMBERS = frozenset({int, float, bool, type(None)})


class HoldsTensors:
    """What says itself how it is made anew of other tensors."""

    __slots__ = ()

    def with_tensors(self, made: Callable[[Tensor], Tensor]) -> Self:
        """The same with what is ``made`` of every tensor."""
        raise NotImplementedError


class Reads(Protocol):
    """Values by node."""

    def __getitem__(self, node: fx.Node, /) -> Value: ...


def per_sample(function: Callable[..., Value], *batches: Value) -> Value:
    """``function`` on every sample: one ``vmap`` for several, a plain call for one (which may then
    do what ``vmap`` cannot: outputs whose shape depends on values)."""
    several = False

    def alone(t: Tensor) -> Tensor:
        nonlocal several
        several = several or len(t) != 1
        return t if several else t.squeeze(0)

    given = [each_tensor(b, alone) for b in batches]
    if several:
        return torch.func.vmap(function, randomness="same")(*batches)
    return each_tensor(function(*given), lambda t: t.unsqueeze(0))


def each_tensor(value: Value, made: Callable[[Tensor], Tensor]) -> Value:
    """The same with what is ``made`` of every tensor in it. Calls of one sample are many and small:
    ordinary containers, and what says itself how it is made anew, do not go through PyTorch's
    trees."""
    if isinstance(value, Tensor):
        return made(value)
    if type(value) is dict:
        return {k: each_tensor(v, made) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)([each_tensor(v, made) for v in value])
    if isinstance(value, HoldsTensors):
        return value.with_tensors(made)
    return tree_map_only(Tensor, made, value)


def template(
    node: fx.Node, dtype: torch.dtype | None = None
) -> tuple[tuple[fx.Node, ...], Callable[..., tuple[Args, Kwargs]]]:
    """The nodes that enter a call, in order of appearance, and a function that puts tensors in
    their places.

    ``dtype``: every floating dtype the model wrote down becomes this one.
    """
    operands = tensor_inputs(node)

    def rebuild(*tensors: Value) -> tuple[Args, Kwargs]:
        it = iter(tensors)
        args, kwargs = _filled((node.args, node.kwargs), lambda _: next(it), dtype)
        return args, kwargs

    return operands, rebuild


def _filled(x: Value, value: Callable[[fx.Node], Value], dtype: torch.dtype | None) -> Value:
    """Arguments with each node's ``value`` in its place, and fx's immutable containers as ordinary
    ones, which operators insist on."""
    if type(x) in NUMBERS:
        return x
    if isinstance(x, fx.Node):
        return value(x)
    if isinstance(x, dict):
        return {k: _filled(v, value, dtype) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        parts = [v if type(v) in NUMBERS else _filled(v, value, dtype) for v in x]
        return parts if isinstance(x, list) else tuple(parts)
    if isinstance(x, slice):
        return slice(*(_filled(v, value, dtype) for v in (x.start, x.stop, x.step)))
    return dtype if dtype is not None and isinstance(x, torch.dtype) and x.is_floating_point else x


def call_node(
    node: fx.Node,
    values: Reads,
    dtype: torch.dtype | None,
    replaced: tuple[int, object] | None = None,
) -> Value:
    """One sample's value of a node, from ``values`` of what it reads. ``dtype`` as in
    ``template``; ``replaced``: an argument by position, and what stands there instead."""
    read = together(node, {n: values[n] for n in node.all_input_nodes})
    args, kwargs = _filled((node.args, node.kwargs), read.__getitem__, dtype)
    if replaced is not None:
        args = (*args[: replaced[0]], replaced[1], *args[replaced[0] + 1 :])
    try:
        made = KERNELS.get(node.target, node.target)(*args, **kwargs)  # type: ignore[operator]
        # what is created here, or made of whole numbers, has the default type
        return cast(made, dtype) if isinstance(made, Tensor) else made
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        if out_of_memory(error):
            raise
        raise InputError(
            message(f"{node.target} failed: {first_line(error)}", at=describe(node))
        ) from error


def together(node: fx.Node, values: V) -> V:
    """The tensors among the values that a call reads, on one device: where they lie on several, on
    the one on which the model made this call."""
    devices: dict[torch.device, None] = {}
    _note_devices((values,), devices)
    if len(devices) < 2:
        return values
    where = place(node).device or next(iter(devices))
    moved: V = each_tensor(values, lambda t: t.to(where))
    return moved


def _note_devices(values: Iterable[Value], found: dict[torch.device, None]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            found[value.device] = None
        elif isinstance(value, dict):
            _note_devices(value.values(), found)
        elif isinstance(value, (list, tuple)):
            _note_devices(value, found)


def cast(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A value of floating type as ``dtype``, if there is one."""
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value
