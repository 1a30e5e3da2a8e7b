"""A task: a model, a data set, and what is measured of every sample. Images here, texts in
``text_task``; both explain the classes that the measures ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from relprop.data import Sample, Source
from relprop.errors import InputError, OptionError, RelpropError, RelpropWarning, first_line
from relprop.evaluation.base import answering, logits_of, without
from relprop.evaluation.entries import Entry
from relprop.evaluation.measures import Batch, Maps, Measure
from relprop.explanation import Explanation
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions
from relprop.runs.explaining import model_classes
from relprop.runs.fingerprints import of_model

#: A sample of a batch, and a class of which a map is wanted.
Pair = tuple[int, int]
#: Some samples of a batch, and targets of which maps are wanted.
Group = tuple[list[int], list[Tensor]]


def unchanged(images: Tensor) -> Tensor:
    """The images themselves: for models that take pixels in [0, 1]."""
    return images


@dataclass(frozen=True, eq=False)
class Task:
    """What images and texts share. ``measured``: the measures wanted, or their names; ``None``: all
    that this data set allows and that are not costly."""

    model: nn.Module
    source: Source
    measured: Sequence[Measure | str] | None = None
    seed: int = 0

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if self.source.kind != self.kind:
            fact = f"{type(self).__name__} is for a data set of {self.kind}s"
            raise OptionError(f"{fact}; {self.source.name!r} is one of {self.source.kind}s")
        if not len(self.source):
            raise InputError(f"the data set {self.source.name!r} is empty")

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What is measured, in order. Raises ``OptionError`` for a name that this data set does not
        allow."""
        possible = {measure.name: measure for measure in self.possible(self.source[0])}
        if self.measured is None:
            return tuple(measure for measure in possible.values() if not measure.costly)
        if unknown := [m for m in self.measured if isinstance(m, str) and m not in possible]:
            names = ", ".join(map(repr, unknown))
            fact = f"measures: {names} cannot be made of {self.source.name!r}"
            raise OptionError(fact, then=[f"{', '.join(possible)}   # what its samples allow"])
        return tuple(possible[m] if isinstance(m, str) else m for m in self.measured)

    def possible(self, sample: Sample) -> list[Measure]:
        """Every measure that samples like this one allow."""
        raise NotImplementedError

    @cached_property
    def classes(self) -> list[int] | None:
        """The model's class of each of the data set's labels, where both know the names; else the
        data set's numbers are the model's."""
        return model_classes(self.model, self.source)

    def samples(self, indices: Sequence[int]) -> tuple[Sample, ...]:
        """These samples, their labels by the model's numbers."""
        found = tuple(self.source[i] for i in indices)
        return found if self.classes is None else tuple(self._renumbered(s) for s in found)

    def _renumbered(self, sample: Sample) -> Sample:
        to = self.classes or []
        label = None if sample.label is None else to[sample.label]
        return replace(sample, label=label, others=tuple(to[c] for c in sample.others))

    def inputs(self, samples: Sequence[Sample]) -> Any:
        """Samples as the model takes them."""
        raise NotImplementedError

    def parts(self, samples: Sequence[Sample], inputs: Any) -> dict[str, Any]:
        """What measures need of samples beside the ``inputs`` made of them. Raises
        ``InputError``."""
        raise NotImplementedError

    def batch(self, indices: Sequence[int]) -> Batch:
        """These samples as the model takes them, with its answers: predicted are classes that may
        be chosen. Raises ``InputError``."""
        samples = self.samples(indices)
        inputs = self.inputs(samples)
        parts, named = self.parts(samples, inputs), isinstance(inputs, Mapping)
        inputs = dict(inputs) if named else inputs
        with answering(self.model):
            logits = logits_of(self.model, **inputs) if named else logits_of(self.model, inputs)
        labels = [sample.label for sample in samples]
        known = None if None in labels else torch.tensor(labels)
        predicted = without(logits, [sample.others for sample in samples]).argmax(1)
        return Batch(tuple(indices), samples, inputs, predicted, known, logits, parts)

    def scores(self, e: Explanation, batch: Batch) -> Tensor:
        """An explanation as this task's maps."""
        raise NotImplementedError

    def own(self, values: Tensor, batch: Batch) -> Tensor:
        """What a user's function returned as this task's maps. Raises ``InputError``."""
        raise NotImplementedError

    def floor(self, entry: Entry, batch: Batch) -> Tensor:
        """The maps of ``random`` and ``position``, one per sample."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Everything the numbers depend on beside the rows."""
        described = ((m.name, m.metric.name, m.metric.protocol, repr(m)) for m in self.measures)
        names = ("name", "metric", "protocol", "options")
        measured = [dict(zip(names, values, strict=True)) for values in described]
        of = {"model": of_model(self.model), "data": self.source.identity()}
        return {"kind": self.kind, **of, "seed": self.seed, "measures": measured}

    def maps(self, batch: Batch, rows: Sequence[Entry]) -> list[Maps | RelpropError]:
        """Of every row the maps of all classes that the measures ask for, or why the method is not
        defined for this model."""
        wanted = [dict[int, None]() for _ in batch.samples]
        for classes in (c for measure in self.measures for c in measure.classes(batch)):
            for own, c in zip(wanted, map(int, classes), strict=True):
                own[c] = None
        once = [(list(range(len(wanted))), [batch.main()])]
        maps: dict[str, Maps | RelpropError] = {}
        for specific in (True, False):  # class-specific: every pair; others: each sample once
            groups = list(_groups(wanted)) if specific else once
            targets = [(own, target.tolist()) for own, classes in groups for target in classes]
            pairs = [pair for own, target in targets for pair in zip(own, target, strict=True)]
            where = {pair: n for n, pair in enumerate(pairs)} if specific else None
            mine = [row for row in rows if row.class_specific is specific]
            for row, each in zip(mine, self._values(batch, mine, groups, pairs), strict=True):
                again = partial(self.again, batch, row)
                maps[row.name] = (
                    each if isinstance(each, RelpropError) else Maps(each, where, again)
                )
        return [maps[row.name] for row in rows]

    def _values(
        self, batch: Batch, rows: Sequence[Entry], groups: Sequence[Group], pairs: Sequence[Pair]
    ) -> Iterator[Tensor | RelpropError]:
        """The maps of rows for (sample, class) pairs; methods that relprop knows together, each
        class of a group a target of one forward pass."""
        known = [row for row in rows if row.call is not None]
        parts = [
            self._of_targets(batch, known, self.model, _rows(batch.inputs, own), targets)
            for own, targets in groups
            if known
        ]
        of_groups = zip(*parts, strict=True)
        inputs = _rows(batch.inputs, [i for i, _ in pairs])
        target = torch.tensor([c for _, c in pairs])
        for row in rows:
            if row.call is None:
                yield self.again(batch, row, self.model, inputs, target)
            else:
                each = next(of_groups)
                refused = next((e for e in each if isinstance(e, RelpropError)), None)
                yield refused or torch.cat([t for t in each if isinstance(t, Tensor)])

    def _of_targets(
        self, batch: Batch, rows: Sequence[Entry], model: Any, inputs: Any, targets: list[Tensor]
    ) -> list[Tensor | RelpropError]:
        """The maps of methods that relprop knows, from one forward pass and one gradient, or why
        one is not defined here; for several targets one after the other along the first
        axis."""
        refused: dict[int, RelpropError] = {}
        calls = [replace(row.call, ledger=False) for row in rows if row.call is not None]
        found = ask(model, inputs, targets, calls, Conditions(), refused)
        return [
            refused[i]
            if i in refused
            else torch.cat([self.scores(e, batch) for e in each if e is not None])
            for i, each in enumerate(zip(*found, strict=True))
        ]

    def again(self, batch: Batch, row: Entry, model: Any, inputs: Any, target: Tensor) -> Tensor:
        """One row's maps of any inputs of a batch's samples, for one class each; a floor's are
        those of its samples, several times if there are more inputs."""
        if row.call is not None:
            values = self._of_targets(batch, [row], model, inputs, [target])[0]
            if isinstance(values, RelpropError):
                raise values
            return values
        if row.function is None:
            floor = self.floor(row, batch)
            return floor.repeat_interleave(len(target) // len(floor), 0)
        try:
            values = row.function(model, inputs, target)
        except (RelpropError, RelpropWarning):
            raise
        except Exception as error:
            fact = f"{row.name}(model, inputs, target) raised {type(error).__name__}"
            then = [f"call {row.name} alone on one sample to see where"]
            raise InputError(f"{fact}: {first_line(error)}", then=then) from error
        if not isinstance(values, Tensor) or len(values) != len(target):
            tensor = isinstance(values, Tensor)
            given = f"shape {list(values.shape)}" if tensor else type(values).__name__
            needed = f"a tensor with one map for each of {len(target)} samples is needed"
            raise InputError(f"{row.name}(model, inputs, target) returned {given}: {needed}")
        return self.own(values.detach().cpu(), batch)

    def noise(self, batch: Batch, shape: Sequence[int]) -> Tensor:
        """(batch, *shape), U(0, 1): another for each sample, the same whatever batch it comes
        in."""
        seeds = (self.seed * 1_000_003 + i for i in batch.indices)
        generators = (torch.Generator().manual_seed(seed) for seed in seeds)
        return torch.stack([torch.rand(*shape, generator=g) for g in generators])


def _groups(wanted: Sequence[Collection[int]]) -> Iterator[Group]:
    """From the classes wanted of each sample, samples of which equally many are wanted, and
    these classes: a target each."""
    for n in sorted({len(classes) for classes in wanted if classes}):
        some = [i for i, classes in enumerate(wanted) if len(classes) == n]
        yield some, [torch.tensor(c) for c in zip(*(wanted[i] for i in some), strict=True)]


def _rows(inputs: Any, rows: list[int]) -> Any:
    """The same samples again, in another order or number."""
    if isinstance(inputs, Mapping):
        return {name: value[rows] for name, value in inputs.items()}
    return inputs[rows]
