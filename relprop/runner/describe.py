"""What the tokens of an explained input are, what a target is called, and how sure the model is of
it: the class's label, and the probability that belongs to its logit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, fx, nn

from relprop.adapters import Adapter, Given, describe
from relprop.adapters.processing import tokenizer_of
from relprop.errors import RelpropWarning, TargetError, UnnamedClassWarning
from relprop.explanation import Prediction
from relprop.interpreter.points import Excerpt, Made
from relprop.layout import Layout, lay_out, placing
from relprop.numerics import at_least_float32
from relprop.operations import Kind, kind
from relprop.rollup import Stream
from relprop.runner.needs import Needs
from relprop.runner.run import Part, Run
from relprop.runner.session import Session
from relprop.targets.answers import Rather
from relprop.targets.outputs import class_output, has_batch_axis, probability

#: What transformers calls classes that nobody has named.
NOBODYS = re.compile(r"LABEL_\d+")
#: How far probabilities of classes that exclude each other may add up to another number than 1.
AT_ONCE = 1e-5


class Names(NamedTuple):
    """What is explained in each sample by name, its probability, (batch,), and what the model
    itself says; ``None`` where it is not known."""

    labels: tuple[str | None, ...] | None = None
    probability: Tensor | None = None
    predictions: tuple[Prediction, ...] | None = None


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
    places = {name: value for name, value in vars(layout).items() if name != "axes"}
    return places | describe(adapter, model, given, layout)


def layout_of(session: Session, run: Run, stream: Stream) -> Layout:
    """Where the stream's tokens came from. Where the model picks positions by what it computed,
    that is read from the run."""
    places = placing(stream, session.flow)
    if not places:
        return session.once(lay_out, session.program, stream, session.flow)
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
    know; without that there is no probability, only y_t. Of a contrast both sides are named.
    """
    if chosen and all(isinstance(c, Rather) for c in chosen):
        sides = zip(*(c.sides for c in chosen), strict=True)  # type: ignore[attr-defined]
        both = [names_of(session, outputs, side, processor) for side in sides]
        if any(names.labels is None for names in both):
            return Names(predictions=both[0].predictions)
        pairs = zip(*(names.labels or () for names in both), strict=True)
        return Names(tuple(map(_rather, pairs)), predictions=both[0].predictions)
    try:
        output = class_output(session.program)
        axes = len(output.size)
    except TargetError:
        return Names()
    adapter, model, made = session.adapter, session.model, outputs[output.node]
    if axes == 2:
        leading = has_batch_axis(output.node)
        return _tokens_named(adapter, model, made, chosen, processor, leading=leading)
    if axes != 1 or not all(map(_is_index, chosen)):
        return Names()
    value = (made.made if isinstance(made, Excerpt) else made).detach()
    logits = value[:, 0] if has_batch_axis(output.node) else value
    session.warn_once(_notice_of_labels(adapter.labels(model), logits.shape[1]))
    found = _as_they_are(output.node, logits)
    if found is None:
        found = probabilities(adapter, model, logits)
    return named(adapter, model, logits, found, chosen, processor)


def named(
    adapter: Adapter,
    model: nn.Module,
    logits: Tensor,
    probable: Tensor | None,
    chosen: Sequence[object],
    processor: object,
) -> Names:
    """The same of the class output's ``logits``, as the model returns them, and the ``probable``
    share of each of its classes: each sample's class by name, with its probability, and the class
    that the model itself says. A label counts only if there are as many; where probabilities do not
    add up to 1, labels are true side by side and none of them is the answer."""
    if logits.dim() == 3:
        return _tokens_named(adapter, model, logits, chosen, processor, leading=False)
    indices, known = [k for k in chosen if _is_index(k)], adapter.labels(model)
    if logits.dim() != 2 or len(indices) < len(chosen):
        return Names()
    named = known if len(known) == logits.shape[1] else ()
    labels = tuple(named[k] for k in indices) if named else None
    one = None if probable is None else probable[torch.arange(len(indices)), indices]
    apart = probable is not None and not bool((probable.sum(1) - 1).abs().max() < AT_ONCE)
    if apart or logits.shape[1] < 2:
        return Names(labels, one)
    return Names(labels, one, _predicted(logits, probable, lambda k: named[k] if named else None))


