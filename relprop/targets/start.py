"""What a target becomes: the scalar y_t of every sample, where relevance starts with 1, and the
roll-up's field there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Adapter
from relprop.rules import RuleSet
from relprop.tracer.binding import Inputs
from relprop.tracer.program import Program, shape


@dataclass(frozen=True)
class Term:
    """One part of a target: relevance ``seeds`` (per output node, batch first) explained by itself,
    then times ``coefficient``."""

    coefficient: float
    seeds: Mapping[fx.Node, Tensor]


@dataclass(frozen=True)
class Start:
    """A target worked out: y_t of every sample (``scalars``, attached to autograd), the terms of
    its relevance, and the roll-up's field.

    The seeds are weights of output elements; where ``shares`` they are shares of 1 already, of a
    y_t that is no sum of these elements.
    """

    label: tuple[Any, ...]
    scalars: Tensor
    terms: tuple[Term, ...]
    field: Mapping[fx.Node, Tensor]
    shares: bool = False

    def contributions(self, values: Mapping[fx.Node, Tensor]) -> tuple[Term, ...]:
        """The terms started with y_t in place of 1: each element with its weight times its value,
        ``values`` being the outputs', batch first."""

        def worth(node: fx.Node, seed: Tensor) -> Tensor:
            value = (
                self.scalars.reshape(-1, *[1] * (seed.dim() - 1)) if self.shares else values[node]
            )
            return seed * value.detach().to(seed.dtype)

        return tuple(
            Term(term.coefficient, {node: worth(node, seed) for node, seed in term.seeds.items()})
            for term in self.terms
        )


@dataclass(frozen=True)
class Context:
    """What a target is resolved against: the program, its outputs' values (batch first, attached),
    and who knows labels."""

    program: Program
    model: nn.Module
    adapter: Adapter
    inputs: Inputs
    outputs: Mapping[fx.Node, Tensor]
    rules: RuleSet

    def values(self, node: fx.Node, samples: Sequence[int]) -> Tensor:
        """An output of some samples, without the 1 of a single sample's call, detached."""
        value = self.outputs[node].detach()
        value = value[:, 0] if has_batch_axis(node) else value
        return value if len(samples) == len(value) else value[list(samples)]


def has_batch_axis(node: fx.Node) -> bool:
    """Whether an output of one sample begins with a 1. Not so where the model folds other axes into
    the batch: (samples · channels, ...)."""
    return shape(node)[:1] == (1,)


@dataclass(frozen=True)
class Part:
    """One sample's share of a term: elements of one output, all of one ``weight``; the weights sum
    to 1.

    ``where``: the index of one element, or (elements, axes) of many, both without the batch axis,
    if there is one.
    """

    node: fx.Node
    where: tuple[int, ...] | Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Choice:
    """What a target is in one sample: its label, and the parts y_t is the sum of, each of which is
    explained by itself."""

    label: Any
    parts: tuple[Part, ...]


class Target(ABC):
    """One thing to explain in one sample. Immutable, hashable, and known to no model until it is
    resolved."""

    @abstractmethod
    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The outputs it reads. Raises ``TargetError`` if the model has none like that."""

    @abstractmethod
    def choose(self, context: Context, samples: Sequence[int]) -> list[Choice]:
        """What it is in each of these samples. Raises ``TargetError`` naming what was given and
        what the output has."""


def field_of(seed: Tensor) -> Tensor:
    """The roll-up's start: 1 wherever relevance starts."""
    marks = (seed != 0).to(seed.dtype)
    return torch.stack([marks, marks], 1)


def start_of(choices: Sequence[Choice], context: Context) -> Start:
    """The start of a batch: the k-th parts of all samples make the k-th term."""
    terms, field, scalars = [], dict[fx.Node, Tensor](), torch.zeros(())
    for k in range(max(len(choice.parts) for choice in choices)):
        parts = {i: choice.parts[k] for i, choice in enumerate(choices) if k < len(choice.parts)}
        seeds = {}
        for node in dict.fromkeys(part.node for part in parts.values()):
            value = context.outputs[node].to(
                torch.promote_types(context.outputs[node].dtype, torch.float32)
            )
            index, weights = _places(
                {i: part for i, part in parts.items() if part.node is node},
                value,
                (0,) if has_batch_axis(node) else (),
            )
            seeds[node] = torch.zeros(
                value.shape, dtype=value.dtype, device=value.device
            ).index_put(index, weights)
            summed = torch.zeros(len(value), dtype=value.dtype, device=value.device).index_add(
                0, index[0], value[index] * weights
            )
            scalars = scalars.to(summed.device) + summed
            mine = torch.stack([seeds[node], (seeds[node] != 0).to(value.dtype)], 1)
            field[node] = _joined(field[node], mine) if node in field else mine
        terms.append(Term(1.0, seeds))
    return Start(tuple(choice.label for choice in choices), scalars, tuple(terms), field)


def _places(
    parts: Mapping[int, Part], like: Tensor, row: tuple[int, ...]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The elements that the parts of some samples name, as an index of the whole output (in its
    ``row`` of the sample), and their weights."""
    single = all(isinstance(part.where, tuple) for part in parts.values())
    if single:
        index = torch.tensor(
            [[i, *row, *part.where] for i, part in parts.items()], device=like.device
        )
        counts = [1] * len(parts)
    else:
        many = {
            i: torch.tensor([part.where]) if isinstance(part.where, tuple) else part.where
            for i, part in parts.items()
        }
        index = torch.cat(
            [
                torch.cat([torch.tensor([[i, *row]]).expand(len(where), -1), where.cpu()], 1)
                for i, where in many.items()
            ]
        ).to(like.device)
        counts = [len(where) for where in many.values()]
    weights = torch.tensor(
        [part.weight for part, n in zip(parts.values(), counts, strict=True) for _ in range(n)],
        dtype=like.dtype,
        device=like.device,
    )
    return index.unbind(1), weights


def _joined(a: Tensor, b: Tensor) -> Tensor:
    """Two terms read one output: their numbers add, and what either marks is marked."""
    return torch.stack([a[:, 0] + b[:, 0], torch.maximum(a[:, 1], b[:, 1])], 1)
