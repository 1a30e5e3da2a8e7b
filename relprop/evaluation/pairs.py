"""The (sample, class) pairs of which maps are wanted, as few forward passes explain them: every
sample goes through the model once, and its classes are targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

#: A sample of a batch, and a class of which a map is wanted.
Pair = tuple[int, int]


def by_count(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs in the order of ``grids``: samples of which equally many classes are wanted one
    after the other, and of these first every sample with its first class."""
    classes: dict[int, list[int]] = {}
    for i, c in pairs:
        classes.setdefault(i, []).append(c)
    counts = sorted({len(own) for own in classes.values()})
    return [
        (i, own[k]) for n in counts for k in range(n) for i, own in classes.items() if len(own) == n
    ]


def grids(pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Samples of which equally many classes are wanted, and these classes: a target each."""
    counts = Counter(i for i, _ in pairs)
    for n in sorted(set(counts.values())):
        some = [pair for pair in pairs if counts[pair[0]] == n]
        size = len(some) // n
        targets = [torch.tensor([c for _, c in some[k * size :][:size]]) for k in range(n)]
        yield [i for i, _ in some[:size]], targets
