"""Whether a flat program gives what ``explain`` gives."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import nn

from relprop.errors import AmbiguityWarning, CaptureError, InputError
from relprop.explanation import Explanation
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions
from relprop.runner.question import Question
from relprop.tracer.structure import structure


@dataclass
class Comparison:
    """A flat program beside ``explain``: they are compared when the program was made, and again
    when the model is ``built`` otherwise than it was then."""

    model: nn.Module
    question: Question
    how: Conditions
    built: tuple[Hashable, ...] = ()

    def check(self, flat: Explanation, inputs: object, target: object) -> None:
        """Compare what the program gave for a call if that is due.

        Raises:
            CaptureError: where a new program does not give what ``explain`` gives.
            InputError: where the model was changed in more than its weights since.
        """
        if self.built and structure(self.model) == self.built:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AmbiguityWarning)  # the program is for every class
            own = ask(self.model, inputs, [target], [self.question], self.how)[0][0]
        assert own is not None
        if (fact := difference(flat, own)) and self.built:
            fact = f"the model is another than the one that was compiled: {fact}"
            raise InputError(fact, then=["call relprop.compile again"])
        if fact:
            fact = f"the flat program does not give what relprop.explain gives: {fact}"
            then = ["report this model; relprop.explain explains it"]
            raise CaptureError(fact, then=then)
        self.built = structure(self.model)


def difference(flat: Explanation, own: Explanation) -> str:
    """In what two explanations differ by more than rounding, by more than √ε of the largest score;
    or ""."""
    if flat.target != own.target:
        return f"it explains {flat.target}, not {own.target}"
    if flat.streams.keys() != own.streams.keys():
        return f"it explains {list(flat.streams)}, not {list(own.streams)}"
    for name, stream in own.streams.items():
        mine, theirs = flat.streams[name], stream
        if not torch.equal(mine.source, theirs.source):
            return f"the tokens of {name!r} are made of other positions"
        allowed = torch.finfo(own.output.dtype).eps ** 0.5
        largest = float(theirs.scores.abs().max())
        off = float((mine.scores - theirs.scores).abs().max())
        if off > allowed * largest:
            share = off / largest if largest else off
            return f"the scores of {name!r} are off by {share:.1e} of the largest"
    return ""
