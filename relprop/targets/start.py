"""What a target becomes: the scalar y_t of every sample, where relevance starts with 1, and the
roll-up's field there."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Adapter
from relprop.errors import OptionError, TargetError
from relprop.interpreter.points import Made, Points, Seed
from relprop.rules import RuleSet
from relprop.rules.presets import gradient_name
from relprop.targets.outputs import chosen_output, has_batch_axis
from relprop.tracer.binding import Inputs
from relprop.tracer.program import Memo, Program


@dataclass(frozen=True)
class Term:
    """A part of a target that is explained by itself: relevance starts with the numbers of
    ``seeds`` (of each output, batch first), and what it explains counts ``coefficient`` times."""

    coefficient: float
    seeds: Mapping[fx.Node, Seed]


class NoStart(TargetError):
    """The target is no sum of elements, so that relevance has nowhere to start."""


@dataclass(frozen=True)
class Start:
    """A target worked out for a batch.

    ``scalars`` (batch,): y_t, the number that is explained, attached to autograd. ``terms``: where
    relevance starts. ``field``: where the roll-up starts. ``label``: what was explained in each
    sample.

    ``at_elements``: whether relevance starts at elements, each with its weight in y_t. It does for
    every target but a callable that multiplies or divides outputs; there the seeds are what became
    of a relevance of 1 on its way through the callable's own operations. ``is_sum``: whether y_t is
    the sum of these, which log-probabilities are not. ``single``: it is one element in every
    sample. ``at_once``: how many elements start together that are too many to be explained one by
    one. Without ``terms`` relevance has no start. ``again``: y_t of other values of the outputs;
    ``by_forms``: of a callable, by gradient forms. ``memo``: what questions about it share.
    """

    label: tuple[object, ...]
    scalars: Tensor
    terms: tuple[Term, ...]
    field: Mapping[fx.Node, Seed]
    is_sum: bool = True
    at_elements: bool = True
    single: bool = False
    at_once: int = 0
    again: Callable[[Mapping[fx.Node, Made]], Tensor] | None = None
    by_forms: Callable[[RuleSet], Tensor] | None = None
    memo: Memo = dataclasses.field(init=False, default_factory=Memo, repr=False, compare=False)

    @property
    def begun(self) -> tuple[Term, ...]:
        """The terms as relevance starts: one element alone with 1, or with −1 where y_t falls with
        it."""
        if not self.single:
            return self.terms
        return tuple(Term(math.copysign(1, term.coefficient), term.seeds) for term in self.terms)

    def balanced(self, rules: RuleSet) -> Tensor:
        """y_t of a callable by a rule set's gradient forms. Raises ``OptionError``."""
        if self.by_forms is None:
            fact = f"gradient={gradient_name(rules)!r}: the target callable cannot be followed"
            raise OptionError(fact, then=["gradient='model'"])
        with torch.enable_grad():
            return self.by_forms(rules)

    def contributions(self, values: Mapping[fx.Node, Made]) -> tuple[Term, ...]:
        """The terms started with y_t in place of 1: each element with its weight times its value,
        ``values`` being the outputs', batch first."""
        return tuple(
            Term(term.coefficient, {n: self._worth(n, s, values) for n, s in term.seeds.items()})
            for term in self.terms
        )

    def _worth(self, node: fx.Node, seed: Seed, values: Mapping[fx.Node, Made]) -> Seed:
        """One seed times what it is a share of: its elements' values, or y_t itself."""
        if isinstance(seed, Points):
            own = seed.at(values[node]) if self.at_elements else self.scalars[seed.index[0]]
            return seed.times(own.detach().to(seed.numbers.dtype))
        whole = self.scalars.reshape(-1, *[1] * (seed.dim() - 1))
        value = all_of(values[node]) if self.at_elements else whole
        return seed * value.detach().to(seed.dtype)


@dataclass(frozen=True)
class Context:
    """What a target is resolved against: the program, its outputs' values (batch first, attached;
    of some only the places that targets read), and who knows labels. ``walks``: whether relevance
    is to start there; ``processor``: what the user gave as such."""

    program: Program
    model: nn.Module
    adapter: Adapter
    inputs: Inputs
    outputs: Mapping[fx.Node, Made]
    rules: RuleSet
    walks: bool = True
    processor: object = None

    def values(self, node: fx.Node, samples: Sequence[int]) -> Tensor:
        """An output of some samples, without the 1 of a single sample's call, detached."""
        value = all_of(self.outputs[node]).detach()
        value = value[:, 0] if has_batch_axis(node) else value
        return value if len(samples) == len(value) else value[list(samples)]

    def rows(self, node: fx.Node, samples: Sequence[int], positions: Sequence[int]) -> Tensor:
        """What an output has at one position of each of some samples, (samples, *other axes),
        detached."""
        value = self.outputs[node]
        places = (torch.tensor(list(p), device=value.device) for p in (samples, positions))
        sample, position = places
        row = [torch.zeros_like(sample)] if has_batch_axis(node) else []
        return value[(sample, *row, position)].detach()


def all_of(value: Made) -> Tensor:
    """What was made whole."""
    assert isinstance(value, Tensor), "a target reads what it did not say it would"
    return value


@dataclass(frozen=True)
class Elements:
    """One sample's share of a term: elements of one output, all of one ``weight``, or each of its
    own, all of one sign.

    ``where``: the index of one element, or (elements, axes) of many, both without the batch axis,
    if there is one. ``log``: they are log-probabilities, normalised along the output's last axis.
    """

    node: fx.Node
    where: tuple[int, ...] | Tensor
    weight: float | Tensor = 1.0
    log: bool = False

    @property
    def negative(self) -> bool:
        """Whether y_t falls with them."""
        return any(w < 0 for w in _numbers(self.weight, 1))


