"""An adapter says what the tokens *are*. It never says how the model works, and never sees a rule.

Write one by subclassing ``Adapter`` and registering it (docs/write-an-adapter.md). Every method may
be left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.adapters.given import Given, Prepared, Word, cannot_prepare, ready
from relprop.adapters.masks import is_special, no_padding, records, special_ids
from relprop.adapters.pictures import originals
from relprop.adapters.processing import (
    feature_extractor_of,
    is_function_of_pictures,
    processed,
    texts_in,
    tokenizer_of,
)
from relprop.adapters.sound import measured_clock
from relprop.adapters.texts import Text, decoded, recorded, with_turns, written
from relprop.adapters.words import pieces_of, words_from_ids, words_from_record
from relprop.errors import InputError, TargetError
from relprop.tracer.binding import Inputs
from relprop.tracer.modules import safe_getattr
from relprop.tracer.offloaded import home_of

_clocks: dict[tuple[str, str], tuple[int, float] | None] = {}
"""By an extractor's input and what the extractor prints, which is all of its settings."""


class Adapter:
    """What relprop asks about a model's inputs and classes; this one fits any PyTorch model, and
    adapters of your own derive from it. Floating-point inputs are explained themselves, the first
    integer input through its embedding. Words, pictures and seconds come from the tokenizer, image
    processor or feature extractor of transformers, where one is given."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether this adapter knows what ``model``'s tokens are."""
        return True

    def prepare(self, model: nn.Module, inputs: Any, processor: Any) -> Prepared:
        """The model's inputs from what the user gave: texts, pictures or sound by a processor of
        transformers, or each thing by a function that makes its tensor; ready inputs as they
        are."""
        encodings = tuple(getattr(inputs, "encodings", None) or ())
        if processor is None or ready(inputs):
            return Prepared(_ids_first(inputs), processor, encodings, texts=texts_in(inputs))
        if isinstance(inputs, (list, tuple)) and not inputs:
            raise InputError("inputs is an empty list: there is nothing to explain")
        if not is_function_of_pictures(processor):
            made = processed(model, inputs, processor)
            return replace(made, inputs=_ids_first(made.inputs), texts=texts_in(inputs))
        things = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        try:
            tensors = torch.stack([processor(thing) for thing in things]).to(home_of(model)[0])
        except (TypeError, RuntimeError, ValueError, AttributeError) as error:
            raise cannot_prepare(things[0], processor, error) from error
        return Prepared(
            tensors, processor, originals=originals("input_0", things, processor, tensors)
        )

    def token_inputs(self, model: nn.Module, inputs: Inputs) -> tuple[str, ...] | None:
        """The names of the inputs to explain; ``None`` leaves it to the graph."""
        return None

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """The class index of a label, or ``None`` if the model knows no such label. Raises
        ``TargetError`` for a label of several classes."""
        return only_class(label, enumerate(self.labels(model)))

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """The labels the model knows, in order of class index."""
        return ()

    def probabilities(self, model: nn.Module, logits: Tensor) -> Tensor | None:
        """The probabilities that the model's users read from ``logits`` (batch, classes), by
        ``config.problem_type``; ``None`` if nothing says which function makes them."""
        if self.is_multi_label(model):
            return logits.sigmoid()
        return logits.softmax(1) if _problem(model) == "single_label_classification" else None

    def is_multi_label(self, model: nn.Module) -> bool:
        """Whether several of the model's classes can be true of one sample: by
        ``config.problem_type``, as transformers has it; any module may have one."""
        return _problem(model) == "multi_label_classification"

    def is_causal(self, model: nn.Module) -> bool:
        """Whether the model predicts the next token, so that ``target=None`` means the last real
        position."""
        return False

    def last_position(self, inputs: Inputs, length: int) -> Tensor:
        """The last real position of every sample, (batch,)."""
        return torch.full((inputs.batch,), length - 1)

    def _by_name(self, given: Given) -> bool:
        """Whether inputs are called as transformers calls them, so that ``input_ids`` are a
        tokenizer's and ``attention_mask`` says what is padding: here where a processor was given,
        or has left its record."""
        return given.prepared.processor is not None or bool(given.prepared.encodings)

    def _are_ids(self, given: Given) -> bool:
        ids = given.tensor
        return self._by_name(given) and not ids.is_floating_point() and ids.dim() == 2

    def tokens(self, model: nn.Module, given: Given) -> list[list[str]] | None:
        """A label for every position of every sample, or ``None``: the tokenizer's own pieces if
        its record or it itself is known, else the ids as text."""
        ids, tokenizer = given.tensor, tokenizer_of(given.prepared.processor)
        if not self._are_ids(given):
            return None
        if encodings := records(given):
            return [list(encoding.tokens) for encoding in encodings]
        rows = ids.tolist()
        pieces = rows if tokenizer is None else [pieces_of(row, tokenizer) for row in rows]
        return [[str(piece) for piece in row] for row in pieces]

    def words(self, model: nn.Module, given: Given) -> list[list[Word]] | None:
        """The words of every sample, each with the positions it is made of, or ``None``: by the
        tokenizer's record of the text, else by its way back from ids to text."""
        ids, tokenizer = given.tensor, tokenizer_of(given.prepared.processor)
        if not self._are_ids(given) or not ((encodings := records(given)) or tokenizer):
            return None
        content = self.content(model, given)
        special = (torch.zeros_like(ids) > 0 if content is None else ~content).tolist()
        if encodings:
            both = zip(encodings, special, strict=True)
            return [words_from_record(e, s, tokenizer) for e, s in both]
        rows = zip(ids.tolist(), special, strict=True)
        return [words_from_ids(row, s, tokenizer) for row, s in rows]

    def texts(self, model: nn.Module, given: Given) -> list[Text] | None:
        """The text of every sample, with the characters that each position was made from, or
        ``None``: by the tokenizer's record of the text, else by its way back from ids to text."""
        ids, tokenizer = given.tensor, tokenizer_of(given.prepared.processor)
        if not self._are_ids(given):
            return None
        encodings, known = given.prepared.encodings, given.prepared.texts
        rows, found = ids.tolist(), list[Text | None]([None] * len(ids))
        if len(known) != len(ids) and tokenizer is not None:
            known = tuple(written(e, tokenizer) for e in encodings)
        if len(encodings) == len(known) == len(ids):
            found = list(map(recorded, encodings, known, rows))
        if tokenizer is None:
            whole = [text for text in found if text is not None and len(text.spans) == ids.shape[1]]
            return whole if len(whole) == len(ids) else None
        texts = [decoded(row, tokenizer, text) for row, text in zip(rows, found, strict=True)]
        return [with_turns(text, tokenizer) for text in texts]

    def content(self, model: nn.Module, given: Given) -> Tensor | None:
        """Which positions are content, bool, of ``given.tensor``'s shape (axes without positions
        may have length 1); ``None``: all of them. Neither padding, by the mask, nor a special
        token, by the tokenizer's record, else by its special ids."""
        if not self._by_name(given):
            return None
        mask = no_padding(given)
        if given.tensor.is_floating_point():
            return mask
        special = is_special(given, self.special_ids(model, given.prepared.processor))
        return ~special if mask is None else ~special & mask.cpu()

    def padding(self, model: nn.Module, given: Given) -> Tensor | None:
        """Which positions are padding, bool, of ``given.tensor``'s shape (axes without positions
        may have length 1); ``None``: none of them. By the mask that goes with the input."""
        mask = no_padding(given) if self._by_name(given) else None
        return None if mask is None else ~mask.cpu()

    def special_ids(self, model: nn.Module, processor: Any) -> tuple[int, ...]:
        """The ids that are special tokens, whatever text they stand in: the tokenizer's. What a
        saved explainer remembers of ``content``."""
        return tuple(sorted(special_ids(tokenizer_of(processor))))

    def clock(self, model: nn.Module, given: Given) -> tuple[int, float] | None:
        """Which axis of ``given.tensor`` is time, and how many seconds one step of it is; ``None``
        if that is not known. Measured on the feature extractor, if there is one."""
        extractor = feature_extractor_of(given.prepared.processor)
        if extractor is None or not given.tensor.is_floating_point():
            return None
        if given.stream not in getattr(extractor, "model_input_names", ()):
            return None
        key = (given.stream, repr(extractor))
        if key not in _clocks:
            _clocks[key] = _measured(extractor, given.stream)
        return _clocks[key]


