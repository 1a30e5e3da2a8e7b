"""What a rule is told: one operation, with its tensors in place. Never a graph, never a batch:
``R.sum()`` is one sample's sum."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor

from relprop.numerics import total
from relprop.operations import Args, Kwargs, Operator, Value
from relprop.rules.notes import Note

N = TypeVar("N", bound=Note)
Role = Literal["activation", "parameter", "constant"]


@dataclass(frozen=True)
class Operand:
    """One tensor that enters an operation.

    ``role`` says what it is to relevance: an *activation* (depends on the explained input), a
    *parameter* (of the model, or computed from parameters only), or a *constant* (masks, indices,
    positions). ``needed`` is False where nobody reads the relevance of an activation; a rule may
    then return ``Total(sum)`` in place of the full tensor. ``name`` is how the ledger books what it
    absorbs; ``argument`` is the operator's own name for it (``weight``, ``bias``).
    """

    value: Tensor
    role: Role
    needed: bool = True
    name: str = ""
    argument: str = ""

    @property
    def flows(self) -> bool:
        """Whether relevance travels on through this operand."""
        return self.role == "activation"


@dataclass(frozen=True)
class Total:
    """In place of an operand's relevance that no other rule reads (an input that is not explained):
    its sum alone, a scalar tensor, for the ledger."""

    value: Tensor


@dataclass(frozen=True)
class ZeroPadded:
    """Stands for a share of a ``shape`` that is 0 but for ``part``, which lies from ``start`` on
    along an ``axis``, or, without that axis, at ``start``: several that lie side by side are joined
    at once."""

    part: Tensor
    axis: int
    start: int
    shape: torch.Size

    @property
    def stretch(self) -> Tensor:
        """The part, with the axis."""
        return self.part if self.part.dim() == len(self.shape) else self.part.unsqueeze(self.axis)

    @property
    def end(self) -> int:
        """Where the part ends."""
        return self.start + self.stretch.shape[self.axis]

    def whole(self) -> Tensor:
        """The share as a tensor."""
        own = self.stretch
        made: Tensor = torch.ops.aten.slice_backward(
            own, self.shape, self.axis, self.start, self.end, 1
        )
        return made


def whole(share: Tensor | ZeroPadded) -> Tensor:
    """A share as a tensor."""
    return share.whole() if isinstance(share, ZeroPadded) else share


def sum_of(share: Tensor | ZeroPadded | Total) -> Tensor:
    """Σ of a share, also of one that is only its sum."""
    if isinstance(share, Total):
        return share.value
    return total(share.part if isinstance(share, ZeroPadded) else share)


def as_tensors(parts: Sequence[Tensor | ZeroPadded]) -> list[Tensor]:
    """The same parts of a sum as tensors, those joined that lie side by side along one axis."""
    found: list[Tensor] = [p for p in parts if isinstance(p, Tensor)]
    placed: dict[tuple[int, torch.device], list[ZeroPadded]] = {}
    for part in parts:
        if isinstance(part, ZeroPadded):
            placed.setdefault((part.axis, part.part.device), []).append(part)
    for same in placed.values():
        same.sort(key=lambda p: p.start)
        apart = all(a.end <= b.start for a, b in pairwise(same))
        found += [_side_by_side(same)] if apart and len(same) > 1 else [p.whole() for p in same]
    return found


def _side_by_side(parts: Sequence[ZeroPadded]) -> Tensor:
    """The sum of parts in their order along one axis, none of which is over another."""
    axis, shape = parts[0].axis, parts[0].shape
    pieces, at = list[Tensor](), 0
    for place, own in [*((p.start, p.stretch) for p in parts), (shape[axis], None)]:
        if place > at:
            gap = [*shape[:axis], place - at, *shape[axis + 1 :]]
            pieces.append(torch.zeros(gap, dtype=parts[0].part.dtype, device=parts[0].part.device))
        if own is not None:
            pieces.append(own)
            at = place + own.shape[axis]
    return torch.cat(pieces, axis)


class Deferred(UserDict[str, Tensor]):
    """Amounts by cause that are worked out when they are looked at: where no books are kept, nobody
    does."""

    def __init__(self, make: Callable[[], Mapping[str, Tensor]]) -> None:
        self._make = make

    @cached_property
    def data(self) -> dict[str, Tensor]:  # type: ignore[override]
        """The amounts."""
        return dict(self._make())


@dataclass(frozen=True)
class Split:
    """What a rule returns: one share of the relevance per operand (``None``: nothing), and what was
    lost, by cause ("denominators near 0"), as scalar tensors (``Deferred``: worked out only if
    there is a ledger, ``ledger=``)."""

    shares: tuple[Tensor | ZeroPadded | Total | None, ...]
    lost: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One operation of the user's model, for one sample.

    ``op`` is an ATen or custom operator, or the module class when a whole module call is one
    operation. ``operands`` are its tensors in order of appearance; ``template`` rebuilds the
    arguments from them. ``extra`` is a tensor that a method attached to this call (the roll-up
    attaches Eq. 13's matrix to an attention site), ``note`` what the plan worked out about it.
    """

    op: Operator
    operands: tuple[Operand, ...]
    output: Tensor
    template: Callable[..., tuple[Args, Kwargs]]
    function: Callable[..., Value]
    path: str = ""
    extra: Tensor | None = None
    note: Note | None = None

    def noted(self, kind: type[N]) -> N:
        """What the plan noted for rules of this kind; the defaults where it noted nothing."""
        return self.note if isinstance(self.note, kind) else kind()

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that enter, activations and parameters alike, in order of appearance."""
        return tuple([operand.value for operand in self.operands])

    @cached_property
    def activations(self) -> tuple[int, ...]:
        """Which operands relevance can travel on to, as positions in ``inputs``."""
        return tuple([i for i, operand in enumerate(self.operands) if operand.flows])

    @cached_property
    def _given(self) -> tuple[Args, Kwargs]:
        return self.template(*self.inputs)

    @property
    def args(self) -> Args:
        """The positional arguments, tensors in place."""
        return self._given[0]

    @property
    def kwargs(self) -> Kwargs:
        """The keyword arguments, tensors in place."""
        return self._given[1]

    def argument(self, position: int, name: str, default: object = None) -> Value:
        """An argument wherever it was given: by position or by name."""
        args, kwargs = self._given
        return args[position] if len(args) > position else kwargs.get(name, default)

    def apply(self, *inputs: Tensor) -> Value:
        """The operation's output on other tensors in place of ``inputs``."""
        args, kwargs = self.template(*inputs)
        return self.function(*args, **kwargs)

    def only(self, share: Tensor | None, index: int | None = None) -> tuple[Tensor | None, ...]:
        """Shares that give everything to operand ``index`` (default: the first activation)."""
        shares: list[Tensor | None] = [None] * len(self.operands)
        where = self.activations[0] if index is None else index
        if share is not None:
            shape = self.operands[where].value.shape
            shares[where] = share if share.shape == shape else share.sum_to_size(shape)
        return tuple(shares)

    def widened(self, dtype: torch.dtype) -> Call:
        """The same call with its floating tensors in ``dtype``: relevance is never computed in half
        precision."""

        def narrow(x: Value) -> bool:
            return isinstance(x, Tensor) and x.is_floating_point() and x.dtype != dtype

        if not narrow(self.output) and not any(map(narrow, self.inputs)):
            return self
        operands = tuple(
            replace(o, value=o.value.to(dtype)) if narrow(o.value) else o for o in self.operands
        )
        output = self.output.to(dtype) if narrow(self.output) else self.output
        return replace(self, operands=operands, output=output)


def as_given(*inputs: Tensor) -> tuple[Args, Kwargs]:
    """The template of a call whose arguments are its tensors."""
    return inputs, {}