@dataclass(frozen=True)
class ChosenTarget:
    """What a target is in one sample: its label, and the parts y_t is the sum of, each of which is
    explained by itself."""

    label: object
    parts: tuple[Elements, ...]


class Target(ABC):
    """One thing to explain in one sample. Immutable, hashable, and known to no model until it is
    resolved."""

    def written(self) -> str:
        """The target as a person would write it, for messages."""
        return str(self)

    def reads_more(self, program: Program) -> bool:
        """Whether y_t reads more of an output than the elements at which relevance starts."""
        return False

    @property
    def inside(self) -> bool:
        """Whether it reads a value before the model's end."""
        return False

    @property
    def output(self) -> str | int | None:
        """The name or the place of the output it reads; ``None``: the class output."""
        return None

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The outputs it reads. Raises ``TargetError`` if the model has none like that."""
        return (chosen_output(program, self.output).node,)

    def places(self, context: Context, samples: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Where it reads its output in these samples, before there are outputs: the beginnings of
        an index of one sample's part, all but the last axis; ``None``: anywhere."""
        return None

    @abstractmethod
    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """What it is in each of these samples. Raises ``TargetError`` naming what was given and
        what the output has."""


def field_of(seed: Tensor) -> Tensor:
    """The roll-up's start: 1 wherever relevance starts."""
    marks = (seed != 0).to(seed.dtype)
    return torch.stack([marks, marks], 1)


def start_of(choices: Sequence[ChosenTarget], context: Context) -> Start:
    """The start of a batch: the k-th parts of all samples make the k-th term, or two where weights
    are of both signs."""
    groups: dict[tuple[int, bool], dict[int, Elements]] = {}
    for i, choice in enumerate(choices):
        for k, part in enumerate(choice.parts):
            groups.setdefault((k, part.negative), {})[i] = part
    terms, field, summands = [], dict[fx.Node, Points](), list[Summand]()
    for (_, negative), parts in sorted(groups.items(), key=lambda item: item[0]):
        seeds, sign = dict[fx.Node, Seed](), -1.0 if negative else 1.0
        for node in dict.fromkeys(part.node for part in parts.values()):
            mine = {i: part for i, part in parts.items() if part.node is node}
            value = context.outputs[node]
            seeds[node] = seed = _seed(mine, node, value)
            logs = torch.tensor([i in mine and mine[i].log for i in range(len(choices))])
            summands.append(Summand(sign, node, seed, logs[seed.index[0].cpu()]))
            marked = _seed({i: _once(p) for i, p in mine.items()}, node, value).marked()
            field[node] = field[node].joined(marked) if node in field else marked
        terms.append(Term(sign, seeds))
    label, is_sum = tuple(c.label for c in choices), not any(bool(s.logs.any()) for s in summands)
    scalars = amount(summands, context.outputs)
    again = partial(amount, tuple(summands))
    return Start(label, scalars, tuple(terms), field, is_sum=is_sum, again=again)


@dataclass(frozen=True)
class Summand:
    """A part of y_t: the elements of an output where ``seed`` is, times its numbers, added or, with
    ``sign`` −1, taken away. Of those that ``logs`` says, (elements,), it is the log-probability."""

    sign: float
    node: fx.Node
    seed: Points
    logs: Tensor

    def worth(self, outputs: Mapping[fx.Node, Made]) -> Tensor:
        """What it is of every sample, (batch,)."""
        value = outputs[self.node]
        found = value[self.seed.index]
        if bool(self.logs.any()):
            rows = value[self.seed.index[:-1]]
            found = found - torch.where(self.logs.to(rows.device), rows.logsumexp(-1), 0.0)
        dtype = torch.promote_types(found.dtype, torch.float32)
        return self.sign * self.seed.summed(found.to(dtype) * self.seed.numbers.to(dtype))


def amount(summands: Sequence[Summand], outputs: Mapping[fx.Node, Made]) -> Tensor:
    """y_t of every sample, (batch,), from the values of the outputs."""
    found = torch.zeros(())
    for summand in summands:
        worth = summand.worth(outputs)
        found = found.to(worth.device) + worth
    return found


def _once(part: Elements) -> Elements:
    """A part as the roll-up counts it: one element once, many by their weights."""
    return replace(part, weight=1.0) if isinstance(part.where, tuple) else part


def _seed(parts: Mapping[int, Elements], node: fx.Node, value: Made) -> Points:
    """The weights of some samples' elements in an output."""
    dtype = torch.promote_types(value.dtype, torch.float32)
    row = (0,) if has_batch_axis(node) else ()
    single = {i: p for i, p in parts.items() if isinstance(p.where, tuple)}
    alone = [[i, *row, *p.where] for i, p in single.items()]
    indices = [torch.tensor(alone, dtype=torch.long)] if alone else []
    weights = [number for p in single.values() for number in _numbers(p.weight, 1)]
    for i, part in parts.items():
        if isinstance(part.where, Tensor):
            before = torch.tensor([[i, *row]]).expand(len(part.where), -1)
            indices.append(torch.cat([before, part.where.cpu()], 1))
            weights += _numbers(part.weight, len(part.where))
    numbers = torch.tensor(weights, dtype=dtype, device=value.device).abs()
    index = torch.cat(indices).to(value.device).unbind(1)
    return Points(index, numbers, tuple(value.shape))


def _numbers(weight: float | Tensor, count: int) -> list[float]:
    """A weight for each of so many elements."""
    return weight.tolist() if isinstance(weight, Tensor) else [weight] * count
