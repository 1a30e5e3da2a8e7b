"""What an explainer knows whose model is there: the adapter, the weights as they are now, targets
that are looked up in the call's inputs."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Never

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Adapter, Prepared
from relprop.compiled.head import ONE_ELEMENT
from relprop.compiled.native import Functions
from relprop.compiled.recording import EXPLAIN, explainable
from relprop.compiled.weights import read_anew, refuse_untied
from relprop.errors import AmbiguityWarning, CaptureError, InputError, TargetError
from relprop.explanation import Explanation
from relprop.opening.opening import opened, prepared
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions
from relprop.runner.needs import Needs
from relprop.runner.opposites import contrast_kind
from relprop.runner.run import Part, refuse_infinite_outputs
from relprop.targets.start import Target
from relprop.tracer.binding import Inputs
from relprop.tracer.structure import structure


class _Unread(Mapping[fx.Node, Tensor]):
    """A model's outputs, before it has run."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __getitem__(self, node: fx.Node) -> Never:
        fact = f"target {self.target.written()} is known only when the model has run"
        raise TargetError(fact, then=[ONE_ELEMENT])

    def __iter__(self) -> Iterator[fx.Node]:
        return iter([self[None]])  # type: ignore[index]

    def __len__(self) -> int:
        return 0


@dataclass
class Live:
    """The model that a flat program was recorded of. ``node``: the output that is explained;
    ``functions``: for operators of ``module``; ``weights``: the names of what that holds of the
    model, ``tied``: others of the same tensors. ``example``: tensors that it takes. ``given``: what
    the user handed over, a pipeline or the model itself. ``how``: under which conditions
    ``explain`` answers; ``built``: as what the model was built when the program was last compared
    with that."""

    needs: Needs
    node: fx.Node
    module: fx.GraphModule
    functions: Functions
    weights: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    example: tuple[Tensor, ...]
    given: object
    how: Conditions
    processor: object = None
    built: tuple[Hashable, ...] = ()

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
        if self.given is self.model:  # which was looked at when the program was made
            return prepared(self.model, inputs, processor)
        return opened(self.given, inputs, processor)[1]

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
        contrast_kind(session, part, sample, target, self.needs.question)
        fact = f"target {target.written()} is no one element of the compiled output"
        raise TargetError(fact, then=[ONE_ELEMENT, EXPLAIN])

    def refreshed(self) -> None:
        """Have the program read the weights as they are now."""
        refuse_untied(self.model, self.tied)
        read_anew(self.module, self.model, self.weights)

    def check(self, flat: Explanation, inputs: object, target: object) -> None:
        """Compare what the program gave for a call with what ``explain`` gives, if that is due: of
        a new program, and of a model that is built otherwise than it was then.

        Raises:
            CaptureError: where a new program does not give what ``explain`` gives.
            InputError: where the model was changed in more than its weights since.
        """
        if not self.how.verify or (self.built and structure(self.model) == self.built):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AmbiguityWarning)  # the program is for every class
            own = ask(self.model, inputs, [target], [self.needs.question], self.how)[0][0]
        assert own is not None
        if (fact := _difference(flat, own)) and self.built:
            fact = f"the model is another than the one that was compiled: {fact}"
            raise InputError(fact, then=["call relprop.compile again"])
        if fact:
            fact = f"the flat program does not give what relprop.explain gives: {fact}"
            raise CaptureError(fact, then=["report this model; relprop.explain explains it"])
        self.built = structure(self.model)

    def refuse_outputs(self, outputs: Mapping[str, Tensor]) -> None:
        """Raise ``InputError`` for outputs that are NaN or ∞."""
        values = {n: outputs[f"model.{name}"] for name, n in explainable(self.needs).items()}
        refuse_infinite_outputs(self.needs.session, values)


def _difference(flat: Explanation, own: Explanation) -> str:
    """In what two explanations differ by more than rounding, by more than √ε of the largest score;
    or ""."""
    if flat.target != own.target:
        return f"it explains {flat.target}, not {own.target}"
    if flat.streams.keys() != own.streams.keys():
        return f"it explains {list(flat.streams)}, not {list(own.streams)}"
    for name, theirs in own.streams.items():
        mine = flat.streams[name]
        if not torch.equal(mine.source, theirs.source):
            return f"the tokens of {name!r} are made of other positions"
        allowed = torch.finfo(own.output.dtype).eps ** 0.5
        largest = float(theirs.scores.abs().max())
        off = float((mine.scores - theirs.scores).abs().max())
        if off > allowed * largest:
            share = off / largest if largest else off
            return f"the scores of {name!r} are off by {share:.1e} of the largest"
    return ""
