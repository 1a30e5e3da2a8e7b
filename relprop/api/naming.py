"""What a target is called, and how sure the model is of it: the class's label, and the probability
that belongs to its logit."""

from __future__ import annotations

import torch
from torch import Tensor

from relprop.api.run import Run
from relprop.errors import TargetError
from relprop.numerics import at_least_float32
from relprop.targets import Context, Start, class_output
from relprop.targets.index import own_rows


def names_of(run: Run, start: Start) -> tuple[tuple[str | None, ...] | None, Tensor | None]:
    """Each sample's label, and its probability, (batch,): of targets that are one class of the
    class output; ``None`` where the model has none.

    A label counts only if the output has as many classes as the model has labels. What turns logits
    into probabilities (softmax, or a sigmoid per class) is for the adapter to know; without that
    there is no probability, only y_t.
    """
    session = run.session
    try:
        name, node = class_output(session.program)
        if len(own_rows(name, node)) != 1 or not all(
            isinstance(k, int) and not isinstance(k, bool) for k in start.label
        ):
            return None, None
    except TargetError:
        return None, None
    context = Context(
        session.program, session.model, session.adapter, run.inputs, run.outputs(), session.rules
    )
    samples = range(run.inputs.batch)
    logits = context.values(node, samples)
    known = session.adapter.labels(session.model)
    labels = tuple(known[k] for k in start.label) if len(known) == logits.shape[1] else None
    chances = session.adapter.probabilities(
        session.model, logits.to(at_least_float32(logits.dtype))
    )
    return labels, None if chances is None else chances[
        torch.arange(len(samples)), list(start.label)
    ]
