"""What an explainer knows whose model is there: the adapter, the weights as they are now, targets
that are looked up in the call's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Never

from torch import Tensor, fx, nn

from relprop.adapters import Adapter, Prepared
from relprop.compiled.comparing import Comparison
from relprop.compiled.head import ONE_ELEMENT
from relprop.compiled.recording import explainable
from relprop.compiled.tidying import EXPLAIN
from relprop.compiled.weights import read_anew, refuse_untied
from relprop.errors import TargetError, message
from relprop.explanation import Explanation
from relprop.opening.opening import opened, prepared
from relprop.runner.needs import Needs
from relprop.runner.opposites import sided
from relprop.runner.run import Part, refuse_nonfinite
from relprop.targets.start import Target
from relprop.tracer.binding import Inputs


class _Unread(Mapping[fx.Node, Tensor]):
    """A model's outputs, before it has run."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __getitem__(self, node: fx.Node) -> Never:
        fact = f"target {self.target.written()} is known only when the model has run"
        raise TargetError(message(fact, then=[ONE_ELEMENT]))

    def __iter__(self) -> Iterator[fx.Node]:
        return iter([self[None]])  # type: ignore[index]

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class Live:
    """The model that a flat program was recorded of. ``node``: the output that is explained;
    ``weights``: the names of what ``module`` holds of the model, ``tied``: others of the same
    tensors. ``example``: tensors that it
    takes, each with whether it has an entry per sample. ``given``: what the user handed over, a
    pipeline or the model itself."""

    needs: Needs
    node: fx.Node
    module: fx.GraphModule
    weights: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    example: tuple[tuple[Tensor, bool], ...]
    given: object
    processor: object = None
    comparison: Comparison | None = None

    @property
    def adapter(self) -> Adapter:
        """Who knows what its tokens are."""
        return self.needs.session.adapter

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        return self.needs.session.model

    def prepared(self, inputs: object, processor: object) -> Prepared:
        """A call's tensors from what a person gave."""
        by = self.processor if processor is None else processor
        if self.given is self.model:  # which was looked at when the program was made
            return prepared(self.model, inputs, by)
        return opened(self.given, inputs, by)[1]

    def element(self, target: Target, sample: int, inputs: Inputs) -> tuple[int, ...]:
        """The one element that a target names in a sample."""
        session = self.needs.session
        context = session.context(inputs, _Unread(target), None)
        (choice,) = target.choose(context, [sample])
        if len(choice.parts) == 1 and choice.parts[0].node is self.node:
            where = choice.parts[0].where
            if isinstance(where, tuple):
                return where
        part = Part(inputs, Prepared(None), 0, inputs.batch)
        sided(session, part, sample, target, self.needs.question)
        fact = f"target {target.written()} is no one element of the compiled output"
        raise TargetError(message(fact, then=[ONE_ELEMENT, EXPLAIN]))

    def refreshed(self) -> None:
        """Have the program read the weights as they are now."""
        refuse_untied(self.model, self.tied)
        read_anew(self.module, self.model, self.weights)

    def check(self, flat: Explanation, inputs: object, target: object) -> None:
        """Compare with ``explain``, if that is due."""
        if self.comparison is not None:
            self.comparison.check(flat, inputs, target)

    def refuse_outputs(self, outputs: Mapping[str, Tensor]) -> None:
        """Raise ``InputError`` for outputs that are not finite."""
        values = {n: outputs[f"model.{name}"] for name, n in explainable(self.needs).items()}
        refuse_nonfinite(self.needs.session, values)
