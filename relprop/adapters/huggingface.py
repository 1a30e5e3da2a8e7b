"""Hugging Face models: which inputs are tokens, which of them are special or padding, their words,
pictures and seconds, and what the classes are called."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from relprop.adapters.base import Adapter, only_class
from relprop.adapters.given import Given, Prepared, ready
from relprop.adapters.masks import config_ids, last_seen
from relprop.adapters.processing import kind_of, tokenizer_of
from relprop.errors import InputError
from relprop.tracer.advice import made_of
from relprop.tracer.binding import Inputs
from relprop.tracer.modules import safe_getattr

CONTENT = re.compile(
    r"(^|_)(inputs_embeds|visual_embeds|image_embeds|visual_feats|pixel_values|input_features|input_values)$|^decoder_input_ids$"
)
GIVE_PROCESSOR = (
    "give what reads it, too: processor=tokenizer  # or an image processor, a feature extractor"
)


class HuggingFace(Adapter):
    """Reads the config, the model's own ``main_input_name``, and tokenizers and other processors;
    never a model's or a class's name. Of a module around such a model it reads the same, but for
    labels, which are those of a head that it has replaced."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """A ``PreTrainedModel``, or a module that holds one."""
        return _pretrained(model) is not None

    def prepare(self, model: nn.Module, inputs: Any, processor: Any) -> Prepared:
        """Text, pictures or sound through the tokenizer or processor of the model; ready inputs as
        they are."""
        things = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
        kind = next((k for thing in things if (k := kind_of(thing))), "")
        if processor is None and not ready(inputs) and kind:
            array = isinstance(inputs, np.ndarray) and inputs.ndim == 2 and inputs.dtype.kind == "i"
            fact = (
                f"inputs is {'an array' if array else kind}, which the model does not read itself"
            )
            raise InputError(fact, then=[*made_of(inputs)[: int(array)], GIVE_PROCESSOR])
        return super().prepare(model, inputs, processor)

    def _by_name(self, given: Given) -> bool:
        """They are, whatever was given."""
        return True

    def special_ids(self, model: nn.Module, processor: Any) -> tuple[int, ...]:
        """The tokenizer's, else the config's."""
        if tokenizer_of(processor) is not None:
            return super().special_ids(model, processor)
        return tuple(sorted(config_ids(getattr(_pretrained(model), "config", None))))

    def token_inputs(self, model: nn.Module, inputs: Inputs) -> tuple[str, ...] | None:
        """The main inputs of the model and of its parts (text and vision towers), a decoder's ids,
        ready embeddings and features; of a module around a model that is left to the graph."""
        if _is_around_one(model):
            return None
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
        found = only_class(label, _names(model).items())
        other = (_of_config(model, "label2id") or {}).get(label)
        return int(other) if found is None and other is not None else found

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """From ``config.id2label``."""
        names = _names(model)
        return tuple(str(names[k]) for k in sorted(names, key=int))

    def probabilities(self, model: nn.Module, logits: Tensor) -> Tensor | None:
        """As transformers' own classification pipelines: a sigmoid per class for several labels at
        once and for one logit, else a softmax."""
        regression = _of_config(model, "problem_type") == "regression"
        if regression or len(_names(model)) != logits.shape[1]:
            return super().probabilities(model, logits) if _is_around_one(model) else None
        apart = self.is_multi_label(model) or logits.shape[1] == 1
        return logits.sigmoid() if apart else logits.softmax(1)

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


def _pretrained(model: nn.Module) -> nn.Module | None:
    """The first ``PreTrainedModel`` in a module; transformers is looked up, never imported: while
    another thread imports it, it has no models yet."""
    transformers = sys.modules.get("transformers.modeling_utils")
    kind = getattr(transformers, "PreTrainedModel", ())
    return next((m for m in model.modules() if isinstance(m, kind)), None)


def _is_around_one(model: nn.Module) -> bool:
    """Whether a module of the user's own holds the ``PreTrainedModel``; adapters' wrappers do not
    count."""
    inner = getattr(model, "get_base_model", lambda: model)()
    return inner is not _pretrained(inner)


def _of_config(model: nn.Module, name: str) -> Any:
    """What the config says; ``None`` of a module around a model, whose head is its own."""
    return None if _is_around_one(model) else safe_getattr(model.config, name)


def _names(model: nn.Module) -> Mapping[Any, Any]:
    """The classes' labels by index, as the config has them."""
    return _of_config(model, "id2label") or {}
