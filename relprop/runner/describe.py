"""What the tokens of an explained input are, what a target is called, and how sure the model is of
it: the class's label, and the probability that belongs to its logit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Adapter, Given, describe
from relprop.adapters.processing import tokenizer_of
from relprop.errors import RelpropWarning, TargetError, UnnamedClassWarning
from relprop.interpreter.points import Excerpt, Made
from relprop.layout import Layout, lay_out, placing
from relprop.numerics import at_least_float32
from relprop.rollup import Stream
from relprop.runner.needs import Needs
from relprop.runner.run import Part, Run
from relprop.runner.session import Session
from relprop.targets import class_output
from relprop.targets.start import has_batch_axis

#: What transformers calls classes that nobody has named.
NOBODYS = re.compile(r"LABEL_\d+")
#: Each sample's label, and its probability, (batch,).
Names = tuple[tuple[str | None, ...] | None, Tensor | None]


def tokens_described(needs: Needs, run: Run, stream: Stream) -> dict[str, Any]:
    """What the tokens of an input are, as ``TokenScores`` has it: from where in the input by the
    graph, the rest by the adapter."""
    session = needs.session
    layout = layout_of(session, run, stream)
    return described_by(session.adapter, session.model, run.part, stream.name, layout)


def described_by(
    adapter: Adapter, model: nn.Module, part: Part, name: str, layout: Layout
) -> dict[str, Any]:
    """The same for the tokens of the input ``name`` that lie as ``layout`` says."""
    inputs = part.inputs
    tensors = dict(zip(inputs.names, inputs.tensors, strict=True))
    given = Given(name, tensors, inputs.batch, part.prepared)
    places = {
        "source": layout.source,
        "grid": layout.grid,
        "image": layout.image,
        "spans": layout.spans,
        "extent": layout.extent,
    }
    return places | describe(adapter, model, given, layout)


def layout_of(session: Session, run: Run, stream: Stream) -> Layout:
    """Where the stream's tokens came from. Where the model picks positions by what it computed,
    that is read from the run."""
    places = placing(stream, session.flow)
    if not places:
        return session.layout(stream)
    held = run.forward.values
    chosen = {n: held[n].cpu() for n in places if n in held}
    return lay_out(session.program, stream, session.flow, chosen)


def names_of(
    session: Session, outputs: Mapping[fx.Node, Made], chosen: Sequence[object], processor: object
) -> Names:
    """What is ``chosen`` in each sample, by name: of targets that are one class of the class
    output, or one token of a vocabulary. ``outputs``: the values of the model's outputs, batch
    first.

    What turns logits into probabilities (softmax, or a sigmoid per class) is for the adapter to
    know; without that there is no probability, only y_t.
    """
    try:
        output = class_output(session.program)
        axes = len(output.size)
    except TargetError:
        return None, None
    if axes == 2:
        return _tokens_named(session, chosen, processor), None
    if axes != 1 or not all(map(_is_index, chosen)):
        return None, None
    made = outputs[output.node]
    value = (made.made if isinstance(made, Excerpt) else made).detach()
    logits = value[:, 0] if has_batch_axis(output.node) else value
    known = session.adapter.labels(session.model)
    found = probabilities(session.adapter, session.model, logits)
    session.tell(_notice_of_labels(known, logits.shape[1]))
    return names_among(chosen, known, found, logits.shape[1])


def _notice_of_labels(known: Sequence[str], classes: int) -> list[RelpropWarning]:
    """Of labels that cannot be those of so many classes, one of which may mean "nothing"."""
    if all(map(NOBODYS.fullmatch, known)) or len(known) in (classes, classes - 1):
        return []
    fact = f"the output has {classes} classes and the model {len(known)} labels: none is shown"
    then = "make them as many: config.id2label, or labels() of your adapter"
    return [UnnamedClassWarning(fact, then=[then])]


def _tokens_named(
    session: Session, chosen: Sequence[object], processor: object
) -> tuple[str | None, ...] | None:
    """Targets that are a token at a position, as text, if the tokenizer is known."""
    decode = getattr(tokenizer_of(processor), "decode", None)
    if decode is None or not all(map(_is_pair, chosen)):
        return None
    causal = session.adapter.is_causal(session.model)
    pairs: list[tuple[int, int]] = list(chosen)  # type: ignore[arg-type]
    return tuple(
        f"next token {decode([token])!r}" if causal else f"token {decode([token])!r} at {position}"
        for position, token in pairs
    )


def _is_pair(label: object) -> bool:
    return isinstance(label, tuple) and len(label) == 2 and all(map(_is_index, label))


def names_among(
    chosen: Sequence[object], known: Sequence[str], probable: Tensor | None, classes: int
) -> Names:
    """Each sample's label, and its probability, (batch,); ``None`` where the model has none.
    ``probable``: those of all ``classes``. A label counts only if there are as many."""
    indices = [k for k in chosen if _is_index(k)]
    labels = tuple(known[k] for k in indices) if len(known) == classes else None
    rows = torch.arange(len(indices))
    return labels, None if probable is None else probable[rows, indices]


def probabilities(adapter: Adapter, model: nn.Module, logits: Tensor) -> Tensor | None:
    """Those of all classes, (batch, classes), if the adapter knows how they are made."""
    return adapter.probabilities(model, logits.to(at_least_float32(logits.dtype)))


def _is_index(label: object) -> TypeGuard[int]:
    return isinstance(label, int) and not isinstance(label, bool)
