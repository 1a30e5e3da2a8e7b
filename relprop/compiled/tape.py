"""A tape: the operations of PyTorch that a run makes, as a graph that makes them again, each once,
without those that hand on their tensor as it is."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from relprop.operations import Args, Kwargs, Operator, argument
from relprop.operations.looking import is_recorded
from relprop.tracer.editing import aten

#: What hands a value to Python.
READS = frozenset({aten._local_scalar_dense.default, aten.item.default})
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
#: Views that may show all of their tensor as it is, and what nothing is differentiated of.
SHAPED = VIEWS | {aten.detach.default, aten.alias.default, aten.expand.default}
#: Tags of operators that no program for all calls can hold, and what they do.
REFUSED = {
    torch.Tag.nondeterministic_seeded: "draws random numbers",
    torch.Tag.dynamic_output_shape: "makes tensors whose shapes depend on values",
}
#: What makes as many numbers as it is told.
MADE = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step})
#: How arguments are called that are axes and positions.
PLACES = re.compile(r"dim|index|step")
#: Of one factor that may be 1.
PRODUCTS = frozenset({aten.mul.Scalar, aten.mul.Tensor})


class NotFlat(Exception):
    """A run that cannot be made again with other values, and why."""


class Writes(Exception):
    """A run that writes into a tensor, of which others may be views, is recorded as it is."""


class Tape(TorchDispatchMode):
    """Records what runs while it is active, inside of ``recorded``. It holds no tensor of the run
    but those that the run did not make, in ``held``. ``shorter``: without calls that were made
    before on the same tensors, aliases, views in the shape that there was, views of views, copies
    of what lies in order already, products with 1; raises ``Writes`` for a run that they may not be
    taken out of.

    What ``batch`` divides, a number that divides none that is the model's, grows with the number of
    samples: the graph reads that from the first axis of the input ``batched``."""

    def __init__(self, given: Sequence[Tensor], batch: int, batched: int, *, shorter: bool) -> None:
        super().__init__()
        self.graph, self.held, self.shorter = fx.Graph(), dict[str, Tensor](), shorter
        self._made: dict[int, tuple[ref[Tensor], fx.Node]] = {}
        self._called: dict[tuple[Operator, str], fx.Node] = {}
        self._layouts: dict[fx.Node, tuple[Any, ...]] = {}
        for i, tensor in enumerate(given):
            self._note(tensor, self.graph.placeholder(f"given_{i}"))
        size = self.graph.call_function(aten.sym_size.int, (self._node(given[batched]), 0))
        self._batch, self._multiples = batch, {1: size}

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not is_recorded():
            return func(*args, **kwargs)
        if func in READS:
            raise NotFlat("it looks at values on its way")
        if self.shorter and is_mutable(func):
            raise Writes
        grows = growing(func)
        read: Any = tuple(self._read(a, i in grows) for i, a in enumerate(args))
        named = {name: self._read(a, name in grows) for name, a in kwargs.items()}
        made = func(*args, **kwargs)
        if self.shorter and func in VIEWS:
            func, source = aten.view.default, read[0]
            read = (source.args[0], *read[1:]) if source.target in VIEWS else read
        node = read[0] if self._is_idle(func, read, made) else self._call(func, read, named)
        if (does := _refused(func)) and not _is_steady(node, args):
            raise NotFlat(f"{func} {does}")
        self._note(made, node)
        return made

    def finish(self, outputs: Mapping[str, Tensor]) -> None:
        """The graph gives these tensors by name."""
        self.graph.output({name: self._node(t) for name, t in outputs.items()})

    @property
    def sizes(self) -> set[int]:
        """The sizes of all tensors that were made, but 0."""
        return {n for shape, *_ in self._layouts.values() for n in shape if n}

    def _call(self, func: Any, args: Args, kwargs: Kwargs) -> fx.Node:
        """The node of a call; of a second one like it, that of the first."""
        if not self.shorter:
            return self.graph.call_function(func, args, kwargs)
        key = func, repr((args, kwargs))  # 1 is no 1.0
        if key not in self._called:
            self._called[key] = self.graph.call_function(func, args, kwargs)
        return self._called[key]

    def _is_idle(self, func: Operator, read: Args, made: object) -> bool:
        """Whether a call gives the numbers that it is given, in the same shape and layout."""
        idle = func in SHAPED
        if func is aten.clone.default or (func in PRODUCTS and read[1] == 1):
            idle = not _is_given(read[0])
        return self.shorter and idle and _layout(made) == self._layouts[read[0]]

    def _read(self, argument: Any, grows: bool) -> Any:
        """An argument with nodes in place of tensors, and, if it ``grows`` with the number of
        samples, of multiples of that."""

        def read(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self._node(value)
            return self._number(value) if grows else value

        return map_aggregate(argument, read)

    def _number(self, value: Any) -> Any:
        if type(value) is not int or not value or value % self._batch:
            return value
        times, one = value // self._batch, self._multiples[1]
        if times not in self._multiples:
            self._multiples[times] = self.graph.call_function(operator.mul, (one, times))
        return self._multiples[times]

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
            self._made[id(made)] = ref(made), node
            self._layouts.setdefault(node, _layout(made))
        elif isinstance(made, (tuple, list)):
            for i, part in enumerate(made):
                if part is not None:
                    self._note(part, self._call(operator.getitem, (node, i), {}))


@cache
def growing(func: Operator) -> frozenset[int | str]:
    """The arguments of an operator, by position and name, that may grow with the number of samples:
    sizes, where slices end, how many numbers are made; no axes, nor which one is picked."""
    found = set[int | str]()
    for i, a in enumerate(func._schema.arguments):
        kind = str(a.real_type)
        if (func in MADE and kind == "number") or ("int" in kind and not PLACES.match(a.name)):
            found |= {i, a.name}
    return frozenset(found)


def is_mutable(function: object) -> bool:
    """Whether a call changes a tensor that it is given."""
    return bool(getattr(getattr(function, "_schema", None), "is_mutable", False))


@cache
def _refused(func: Operator) -> str:
    """What an operator does that no program for all calls can hold, or ""."""
    return next((does for tag, does in REFUSED.items() if tag in func.tags), "")


def _is_steady(node: fx.Node, args: Args) -> bool:
    """Whether such a call gives the same each time: it picks by integers, of which there are always
    as many (by truths it may pick any number), or what may drop some of its values is told to drop
    none."""
    if node.target is aten.index.Tensor:
        return all(i is None or i.dtype not in (torch.bool, torch.uint8) for i in args[1])
    return argument(node, "dropout_p") == 0


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _is_given(node: fx.Node) -> bool:
    """Whether a tensor is the call's own or the model's, or a view of it."""
    while node.target in SHAPED:
        node = node.args[0]  # type: ignore[assignment]
    return node.op != "call_function"
