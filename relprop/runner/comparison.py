"""One part of a call against the user's own model: its outputs and, once for a model, the gradients
of a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, fx

from relprop.interpreter.points import Excerpt, Made
from relprop.interpreter.slopes import SAMPLES, Slopes, confirmed
from relprop.progress import doing
from relprop.runner.run import Run
from relprop.runner.session import Nodes, Session
from relprop.runner.slopes import keep_slopes, known_slopes
from relprop.runner.verification import COMPARING, Reference, Verifier
from relprop.targets.start import Start
from relprop.tracer.facts import is_batched, is_floating
from relprop.tracer.model_comparison import largest
from relprop.tracer.offloaded import is_offloaded
from relprop.tracer.readout import Index, Indices, taken, whole_index, within


@dataclass
class Comparison:
    """What a ``verifier`` says of one part of a call. ``gradients``: compares those of a mixture of
    the outputs with the model's, and refuses others. ``apart``: no gradients are taken at the
    leaves."""

    verifier: Verifier
    session: Session
    reference: Reference
    gradients: Callable[[], None] = field(init=False, default=lambda: None)
    apart: bool = field(init=False, default=False)

    def outputs(self, run: Run, *, differentiates: bool) -> None:
        """Refuse outputs that are not the model's."""
        made = run.outputs(self.session.program)
        self.gradients = self.verifier.compare(self.session, self.reference, made)
        if run.segmented and differentiates:
            self.verifier.skip_gradients("the graph is cut into segments, to fit memory=")

    @property
    def leaves(self) -> Nodes:
        """Where the gradients of the first target are to be taken, too, so that they need not be
        compared by a pass of their own; nowhere, if gradients were compared already, or cannot be
        so."""
        program, ref, model = self.session.program, self.reference, self.session.model
        if self.apart or not self.verifier.verify or program.dtype is not None or program.draws:
            return ()
        if is_offloaded(model) or known_slopes(self.session, ref.part, (*ref.indices,)) is not None:
            return ()
        return tuple(program.leaves.values())

    def of_target(self, run: Run, start: Start, gradients: Mapping[fx.Node, Tensor]) -> None:
        """Compare ``gradients``, those of a target at the ``leaves``, with the model's; where they
        do not say enough, those of a mixture. Raises ``CaptureError`` for others."""
        with doing(COMPARING):
            found = self._confirmed(run, start, gradients)
        if found is not None:
            ref = self.reference
            keep_slopes(self.session, ref.part, (*ref.indices,), found)
        self.gradients()

    def _confirmed(
        self, run: Run, start: Start, gradients: Mapping[fx.Node, Tensor]
    ) -> Slopes | None:
        program, part = self.session.program, self.reference.part
        weights, samples = _weights(run.outputs(program), start), min(part.batch, SAMPLES)
        if weights.keys() != {n for n in self.reference.indices if is_floating(n)}:
            return None  # a number inside the model, or of some outputs alone
        named = program.leaves.items()
        values = run.values(self.session, set(program.leaves.values()))
        return confirmed(
            program,
            self.session.model,
            part,
            [partial(_weighted, weights, i) for i in range(samples)],
            {name: gradients[n][:samples] for name, n in named},
            {name: values[n][:samples].detach() for name, n in named},
            max(largest(w.value) for w in weights.values()),
            self.verifier.heads,
        )


@dataclass(frozen=True)
class _Weight:
    """Of what is made of an output, the places of ``index``: its ``value``, and ∂y_t/∂ it, each
    batch first."""

    index: Index
    value: Tensor
    slope: Tensor


def _weights(outputs: Mapping[fx.Node, Made], start: Start) -> dict[fx.Node, _Weight]:
    """How y_t changes with the outputs."""
    own = {n: v for n, v in outputs.items() if is_floating(n) and is_batched(n)}
    ends = {n: v.made if isinstance(v, Excerpt) else v for n, v in own.items()}
    ends = {n: v.detach().requires_grad_() for n, v in ends.items()}
    moved = {
        n: replace(v, made=ends[n]) if isinstance(v, Excerpt) else ends[n] for n, v in own.items()
    }
    assert start.again is not None
    with torch.enable_grad():
        number = start.again({**outputs, **moved}).sum()
    slopes = torch.autograd.grad(number, list(ends.values()), allow_unused=True)
    return {
        n: _Weight(v.index if isinstance(v, Excerpt) else whole_index(n), ends[n].detach(), slope)
        for (n, v), slope in zip(own.items(), slopes, strict=True)
        if slope is not None
    }


def _weighted(
    weights: Mapping[fx.Node, _Weight],
    sample: int,
    outputs: Mapping[fx.Node, Tensor],
    kept: Indices,
) -> Tensor:
    """One sample's outputs, batch first, each times how y_t changes with it; ``kept``: what there
    is of some."""
    there = {n: within(w.index, kept.get(n, whole_index(n))) for n, w in weights.items()}
    parts = (taken(n, outputs[n], there[n]) * w.slope[sample] for n, w in weights.items())
    return torch.stack([part.sum() for part in parts]).sum()