def only_class(label: str, names: Iterable[tuple[Any, str]]) -> int | None:
    """The index of the class that has this name, if any has. Raises ``TargetError`` where several
    have."""
    found = [int(k) for k, known in names if known == label]
    if len(found) > 1:
        fact = f"label {label!r} is that of {len(found)} classes, {', '.join(map(str, found))}"
        raise TargetError(f"{fact}: give the index")
    return found[0] if found else None


def _ids_first(inputs: Any) -> Any:
    """Inputs by name in the order that says how many samples there are: a text may come with
    several pictures."""
    if not hasattr(inputs, "keys") or "input_ids" not in inputs:
        return inputs
    names = list(inputs.keys())
    lengths = {len(inputs[n]) for n in (names[0], "input_ids") if isinstance(inputs[n], Tensor)}
    if len(lengths) < 2:
        return inputs
    return {n: inputs[n] for n in ("input_ids", *(n for n in names if n != "input_ids"))}


def _measured(extractor: Any, name: str) -> tuple[int, float] | None:
    """The clock of one of an extractor's inputs; ``None`` if it takes no plain recording."""
    rate = int(extractor.sampling_rate)

    def extract(sound: np.ndarray) -> Tensor:
        return extractor(sound, sampling_rate=rate, return_tensors="pt")[name]

    try:
        return measured_clock(extract, rate)
    except (TypeError, ValueError, RuntimeError, KeyError):
        return None


def _problem(model: nn.Module) -> Any:
    return safe_getattr(getattr(model, "config", None), "problem_type")
