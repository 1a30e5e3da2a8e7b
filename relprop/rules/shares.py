"""What each operand of an operation carries of the roll-up's field: in which parts, with which
weights, and one number per token where it meets other readers of one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relprop.rules.call import Call
from relprop.rules.coarse import as_fine, finer_along
from relprop.rules.fields import Field, Fields, number, spread
from relprop.rules.notes import Folded
from relprop.rules.rule import Rule


class Places:
    """A weight that is not the same at all places: a ``share`` for each, features of length 1."""

    def __init__(self, share: Tensor) -> None:
        self.share = share
        self._key = (tuple(share.shape), share.cpu().numpy().tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


Weight = float | Places


@dataclass(frozen=True)
class Carry:
    """What an operand carries of a field in ``parts``: each of its own parts the weight at its
    place in ``weights`` of the result's part at that place in ``of``. ``groups``: among which
    operands of a ``cat`` along features that is a mean, for each of its own parts."""

    parts: int = 1
    of: tuple[int, ...] = (0,)
    weights: tuple[Weight, ...] = (1.0,)
    groups: tuple[tuple[int, ...], ...] = ((),)

    @property
    def is_plain(self) -> bool:
        """Whether it is the field as it is."""
        return self.of == tuple(range(self.parts)) and all(w == 1 for w in self.weights)


@dataclass(frozen=True)
class Level:
    """Which axes of a tensor hold no tokens (``plain``), and which tokens beside others."""

    plain: tuple[int, ...] = ()
    mixed: tuple[Folded, ...] = ()


@dataclass(frozen=True)
class Share:
    """What an operand carries, and how it meets other readers of one tensor (``None``: it is read
    once). ``placed``: of an operand that stands at some features of a token, and another at others,
    how many features it has of one of the result."""

    carry: Carry = Carry()
    level: Level | None = None
    placed: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is the field as it is."""
        return self.carry.is_plain and self.level is None

    @property
    def row_wise(self) -> bool:
        """Whether a part of the field can be carried by itself."""
        places = any(isinstance(w, Places) for w in self.carry.weights)
        return not places and not (self.level and self.level.mixed)

    def __call__(self, field: Field) -> Field:
        """The field of the operand."""
        if self.placed is not None and self.level is not None:
            axes = tuple(i + 1 for i in self.level.plain)
            there = field[-1:].sign()
            there = there.amax(axes, keepdim=True).expand(there.shape) if axes else there
            field = torch.cat([field[:-1] * self.placed, there])
        field = field if self.level is None else levelled(field, self.level)
        return field if self.carry.is_plain else carried(field, self.carry)


def levelled(field: Field, level: Level) -> Field:
    """One number per token: the mean over the features, heads and lanes that carry one."""
    field = spread(*number(field, level.plain))
    for folded in level.mixed:
        axis, over = folded.axis, [i for i, tokens in enumerate(folded.tokens) if not tokens]
        wide = finer_along(field, axis, math.prod(folded.sizes)).unflatten(axis + 1, folded.sizes)
        numbers, present = number(wide, tuple(axis + i for i in over))
        whole = spread(numbers, present).expand(wide.shape)
        field = whole.flatten(axis + 1, axis + len(folded.sizes))
    return field


def carried(field: Field, carry: Carry) -> Field:
    """The field of an operand in its own parts: of each the weight of one of the result's."""
    numbers, present = field[:-1], field[-1:]
    if carry.of != tuple(range(carry.parts)):
        parts = numbers.unflatten(0, (-1, carry.parts))
        numbers = torch.stack([parts[:, k] for k in carry.of], 1).flatten(0, 1)
    if any(w != 1 for w in carry.weights):
        parts = numbers.unflatten(0, (-1, len(carry.of)))
        made = as_fine([_times(parts[:, k], w) for k, w in enumerate(carry.weights)])
        numbers = torch.stack(made, 1).flatten(0, 1)
        numbers, present = as_fine([numbers, present])
    return torch.cat([numbers, present])


def _times(numbers: Tensor, weight: Weight) -> Tensor:
    if not isinstance(weight, Places):
        return numbers * weight
    numbers, share = as_fine([numbers, weight.share.to(numbers).unsqueeze(0)])
    return numbers * share


def sharing(
    rule: Rule,
    shares: tuple[Share | None, ...],
    level: Level | None = None,
    beside: bool = False,
) -> Rule:
    """A rule of the roll-up whose operands then carry their ``shares`` of the field (``None``:
    nothing). ``level``: of the result, where it is read by features. ``beside``: the operands lie
    side by side along features, and a mean is over those alone of which the target reads some."""

    def function(field: Field, call: Call) -> Fields:
        field = field if level is None else levelled(field, level)
        found: Fields = rule.function(field, call)
        both = zip(found, shares, strict=True)
        made = [None if f is None or s is None else s(f) for f, s in both]
        if beside:
            there = [None if f is None else f[-1].amax().sign() for f in made]
            made = [
                f if f is None or s is None else torch.cat([_of_read(f[:-1], s, there), f[-1:]])
                for f, s in zip(made, shares, strict=True)
            ]
        return tuple(made)

    row_wise = not beside and all(s is None or s.row_wise for s in shares)
    return replace(rule, function=function, row_wise=rule.row_wise and row_wise)


def _of_read(numbers: Tensor, share: Share, there: Sequence[Tensor | None]) -> Tensor:
    """The numbers of an operand, of each part over the share of its ``groups`` that is read."""
    factors = []
    for group in share.carry.groups:
        read = [t for i in group if (t := there[i]) is not None]
        one = numbers.new_ones(())
        factors.append(len(read) / torch.stack(read).sum().clamp(min=1) if read else one)
    parts = numbers.unflatten(0, (-1, len(factors)))
    factor = torch.stack(factors).reshape(-1, *[1] * (numbers.dim() - 1))
    made: Tensor = parts * factor
    return made.flatten(0, 1)
