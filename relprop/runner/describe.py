"""What the tokens of an explained input are, what a target is called, and how sure the model is of
it: the class's label, and the probability that belongs to its logit."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor

from relprop.adapters import Given, describe
from relprop.errors import TargetError
from relprop.layout import Layout, lay_out, placing
from relprop.numerics import at_least_float32
from relprop.rollup import Stream
from relprop.runner.needs import Needs
from relprop.runner.run import Run
from relprop.runner.session import Session
from relprop.targets import Start, class_output


def tokens_described(needs: Needs, run: Run, stream: Stream) -> dict[str, Any]:
    """What the tokens of an input are, as ``TokenScores`` has it: from where in the input by the
    graph, the rest by the adapter."""
    session, inputs = needs.session, run.inputs
    tensors = dict(zip(inputs.names, inputs.tensors, strict=True))
    given = Given(stream.name, tensors, inputs.batch, run.part.prepared)
    layout = _layout(session, run, stream)
    places = {
        "source": layout.source,
        "grid": layout.grid,
        "image": layout.image,
        "spans": layout.spans,
        "extent": layout.extent,
    }
    return places | describe(session.adapter, session.model, given, layout)


def _layout(session: Session, run: Run, stream: Stream) -> Layout:
    """Where the stream's tokens came from. Where the model picks positions by what it computed,
    that is read from the run."""
    places = placing(stream, session.flow)
    if not places:
        return session.layout(stream)
    held = run.forward.values
    chosen = {n: held[n].cpu() for n in places if n in held}
    return lay_out(session.program, stream, session.flow, chosen)


def names_of(
    session: Session, run: Run, start: Start
) -> tuple[tuple[str | None, ...] | None, Tensor | None]:
    """Each sample's label, and its probability, (batch,): of targets that are one class of the
    class output; ``None`` where the model has none.

    A label counts only if the output has as many classes as the model has labels. What turns logits
    into probabilities (softmax, or a sigmoid per class) is for the adapter to know; without that
    there is no probability, only y_t.
    """
    try:
        output = class_output(session.program)
        indices = [label for label in start.label if _is_index(label)]
        if len(output.size) != 1 or len(indices) != len(start.label):
            return None, None
    except TargetError:
        return None, None
    samples = range(run.inputs.batch)
    logits = run.context(session).values(output.node, samples)
    known = session.adapter.labels(session.model)
    labels = tuple(known[k] for k in indices) if len(known) == logits.shape[1] else None
    wide = logits.to(at_least_float32(logits.dtype))
    found = session.adapter.probabilities(session.model, wide)
    rows = torch.arange(len(samples))
    return labels, None if found is None else found[rows, indices]


def _is_index(label: object) -> TypeGuard[int]:
    return isinstance(label, int) and not isinstance(label, bool)
