"""What a method at the input may ask: values, gradients and relevances of what is explained, and
y_t for other values of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, fx

from relprop.errors import OptionError, PaddingWarning, is_strict, warn
from relprop.operations.looking import is_recorded
from relprop.rollup import Stream
from relprop.runner.deletion import Deletion, Row
from relprop.runner.needs import Needs
from relprop.runner.positions import positions, windows
from relprop.runner.run import Run
from relprop.runner.sites import reached_inputs
from relprop.runner.study import Gradients, Study
from relprop.runner.values import without_leading_one
from relprop.targets.start import Start
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import val
from relprop.tracer.model_comparison import tolerance
from relprop.tracer.program import Program
from relprop.tracer.run import execute

#: How far y_t of a padded text may be from that of the text alone, of the largest y_t; as far as
#: rounding may take a program from its model, if that is more.
OFF = 1e-3
NUMBERED = (
    "say where its text begins, if the model takes that: "
    "position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0)"
)


def input_streams(program: Program, leaves: Mapping[str, fx.Node]) -> tuple[Stream, ...]:
    """Explained inputs, whose tokens are their own positions."""
    found = ((name, leaf, positions(program, leaf)) for name, leaf in leaves.items())
    return tuple(Stream(name, leaf, leaf, at) for name, leaf, at in found)


def is_text(inputs: Inputs, name: str) -> bool:
    """Whether an input holds ids, (batch, positions)."""
    given = inputs.tensors[inputs.names.index(name)]
    return given.dim() == 2 and not given.is_floating_point()


class InputStudy(Study):
    """What a method at the input may ask, by name of the explained input, each (batch, *one
    sample's shape): at pixels, features, or the embeddings of ids.

    ``positions`` are the axes of each
    value, the batch being axis 0, that have a score each; the others are summed over. ``window`` is
    how many of them lie together along each, as ``occlusion`` hides them.
    """

    def __init__(
        self, needs: Needs, run: Run, target: object, start: Start, gradients: Gradients
    ) -> None:
        super().__init__(needs, run, target, start, gradients)
        ends = tuple(start.field) or self.program.output_nodes
        self.leaves = reached_inputs(self.session, ends)
        self.values = self._by_name(self.value)
        self.positions = {n: self._axes(leaf) for n, leaf in self.leaves.items()}
        self.window = {n: windows(self.program, leaf) for n, leaf in self.leaves.items()}

    @cached_property
    def gradients(self) -> dict[str, Tensor]:
        """∂y_t/∂ at what is explained. Raises ``OptionError`` if it was not asked for."""
        self.require("at.gradients", "gradient")
        return self._by_name(self.gradient)

    @cached_property
    def relevances(self) -> dict[str, Tensor]:
        """Relevance at what is explained. Raises ``OptionError`` if it was not asked for."""
        self.require("at.relevances", "relevance")
        return self._by_name(self.relevance)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The explained inputs, whose tokens are their own positions."""
        return input_streams(self.program, self.leaves)

    def _by_name(self, at: Callable[[fx.Node], Tensor | None]) -> dict[str, Tensor]:
        found = {name: (leaf, at(leaf)) for name, leaf in self.leaves.items()}
        return {n: without_leading_one(v, leaf) for n, (leaf, v) in found.items() if v is not None}

    def _axes(self, leaf: fx.Node) -> tuple[int, ...]:
        """The axes of the leaf's value, batch first and without a leading 1, that are positions."""
        moved = val(leaf).shape[:1] != (1,)
        return tuple(i + moved for i in positions(self.program, leaf))

    def forward(self, *tensors: Tensor) -> Tensor:
        """y_t of every sample, (batch,), for other values of the inputs (one tensor each, in the
        order of ``values``), attached to autograd."""
        return self.output_at(tuple(self.leaves.values()), tensors)

    def without(self, name: str, rows: Sequence[Row]) -> Tensor:
        """(rows,): y_t of the user's own model with positions of the text ``name`` deleted; each
        row is a sample and which of its positions are gone, (positions,), bool."""
        if self.program.inside or self.program.changed:
            fact = "a shorter text is run by the model itself, where no value is set or read inside"
            raise OptionError(fact, then=["a method that runs no shorter text"])
        inputs, deletion = self.run.inputs, self._deletion(name)
        found = torch.zeros(len(rows), dtype=self.start.scalars.dtype)
        for k, values in deletion.values(rows):
            spread = {n: v.expand(inputs.batch, *v.shape[1:]) for n, v in values.items()}
            found[k] = self.scalar(spread)[rows[k][0]]
        return found.to(self.home)

    def _deletion(self, name: str) -> Deletion:
        seen = self.run.part.prepared.seen
        return Deletion(self.program, self.session.model, self.run.inputs, name, seen)

    def tell_padding(self) -> None:
        """Say, once per program, where y_t of a padded text or recording is another than y_t of it
        alone. A run that is recorded looks at no values."""
        inputs, first = self.run.inputs, self.program.memo.first_time
        for name in self.leaves if not (self.program.inside or self.program.changed) else ():
            flat = not is_recorded() and inputs.tensors[inputs.names.index(name)].dim() == 2
            deletion = self._deletion(name)
            sample = deletion.padded() if flat else None
            if sample is None or not (is_strict() or first(f"padding of {name}")):
                continue
            with suppress(OptionError):  # the model reads no other length
                values = deletion.alone(sample).items()
                spread = {n: v.expand(inputs.batch, *v.shape[1:]) for n, v in values}
                alone, y = float(self.scalar(spread)[sample]), float(self.start.scalars[sample])
                off = max(OFF, tolerance(self.program, self.start.scalars.dtype))
                if abs(alone - y) > off * max(abs(alone), float(self.start.scalars.abs().max())):
                    fact = (
                        f"padding changes what the model says: y of sample "
                        f"{sample + self.run.part.first} is {y:.4g}, and {alone:.4g} of its "
                        f"{name!r} without padding"
                    )
                    numbered = [NUMBERED] if is_text(inputs, name) else []
                    then = [*numbered, f"explain each sample's {name!r} alone, without padding"]
                    warn(PaddingWarning(fact, then=then))

    def embed(self, name: str, ids: Tensor) -> Tensor:
        """The embeddings of other ids of input ``name``. Raises ``OptionError`` if the input is not
        one of ids of that shape."""
        inputs = self.run.inputs
        given = inputs.tensors[inputs.names.index(name)]
        if given.is_floating_point():
            raise OptionError(f"baseline for {name!r} holds integers; the input is floating")
        try:
            replaced = ids.to(given.device, given.dtype).expand(given.shape)
        except RuntimeError:
            raise OptionError(
                f"baseline for {name!r} has shape {list(ids.shape)}; the input is "
                f"{list(given.shape)}, batch first"
            ) from None
        tensors = tuple(replaced if t is given else t for t in inputs.tensors)
        leaf = self.program.leaves[name]
        other = replace(inputs, tensors=tensors)
        found = execute(self.program, self.session.model, other, {leaf})
        return without_leading_one(found[leaf], leaf)