def _as_they_are(output: fx.Node, value: Tensor) -> Tensor | None:
    """The probabilities that an output itself is, where it ends in a softmax or a sigmoid."""
    source = probability(output)
    if source is None:
        return None
    found = value.exp() if kind(source) is Kind.LOG_SOFTMAX else value
    return found if bool(((found >= 0) & (found <= 1)).all()) else None


def _rather(names: tuple[str | None, ...]) -> str:
    """Two names; what both begin with stands once."""
    for_it, against = map(str, names)
    begins = "next token "
    shared = for_it.startswith(begins) and against.startswith(begins)
    return f"{for_it} rather than {against.removeprefix(begins) if shared else against}"


def _notice_of_labels(known: Sequence[str], classes: int) -> Iterator[RelpropWarning]:
    """Of labels that cannot be those of so many classes, one of which may mean "nothing"."""
    if not all(map(NOBODYS.fullmatch, known)) and len(known) not in (classes, classes - 1):
        fact = f"the output has {classes} classes and the model {len(known)} labels: none is shown"
        then = "make them as many: config.id2label, or labels() of your adapter"
        yield UnnamedClassWarning(fact, then=[then])


def _tokens_named(
    adapter: Adapter,
    model: nn.Module,
    made: Made,
    chosen: Sequence[object],
    processor: object,
    *,
    leading: bool,
) -> Names:
    """Targets that are a class at a position, by its label, or a token there, as text, if the
    tokenizer is known; and of a model that predicts the next token which one it does."""
    if not all(map(_is_pair, chosen)):
        return Names()
    pairs: list[tuple[int, int]] = list(chosen)  # type: ignore[arg-type]
    tokenizer, known = tokenizer_of(processor), adapter.labels(model)
    decode = getattr(tokenizer, "decode", None)
    positions = torch.tensor([position for position, _ in pairs])
    rows = torch.arange(len(pairs))
    first = (rows, torch.zeros_like(rows)) if leading else (rows,)
    if not adapter.is_causal(model) and len(known) == made.shape[-1]:
        return Names(tuple(f"{known[k]!r} at {position}" for position, k in pairs))
    if not adapter.is_causal(model) and decode is None:
        return Names()
    logits = made[(*first, positions)].detach()
    shares = logits.to(at_least_float32(logits.dtype)).softmax(1)
    of_chosen = shares[rows, [token for _, token in pairs]]
    if decode is not None and not adapter.is_causal(model):
        named = tuple(f"token {decode([t])!r} at {position}" for position, t in pairs)
        of_words = logits.shape[1] >= getattr(tokenizer, "vocab_size", math.inf)
        return Names(named, of_chosen if of_words else None)

    def name(token: int) -> str | None:
        return None if decode is None else f"next token {decode([token])!r}"

    labels = None if decode is None else tuple(name(token) for _, token in pairs)
    return Names(labels, of_chosen, _predicted(logits, shares, name))


def _predicted(
    logits: Tensor, probable: Tensor | None, name: Callable[[int], str | None]
) -> tuple[Prediction, ...]:
    """Of each sample the largest of its ``logits``, (batch, classes)."""
    largest, at = logits.max(1)
    shares = None if probable is None else probable.gather(1, at[:, None])[:, 0].tolist()
    return tuple(
        Prediction(index, name(index), value, None if shares is None else shares[i])
        for i, (index, value) in enumerate(zip(at.tolist(), largest.tolist(), strict=True))
    )


def _is_pair(label: object) -> bool:
    return isinstance(label, tuple) and len(label) == 2 and all(map(_is_index, label))


def probabilities(adapter: Adapter, model: nn.Module, logits: Tensor) -> Tensor | None:
    """Those of all classes, (batch, classes), if the adapter knows how they are made."""
    return adapter.probabilities(model, logits.to(at_least_float32(logits.dtype)))


def _is_index(label: object) -> TypeGuard[int]:
    return isinstance(label, int) and not isinstance(label, bool)
