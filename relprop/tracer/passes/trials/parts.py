"""Parts of a graph as functions that are run on other numbers, at their own shapes, in double
precision: what they are is asked of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Value, function_of, kind
from relprop.tracer.calls import Values
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, emit, is_float, shape_of, swap, val
from relprop.tracer.passes.trials.comparison import equal_functions, same

MOST_NODES = 400  # in one trial


MOST_NUMBERS = 1 << 23  # in all tensors of one trial


MORE_DRAWS = 12  # a choice between two that is the same in all draws is one in 2^16


@dataclass(frozen=True)
class Piece:
    """The part of a graph from ``sources`` to ``output``, to be run on other numbers."""

    sources: tuple[fx.Node, ...]
    output: fx.Node
    nodes: tuple[fx.Node, ...]
    constants: Constants

    def __call__(self, *tensors: Tensor) -> Tensor:
        """The output for other tensors, in double precision. Raises ``TypeError`` where it reads
        numbers that nobody knows: a parameter's."""
        known: Values = dict(zip(self.sources, tensors, strict=True))
        last = {read: node for node in self.nodes for read in node.all_input_nodes}

        def value(node: fx.Node) -> Value:
            if node in known:
                return known[node]
            if (held := self.constants.value(node)) is None:
                raise TypeError(f"{node.name} has no numbers yet")
            return in_double(held)

        for node in self.nodes:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
            kwargs = {k: _in_double(v) for k, v in kwargs.items() if k != "device"}
            known[node] = function_of(node)(*map(_in_double, args), **kwargs)
            for read in node.all_input_nodes:  # a mask of all tokens and places may be large
                if last[read] is node and read is not self.output:
                    known.pop(read, None)
        made: Tensor = known[self.output]
        return made

    @property
    def form(self) -> Hashable:
        """What two parts share that compute the same: calls, numbers, shapes, and what they read
        from outside."""
        number = {n: f"%{i}" for i, n in enumerate((*self.sources, *self.nodes))}
        given = [
            fx.node.map_arg((n.args, n.kwargs), lambda m: number.get(m, m.name)) for n in self.nodes
        ]
        ends = (*self.sources, self.output)
        kinds = [(kind(n), val(n).dtype, shape_of(n)) for n in ends]
        return tuple(n.target for n in self.nodes), repr((given, kinds))

    @property
    def source(self) -> fx.Node:
        """The first source."""
        return self.sources[0]

    def draw(self, seed: int, scale: float = 1.0) -> tuple[Tensor, ...]:
        """Numbers for every source."""
        generator = torch.Generator().manual_seed(seed)
        shapes = [shape_of(s) for s in self.sources]
        return tuple(scale * _randn(shape, generator) for shape in shapes)

    def agrees(
        self,
        other: Callable[..., Tensor],
        scales: Sequence[float] = (1.0, 5.0, 1e-2),
        tolerance: float = 1e-10,
        far: float = 100.0,
    ) -> bool:
        """Whether another function has the same values and the same derivatives, at numbers of
        several ``scales``; and, if there it gives numbers at all, the same values ``far`` from 0
        (there a clamp shows) and at many more draws (there the choice of the largest shows)."""
        given = [self.draw(seed, scale) for seed, scale in enumerate(scales)]
        if not equal_functions(self, other, given, tolerance):
            return False
        for seed, scale in enumerate((far, *[1.0] * MORE_DRAWS), len(scales)):
            numbers = self.draw(seed, scale)
            found = self(*numbers)
            if bool(found.isfinite().all()) and not same(found, other(*numbers), tolerance):
                return False
        return True

    @property
    def is_small(self) -> bool:
        """Whether a trial costs little."""
        return (
            len(self.nodes) <= MOST_NODES
            and sum(val(n).numel() for n in self.nodes if isinstance(val(n), Tensor))
            <= MOST_NUMBERS
        )


def _randn(shape: list[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def in_double(x: Value) -> Value:
    """Floating tensors, and types, in double precision."""
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _in_double(part: Value) -> Value:
    """An argument of a node, its lists plain ones."""
    if isinstance(part, (list, tuple)):
        inside = map(_in_double, part)
        return tuple(inside) if type(part) is tuple else [*inside]
    return in_double(part)


#: What puts a known operation in a part's place, and what finds it, if there is one.
Maker = Callable[[Piece], fx.Node]
Recogniser = Callable[[Piece], Maker | None]


def raise_parts(
    nodes: Sequence[fx.Node], tried: Callable[[fx.Node], Iterator[tuple[Piece, Recogniser]]]
) -> None:
    """For every output, from the last: what the first recogniser that succeeds puts there. What it
    found of one block, or that it found nothing, holds for the next ones of the same form."""
    done, found = set[fx.Node](), dict[Hashable, Maker | None]()
    for output in reversed(nodes):
        if output in done or not is_float(output) or not output.users:
            continue
        for part, recognise in tried(output):
            if (new := _made(part, recognise, found)) is None:
                continue
            if val(new).dtype != val(output).dtype:
                new = emit(output, aten._to_copy.default, new, dtype=val(output).dtype)
            done |= {n for n in part.nodes if n is not output}
            swap(output, new)
            break


def _made(
    part: Piece, recognise: Recogniser, found: dict[Hashable, Maker | None]
) -> fx.Node | None:
    """What stands in a part's place, by what is ``found`` of its form already, or is now."""
    key = (recognise, part.form)
    try:
        if key not in found:
            found[key] = recognise(part)
        maker = found[key]
        return None if maker is None else maker(part)
    except (RuntimeError, TypeError, ValueError, IndexError):
        found[key] = None
        return None


def slope_of(x: Tensor, logs: Tensor, hidden: Tensor, axis: int) -> float | None:
    """c where ``logs`` is c·x and one number for each row, over what is not hidden."""
    seen = (~hidden).double()
    count = seen.sum(axis, keepdim=True).clamp(min=1)

    def centred(t: Tensor) -> Tensor:
        t = torch.where(hidden, 0.0, t)
        return torch.where(hidden, 0.0, t - t.sum(axis, keepdim=True) / count)

    dx, dy = centred(x), centred(logs)
    size = float((dx * dx).sum())
    return rounded(float((dx * dy).sum()) / size) if size > 0 and dy.isfinite().all() else None


def rounded(c: float, *likely: float) -> float:
    """``c``, or the number that it only misses by rounding."""
    for number in (1.0, *likely, round(c, 9)):
        if abs(c - number) <= 1e-12 * abs(number):
            return number
    return c
