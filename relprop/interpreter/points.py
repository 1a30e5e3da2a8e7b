"""Numbers at few elements of a tensor: where relevance starts, without the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relprop.tracer.readout import Index


@dataclass(frozen=True)
class Points:
    """Numbers at some elements of a tensor of ``shape`` (batch first) that is 0 elsewhere.

    ``index``: where they are, along every axis; ``numbers``: (points,), or (channels, points) for
    several of each.
    """

    index: tuple[Tensor, ...]
    numbers: Tensor
    shape: tuple[int, ...]

    def whole(self) -> Tensor:
        """The tensor itself; channels come after the batch."""
        return self._placed(self.index, self.shape)

    def _placed(self, index: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        channels = self.numbers.shape[:-1]
        made = self.numbers.new_zeros(shape[0], *channels, *shape[1:])
        if not channels:
            return made.index_put(tuple(index), self.numbers)
        made.movedim(1, -1)[tuple(index)] = self.numbers.mT
        return made

    def at(self, value: Made) -> Tensor:
        """What another tensor of this shape has at these places."""
        return value[self.index].to(self.numbers.dtype)

    def summed(self, numbers: Tensor) -> Tensor:
        """Other numbers at the same places, summed over each sample, (batch,)."""
        zeros = torch.zeros(self.shape[0], dtype=numbers.dtype, device=numbers.device)
        return zeros.index_add(0, self.index[0], numbers)

    def times(self, values: Tensor | float) -> Points:
        """These numbers, each times another."""
        return replace(self, numbers=self.numbers * values)

    def marked(self) -> Points:
        """The same, and 1 beside every number that is not 0, as the roll-up starts."""
        return replace(
            self, numbers=torch.stack([self.numbers, (self.numbers != 0).to(self.numbers.dtype)])
        )

    def joined(self, other: Points) -> Points:
        """Two of these as the roll-up starts: numbers add, and what either marks is marked."""
        found = _gathered([self, other])
        found.numbers[1].clamp_(max=1)
        return found

    def gathered(self) -> tuple[Index, tuple[Tensor, ...], Tensor]:
        """Which places of one sample's axes any of them is at; where each then is among these; and
        the part of the tensor that has these places alone."""
        index: list[Tensor | None] = []
        inside, shape = [self.index[0]], [self.shape[0]]
        for places, size in zip(self.index[1:], self.shape[1:], strict=True):
            found, among = torch.unique(places, return_inverse=True)
            if not len(found):  # of nothing that is explained, one place
                found = found.new_zeros(1)
            few = len(found) < size
            index.append(found if few else None)
            inside.append(among if few else places)
            shape.append(len(found))
        return tuple(index), tuple(inside), self._placed(inside, shape)


@dataclass(frozen=True)
class Excerpt:
    """What was made of a tensor of ``shape`` (batch first): ``made`` has the places of ``index``
    alone, in their order."""

    made: Tensor
    index: Index
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """That of the tensor."""
        return self.made.dtype

    @property
    def device(self) -> torch.device:
        """Where the tensor would be."""
        return self.made.device

    def __getitem__(self, index: tuple[Tensor, ...]) -> Tensor:
        """What the tensor has at an index of its first axes. Raises ``IndexError`` for what was not
        made."""
        inside = [index[0]]
        for places, there in zip(index[1:], self.index, strict=False):
            if there is not None:
                same = places[:, None] == there.to(places.device)
                if not bool(same.any(1).all()):
                    raise IndexError(f"made at {there.tolist()}, not at {places.tolist()}")
                places = same.int().argmax(1)
            inside.append(places)
        return self.made[tuple(inside)]


#: What there is of a tensor: all, or some places.
Made = Tensor | Excerpt
#: Numbers of an output: few of them, or a whole tensor.
Seed = Tensor | Points


def whole(seed: Seed) -> Tensor:
    """The tensor, batch first."""
    return seed.whole() if isinstance(seed, Points) else seed


def added(parts: Sequence[tuple[float, Seed]]) -> Seed:
    """The sum of several, each times a factor."""
    few = [seed.times(factor) for factor, seed in parts if isinstance(seed, Points)]
    if len(few) < len(parts):
        return sum((f * whole(s) for f, s in parts[1:]), parts[0][0] * whole(parts[0][1]))
    return _gathered(few)


def _gathered(parts: Sequence[Points]) -> Points:
    """The sum of several of one tensor, each place once."""
    both = torch.stack([torch.cat(axis) for axis in zip(*(p.index for p in parts), strict=True)])
    index, place = torch.unique(both, dim=1, return_inverse=True)
    numbers = torch.cat([p.numbers for p in parts], -1)
    sums = numbers.new_zeros(*numbers.shape[:-1], index.shape[1]).index_add_(-1, place, numbers)
    return replace(parts[0], index=index.unbind(0), numbers=sums)


def behind(seed: Seed, channels: int) -> Seed:
    """What has channels, with that many of zeros before them."""
    if isinstance(seed, Points):
        zeros = seed.numbers.new_zeros(channels, seed.numbers.shape[-1])
        return replace(seed, numbers=torch.cat([zeros, seed.numbers]))
    return torch.cat([torch.zeros_like(seed[:, :1]).expand(-1, channels, *seed.shape[2:]), seed], 1)


def sizes(seed: Seed) -> Tensor:
    """The sum of the magnitudes of every sample, (batch,)."""
    if isinstance(seed, Points):
        return seed.summed(seed.numbers.abs())
    return seed.abs().flatten(1).sum(1)


def sums(seed: Seed) -> Tensor:
    """The sum of every sample, (batch,)."""
    return seed.summed(seed.numbers) if isinstance(seed, Points) else seed.flatten(1).sum(1)
