"""Hugging Face models: which inputs are tokens, which of them are special or padding, their words,
pictures and seconds, and what the classes are called."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.adapters.base import Adapter, Given, Prepared, Word, ready
from relprop.adapters.masks import is_special, last_seen, no_padding, records, special_ids
from relprop.adapters.processing import (
    feature_extractor_of,
    is_function_of_pictures,
    kind_of,
    processed,
    texts_in,
    tokenizer_of,
)
from relprop.adapters.sound import measured_clock
from relprop.adapters.texts import Text, decoded, recorded, with_turns
from relprop.adapters.words import pieces_of, words_from_ids, words_from_record
from relprop.errors import InputError, TargetError, message
from relprop.tracer.binding import Inputs

CONTENT = re.compile(
    r"(^|_)(inputs_embeds|visual_embeds|image_embeds|visual_feats|pixel_values|input_features|input_values)$|^decoder_input_ids$"
)
GIVE_PROCESSOR = (
    "give what reads it, too: processor=tokenizer  # or an image processor, a feature extractor"
)
_clocks: dict[tuple[str, str], tuple[int, float] | None] = {}
"""By an extractor's input and what the extractor prints, which is all of its settings."""


class HuggingFace(Adapter):
    """Reads the config, the model's own ``main_input_name``, and tokenizers and other processors;
    never a model's or a class's name."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """A ``PreTrainedModel``; transformers is looked up, never imported: while another thread
        imports it, it has no models yet."""
        transformers = sys.modules.get("transformers.modeling_utils")
        return isinstance(model, getattr(transformers, "PreTrainedModel", ()))

    def prepare(self, model: nn.Module, inputs: Any, processor: Any) -> Prepared:
        """Text, pictures or sound through the tokenizer or processor of the model; ready inputs as
        they are."""
        texts = texts_in(inputs)
        if not ready(inputs):
            if is_function_of_pictures(processor) and kind_of(inputs) == "a picture":
                return super().prepare(model, inputs, processor)
            if processor is not None:
                made = processed(model, inputs, processor)
                known = tuple(getattr(made.inputs, "encodings", None) or ())
                first = _ids_first(made.inputs)
                return replace(made, inputs=first, encodings=known, texts=texts)
            if kind := kind_of(inputs):
                fact = f"inputs is {kind}, which the model does not read itself"
                raise InputError(message(fact, then=[GIVE_PROCESSOR]))
        encodings = tuple(getattr(inputs, "encodings", None) or ())
        return Prepared(_ids_first(inputs), processor, encodings, texts=texts)

    def token_inputs(self, model: nn.Module, inputs: Inputs) -> tuple[str, ...] | None:
        """The main inputs of the model and of its parts (text and vision towers), a decoder's ids,
        ready embeddings and features."""
        names = [getattr(module, "main_input_name", ()) for module in model.modules()]
        main = {
            str(name)
            for given in names
            for name in (given if isinstance(given, (list, tuple)) else [given])
        }
        found = tuple(name for name in inputs.names if name in main or CONTENT.search(name))
        return found or (inputs.names[:1] if inputs.names[0].startswith("input_") else None)

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """From ``config.id2label``, then ``config.label2id``."""
        found = [int(k) for k, known in _names(model).items() if known == label]
        if len(found) > 1:
            raise TargetError(
                f"label {label!r} is that of {len(found)} classes, "
                f"{', '.join(map(str, found))}: give the index"
            )
        other = (getattr(model.config, "label2id", None) or {}).get(label)
        if found:
            return found[0]
        return None if other is None else int(other)

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """From ``config.id2label``."""
        names = _names(model)
        return tuple(str(names[k]) for k in sorted(names, key=int))

    def probabilities(self, model: nn.Module, logits: Tensor) -> Tensor | None:
        """As transformers' own classification pipelines: a sigmoid per class for several labels at
        once and for one logit, else a softmax."""
        regression = getattr(model.config, "problem_type", None) == "regression"
        if regression or len(_names(model)) != logits.shape[1]:
            return None
        apart = self.is_multi_label(model) or logits.shape[1] == 1
        return logits.sigmoid() if apart else logits.softmax(1)

    def is_multi_label(self, model: nn.Module) -> bool:
        """By ``config.problem_type``."""
        return getattr(model.config, "problem_type", None) == "multi_label_classification"

    def is_causal(self, model: nn.Module) -> bool:
        """A model that generates, by itself or by its decoder."""
        can = getattr(model, "can_generate", None)
        return bool(callable(can) and can())

    def last_position(self, inputs: Inputs, length: int) -> Tensor:
        """The last position that the mask of the generated sequence (a decoder's, if it has inputs
        of its own) lets any query see.

        Left and right padding alike; masks (batch, positions), and (batch, ..., queries, positions)
        of booleans or of what is added to scores. Where the model puts positions of its own before
        the sequence (image tokens), they come first.
        """
        seen = last_seen(inputs, length)
        return super().last_position(inputs, length) if seen is None else seen

    def tokens(self, model: nn.Module, given: Given) -> list[list[str]] | None:
        """The tokenizer's own pieces if its record or it itself is known, else the ids as text."""
        ids, tokenizer = given.tensor, tokenizer_of(given.prepared.processor)
        if ids.is_floating_point() or ids.dim() != 2:
            return None
        if encodings := records(given):
            return [list(encoding.tokens) for encoding in encodings]
        rows = ids.tolist()
        pieces = rows if tokenizer is None else [pieces_of(row, tokenizer) for row in rows]
        return [[str(piece) for piece in row] for row in pieces]

    def words(self, model: nn.Module, given: Given) -> list[list[Word]] | None:
        """By the tokenizer's record of the text, else by its way back from ids to text."""
        ids, tokenizer = given.tensor, tokenizer_of(given.prepared.processor)
        encodings = records(given)
        if ids.is_floating_point() or ids.dim() != 2 or not (encodings or tokenizer):
            return None
        content = self.content(model, given)
        special = (torch.zeros_like(ids) > 0 if content is None else ~content).tolist()
        if encodings:
            both = zip(encodings, special, strict=True)
            return [words_from_record(e, s, tokenizer) for e, s in both]
        rows = zip(ids.tolist(), special, strict=True)
        return [words_from_ids(row, s, tokenizer) for row, s in rows]

    def texts(self, model: nn.Module, given: Given) -> list[Text] | None:
        """By the tokenizer's record of the text, else by its way back from ids to text."""
        ids, tokenizer = given.tensor, tokenizer_of(given.prepared.processor)
        if ids.is_floating_point() or ids.dim() != 2:
            return None
        encodings, known = given.prepared.encodings, given.prepared.texts
        rows, found = ids.tolist(), list[Text | None]([None] * len(ids))
        if len(encodings) == len(known) == len(ids):
            found = list(map(recorded, encodings, known, rows))
        if tokenizer is None:
            whole = [text for text in found if text is not None and len(text.spans) == ids.shape[1]]
            return whole if len(whole) == len(ids) else None
        texts = [decoded(row, tokenizer, text) for row, text in zip(rows, found, strict=True)]
        return [with_turns(text, tokenizer) for text in texts]

    def content(self, model: nn.Module, given: Given) -> Tensor | None:
        """Neither padding nor a special token: special by the tokenizer's record, else its special
        ids, else the config's; padding by the mask."""
        mask = no_padding(given)
        if given.tensor.is_floating_point():
            return mask
        special = is_special(given, self.special_ids(model, given.prepared.processor))
        return ~special if mask is None else ~special & mask.cpu()

    def padding(self, model: nn.Module, given: Given) -> Tensor | None:
        """By the mask that goes with the input."""
        mask = no_padding(given)
        return None if mask is None else ~mask.cpu()

    def special_ids(self, model: nn.Module, processor: Any) -> tuple[int, ...]:
        """The tokenizer's, else the config's."""
        return tuple(sorted(special_ids(model, tokenizer_of(processor))))

    def clock(self, model: nn.Module, given: Given) -> tuple[int, float] | None:
        """Measured on the feature extractor, if there is one."""
        extractor = feature_extractor_of(given.prepared.processor)
        if extractor is None or not given.tensor.is_floating_point():
            return None
        if given.stream not in getattr(extractor, "model_input_names", ()):
            return None
        key = (given.stream, repr(extractor))
        if key not in _clocks:
            _clocks[key] = _measured(extractor, given.stream)
        return _clocks[key]


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
        tensor: Tensor = extractor(sound, sampling_rate=rate, return_tensors="pt")[name]
        return tensor

    try:
        return measured_clock(extract, rate)
    except (TypeError, ValueError, RuntimeError, KeyError):
        return None


def _names(model: nn.Module) -> Mapping[Any, Any]:
    """The classes' labels by index, as the config has them."""
    names: Any = getattr(model.config, "id2label", None)
    return names or {}
