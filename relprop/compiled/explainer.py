"""An explainer: a flat program beside what must be known to ask it and to read its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.compiled.head import Head
from relprop.compiled.ledger_rows import LedgerRows
from relprop.error_boundary import guarded
from relprop.errors import (
    InputError,
    OptionError,
    RelpropError,
    first_line,
    writable,
)
from relprop.explanation import Block, Explanation
from relprop.explanation.tokens import MAPS
from relprop.layout import Layout
from relprop.numerics import is_finite
from relprop.runner.answer import Made, check_numbers, explained, refuse_infinite_start
from relprop.runner.ask import AT_ZERO
from relprop.runner.describe import Names, described_by, named
from relprop.runner.needs import ONE_GRADIENT
from relprop.runner.numbers import Numbers
from relprop.runner.run import Part
from relprop.targets.start import Start
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.surroundings import plain_numbers

if TYPE_CHECKING:
    from relprop.compiled.live import Live
    from relprop.compiled.loaded import Loaded

#: What runs a flat program: tensors in, tensors by name out.
Runs = Callable[..., Mapping[str, Tensor]]


def without_autograd(runs: Runs) -> Runs:
    """The same without what PyTorch notes of each call for gradients, which no program takes."""

    def run(*given: Tensor) -> Mapping[str, Tensor]:
        with torch.inference_mode():
            found = runs(*given)
        return {name: value.clone() for name, value in found.items()}  # normal tensors again

    return run


@dataclass(frozen=True)
class Shape:
    """What a flat program takes: each input's name, the shape of one sample's part of it (of what
    is ``shared`` by all samples the whole), its type, and what else the call was given."""

    names: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    shared: tuple[bool, ...]
    static: str

    @classmethod
    def of(cls, inputs: Inputs) -> Shape:
        """Of a call."""
        both = list(zip(inputs.tensors, inputs.batched, strict=True))
        sizes = tuple(tuple(t.shape[1:] if b else t.shape) for t, b in both)
        dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in inputs.tensors)
        return cls(inputs.names, sizes, dtypes, tuple(not b for _, b in both), inputs.static)

    def ordered(self, inputs: Any) -> Any:
        """A call's keyword arguments in the order in which they were captured."""
        if not isinstance(inputs, Mapping):
            return inputs
        return {n: inputs[n] for n in self.names if n in inputs} | dict(inputs)

    def checked(self, inputs: Inputs) -> Inputs:
        """A call's inputs, read as the captured ones are. Raises ``InputError`` for any others."""
        shared = tuple(n for n, s in zip(self.names, self.shared, strict=True) if s)
        read = inputs.sharing(shared)
        if (found := Shape.of(read)) != self:
            fact = f"a flat program is for one shape: it was captured for {self}, this is {found}"
            raise InputError(
                fact, then=["relprop.compile(model, inputs) makes one for these inputs"]
            )
        return read

    def __str__(self) -> str:
        parts = []
        for name, size, dtype, shared in zip(
            self.names, self.sizes, self.dtypes, self.shared, strict=True
        ):
            axes = [*([] if shared else ["batch"]), *map(str, size)]
            parts.append(f"{name} {dtype} ({', '.join(axes)})")
        return ", ".join(parts) + (f", {self.static}" if self.static != "[]" else "")


@dataclass(frozen=True)
class ProgramUsage:
    """How a flat program is asked and read.

    ``contents``: the explained inputs of which it is told which tokens are content. ``layouts``:
    where the tokens of each come from. ``rows``: what its ledger's rows are. ``blocks``: the
    module paths of the attention sites that are kept. ``made``: by what it explains.
    """

    shape: Shape
    head: Head
    contents: tuple[str, ...]
    layouts: Mapping[str, Layout]
    over_attention: bool
    made: Made
    rows: LedgerRows | None = None
    blocks: tuple[str, ...] | None = None


