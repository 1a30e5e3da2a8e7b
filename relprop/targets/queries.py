"""A query of a detector: one of the objects that it may find, and the class it takes it for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from relprop.errors import TargetError
from relprop.targets.index import element_choice, elements
from relprop.targets.outputs import chosen_output
from relprop.targets.start import ChosenTarget, Context, Target
from relprop.tracer.program import Program


@dataclass(frozen=True)
class Query(Target):
    """The query of a detector that is most confident; what ``relprop.targets.query`` makes."""

    label: int | str | None = None
    output: str | int | None = None
    nothing: int | bool | None = None

    def __str__(self) -> str:
        return f"query({'' if self.label is None else repr(self.label)})"

    def outputs(self, program: Program) -> tuple[fx.Node, ...]:
        """The queries' class logits."""
        return (chosen_output(program, self.output).node,)

    def choose(self, context: Context, samples: Sequence[int]) -> list[ChosenTarget]:
        """One element: (query, class)."""
        output = chosen_output(context.program, self.output)
        size = output.size
        if len(size) != 2:
            raise TargetError(
                f"target {self} needs an output (queries, classes) per sample; {output.name!r} "
                f"is {list(size)}"
            )
        scores = self._confidence(context.values(output.node, samples), context)
        if self.label is None:
            found = [divmod(k, size[1]) for k in scores.flatten(1).argmax(1).tolist()]
        else:
            label = elements([(0, self.label)], self, output, context, samples[:1])[0][1]
            found = [(query, label) for query in scores[:, :, label].argmax(1).tolist()]
        return [element_choice(index, output, named=self.output is not None) for index in found]

    def _confidence(self, scores: Tensor, context: Context) -> Tensor:
        """How sure the detector is of each query's class: the logits, or, where classes compete
        with "no object", a softmax."""
        nothing = self._nothing(scores.shape[-1], context)
        if nothing is None:
            return scores
        scores = scores.softmax(-1)
        scores[..., nothing] = float("-inf")
        return scores

    def _nothing(self, classes: int, context: Context) -> int | None:
        """The class that means "no object": it makes classes compete, so that confidence is a
        softmax."""
        if self.nothing is None:
            labels = len(context.adapter.labels(context.model))
            return classes - 1 if classes == labels + 1 else None
        if self.nothing is False:
            return None
        if isinstance(self.nothing, bool) or not -classes <= self.nothing < classes:
            raise TargetError(
                f"target {self}: nothing={self.nothing!r} is none of {classes} "
                "classes; give an index, False for none, or leave it out"
            )
        return self.nothing % classes
