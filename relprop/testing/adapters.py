"""``check_adapter``: what an adapter says of a model's tokens, against the inputs themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters import Adapter, Given, Prepared
from relprop.adapters.given import ready
from relprop.testing.faults import Checked, Examination
from relprop.tracer.binding import Inputs, bind


def check_adapter(
    adapter: type[Adapter], model: nn.Module, inputs: Any, *, processor: Any = None
) -> Checked:
    """Examine an adapter on a model of its kind.

    Args:
        inputs: what a user would give: tensors, or text, pictures and sound with ``processor``.

    The laws: the adapter *fits* the model; it *prepares* tensors with the batch first; the *inputs*
    it names are there; there is a *label* for every position, *words* are made of positions that
    there are, *content* and *padding* are bool and of the input's shape, the *clock* names an axis;
    *classes* are strings that are found again; whether the model *predicts the next token*, and
    where, can be told. What the adapter leaves out (``None``) is not asked for.

    Raises ``CheckFailed``, which names every law that is broken and what to do.

    >>> import relprop
    >>> from relprop.demo.review_model import review_model, review_tokenizer
    >>> kind, texts = relprop.adapters.HuggingFace, ["great acting", "a dull plot , sadly"]
    >>> print(relprop.testing.check_adapter(kind, review_model(), texts, processor=review_tokenizer()))
    adapter HuggingFace: fits, prepares, inputs, labels, words, content, padding, clock, classes, next token
    """  # noqa: E501
    examination = Examination(f"adapter {adapter.__name__}")
    fits = adapter.fits(model)
    then = "fits(model) is a class method that returns True for models of its kind"
    if not examination.law("fits", fits is True, f"fits(model) returned {fits!r}", then):
        return examination.end()
    found = adapter()
    prepared = _tried(examination, "prepares", lambda: found.prepare(model, inputs, processor))
    if isinstance(prepared, Prepared) and ready(prepared.inputs):
        examination.law("prepares", True)
        bound = bind(prepared.inputs)
        for name in _named(examination, found, model, bound):
            tensors = dict(zip(bound.names, bound.tensors, strict=True))
            _positions(examination, found, model, Given(name, tensors, bound.batch, prepared))
        _next_token(examination, found, model, bound)
    elif prepared is not None:
        fact = f"prepare() returned {type(prepared).__name__}, or no tensor in it"
        examination.law("prepares", False, fact, "return relprop.adapters.Prepared(tensors)")
    return examination.end()


def _tried(examination: Examination, law: str, call: Callable[[], Any]) -> Any:
    """What a method of the adapter gives; ``None`` where it fails, which is written down."""
    try:
        return call()
    except Exception as error:  # a user's adapter may raise anything
        fact = f"it raised {type(error).__name__}: {error}"
        examination.law(law, False, fact, "return None for what the adapter does not know")
        return None


def _named(
    examination: Examination, adapter: Adapter, model: nn.Module, bound: Inputs
) -> Sequence[str]:
    """The inputs the adapter names, or those that are there."""
    named = _tried(examination, "inputs", lambda: adapter.token_inputs(model, bound))
    unknown = [n for n in named or () if n not in bound.names]
    fact = f"token_inputs names {unknown}; the call has {list(bound.names)}"
    examination.law("inputs", not unknown, fact, "return names of the model's own arguments")
    return tuple(named or bound.names[:1]) if not unknown else ()


def _positions(examination: Examination, adapter: Adapter, model: nn.Module, given: Given) -> None:
    """Labels, words, content and clock of one input."""
    count = given.tensor.shape[1] if given.tensor.dim() > 1 else 1
    labels = _tried(examination, "labels", lambda: adapter.tokens(model, given))
    if labels is not None:
        sizes = [len(row) for row in labels]
        right = sizes == [count] * given.batch and all(
            isinstance(t, str) for r in labels for t in r
        )
        fact = f"rows of {sizes} labels for {given.batch} samples of {count} positions"
        examination.law("labels", right, fact, "one string for every position, padding included")
    words = _tried(examination, "words", lambda: adapter.words(model, given))
    if words is not None:
        places = [p for row in words for _, made in row for p in made]
        right = len(words) == given.batch and all(0 <= p < count for p in places)
        fact = f"{len(words)} rows, positions {min(places, default=0)} to {max(places, default=0)}"
        then = f"a row per sample, each word with positions from 0 to {count - 1}"
        examination.law("words", right, fact, then)
    for law, says in (("content", adapter.content), ("padding", adapter.padding)):
        found = _tried(examination, law, lambda says=says: says(model, given))  # type: ignore[misc]
        if found is not None:
            _of_positions(examination, law, found, given.tensor)
    clock = _tried(examination, "clock", lambda: adapter.clock(model, given))
    right = clock is None or (0 < clock[0] < given.tensor.dim() and clock[1] > 0)
    then = "(axis of the input, seconds per step), or None"
    examination.law("clock", right, f"clock() returned {clock}", then)


def _of_positions(examination: Examination, law: str, value: Any, tensor: Tensor) -> None:
    right = isinstance(value, Tensor) and value.dtype == torch.bool
    right = right and value.dim() == tensor.dim()
    right = right and all(c in (1, n) for c, n in zip(value.shape, tensor.shape, strict=True))
    got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else value
    then = "bool, of the input's shape; an axis without positions may have length 1"
    fact = f"{law}() returned {got} for an input {list(tensor.shape)}"
    examination.law(law, right, fact, then)


def _next_token(
    examination: Examination, adapter: Adapter, model: nn.Module, bound: Inputs
) -> None:
    """The classes' names, and where a model that predicts the next token does."""
    names = _tried(examination, "classes", lambda: adapter.labels(model))
    if names is not None:
        single = [n for n in names if list(names).count(n) == 1]
        lost = [n for n in single if names[adapter.label_index(model, n) or 0] != n]
        right = all(isinstance(n, str) for n in names) and not lost
        fact = f"label_index does not find {lost[:3]} where labels() has them"
        then = "labels(model) in order of class index; label_index gives that index"
        examination.law("classes", right, fact, then)
    length = bound.tensors[0].shape[1] if bound.tensors[0].dim() > 1 else 1
    last = _tried(examination, "next token", lambda: adapter.last_position(bound, length))
    if last is not None:
        causal = adapter.is_causal(model)
        right = last.shape == (bound.batch,) and bool(((last >= 0) & (last < length)).all())
        fact = f"last_position() returned {list(last.shape)}, is_causal() {causal!r}"
        then = f"(batch,) positions from 0 to {length - 1}, and a bool"
        examination.law("next token", right and isinstance(causal, bool), fact, then)