@guarded
class Explainer:
    """Explains one model by one method, for inputs of one shape and batches of any size, as one
    program. ``relprop.compile`` makes one, ``relprop.load_explainer`` reads one."""

    # ``knows``: what inputs and outputs stand for, by the model or by what is remembered of it
    def __init__(self, runs: Runs, usage: ProgramUsage, knows: Live | Loaded) -> None:
        self._runs, self._usage, self._knows = runs, usage, knows

    @property
    def shape(self) -> Shape:
        """What it takes: names, shapes and types of inputs."""
        return self._usage.shape

    def __repr__(self) -> str:
        return f"Explainer({self._usage.made.method!r}, {self.shape})"

    def __call__(self, inputs: Any, target: Any = None, *, processor: Any = None) -> Explanation:
        """What ``relprop.explain`` gives for these inputs and this target.

        Args:
            inputs: as ``explain`` takes them, of the captured shape but for the batch.
            target: ``None`` (the predicted class, or next token), an index, a label, a tuple of
                them, an element of the compiled output, or a list with one per sample.
            processor: what reads inputs that are no tensors; ``None``: the one that
                ``relprop.compile`` was given.

        Raises:
            InputError: for inputs of another shape, and for outputs that are NaN or ∞.
            TargetError: for what is no element of the compiled output.
        """
        knows, usage = self._knows, self._usage
        with plain_numbers(), torch.no_grad():
            by = knows.processor if processor is None else processor
            prepared = knows.prepared(inputs, by)
            bound = usage.shape.checked(bind(usage.shape.ordered(prepared.inputs)))
            part = Part(bound, prepared, 0, bound.batch)
            described = {
                name: described_by(knows.adapter, knows.model, part, name, layout)
                for name, layout in usage.layouts.items()
            }
            contents = [described[name]["content"] for name in usage.contents]
            index = usage.head.indices(target, knows, bound)
            knows.refreshed()
            outputs = self._outputs(bound, contents, index)
            found = self._explanation(target, outputs, described, prepared.processor)
        knows.check(found, prepared.inputs, target)
        return found

    def save(self, path: str | Path, *, ahead_of_time: bool = False) -> Path:
        """Write the program, with the weights as they are now, to one file, which
        ``relprop.load_explainer`` reads back as an explainer.

        Args:
            path: ``x.safetensors``, which is read in a second, or ``x.pt2``, which PyTorch runs
                without this package: ``torch.export.load(path).module()`` takes the inputs' tensors
                and the index of what is explained, (batch,), -1 for the prediction, and gives
                tensors by name; ``relprop.json`` in it says how to read them (docs/compile.md).
            ahead_of_time: to machine code, by g++; ``torch._inductor.aoti_load_package`` loads it.

        Raises:
            OptionError: for a loaded explainer; ``ahead_of_time`` without a C++ compiler or for
                another file than ``.pt2``; in ``.safetensors``, operators that are not PyTorch's.
        """
        from relprop.compiled.live import Live
        from relprop.compiled.saving import save

        if not isinstance(self._knows, Live):
            raise OptionError("this explainer was loaded from a file, which can be copied")
        writable(path)
        self._knows.refreshed()
        return save(self._usage, self._knows, path, ahead_of_time=ahead_of_time)

    def _outputs(
        self, bound: Inputs, contents: list[Tensor], index: Tensor
    ) -> Mapping[str, Tensor]:
        """What the program gives. Raises ``InputError`` for ids of which there is no row."""
        tensors = [t.contiguous() for t in bound.tensors]  # as they were recorded
        try:
            return self._runs(*tensors, *contents, index)
        except IndexError as error:
            fact = f"the program fails on these inputs: IndexError: {first_line(error)}"
            raise InputError(fact, then=["ids below the rows of their table"]) from error

    def _explanation(
        self,
        target: object,
        outputs: Mapping[str, Tensor],
        described: Mapping[str, Mapping[str, Any]],
        processor: object,
    ) -> Explanation:
        knows, usage = self._knows, self._usage
        knows.refuse_outputs(outputs)
        numbers = numbers_of(outputs, usage)
        if usage.made.facts.get("relevance") == ONE_GRADIENT:
            _refuse_undefined(numbers)
        chosen = outputs["index"].tolist()
        label = usage.head.labels(target, chosen)
        start = Start(label, outputs["output"], (), {})
        refuse_infinite_start(start)
        check_numbers(numbers, lambda: None, over_attention=usage.over_attention)
        names, logits = Names(), outputs[f"model.{usage.head.name}"]
        if usage.head.is_class_output:
            probable = outputs.get("probabilities")
            names = named(knows.adapter, knows.model, logits, probable, label, processor)
        return explained(numbers, described, start, names, usage.made)


def _refuse_undefined(numbers: Numbers) -> None:
    """Raise ``RelpropError`` where one gradient is not what the rules make of these numbers: a flat
    program cannot turn to the walk."""
    if all(is_finite(scores) for scores, _ in numbers.pairs.values()):
        return
    fact = f"relevance as one gradient is no finite number here: {AT_ZERO}, or numbers overflow"
    walked = "relprop.compile(..., ledger=True), whose program walks relevance, or relprop.explain"
    raise RelpropError(fact, then=[walked, "precision='float64' if they overflow"])


def numbers_of(outputs: Mapping[str, Tensor], usage: ProgramUsage) -> Numbers:
    """What a flat program's tensors are."""
    scores, identity, inputs, layers = (
        {n: outputs[f"{n}.{kind}"] for n in usage.layouts if f"{n}.{kind}" in outputs}
        for kind in ("scores", "identity", "input", "layers")
    )
    blocks = []
    for i, path in enumerate(usage.blocks or ()):
        attention, *rest = (outputs.get(f"blocks.{i}.{kind}") for kind in MAPS)
        assert attention is not None
        blocks.append(Block(path, attention, *rest))
    pairs = {n: (found, identity[n]) for n, found in scores.items()}
    kept = None if usage.blocks is None else tuple(blocks)
    ledger = None if usage.rows is None else usage.rows.ledger(outputs["ledger"])
    return Numbers(pairs, inputs, layers, outputs.get("matrix"), kept, ledger)
