"""Hugging Face models: which inputs are tokens, which of them are special or padding, their words,
pictures and seconds, and what the classes are called."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relprop.adapters.base import Adapter, Given, Prepared, Word, cannot_prepare, ready
from relprop.adapters.pictures import originals, picture_size
from relprop.adapters.sound import measured_clock
from relprop.adapters.words import words_from_ids, words_from_record
from relprop.errors import InputError, TargetError, message
from relprop.tracer.binding import Inputs

CONTENT = re.compile(
    r"(^|_)(inputs_embeds|visual_embeds|image_embeds|visual_feats|pixel_values|input_features|input_values)$|^decoder_input_ids$"
)
SPECIAL = re.compile(r"(^|_)(?!mask_|unk_)[a-z]+_token_(id|index)$")
ADDED = -1e4  # a mask that is added to scores hides what is below
MASKS = {  # beside the attention mask of the same beginning
    "pixel_values": ("pixel_mask", "pixel_attention_mask"),
    "visual_embeds": ("visual_attention_mask",),
    "visual_feats": ("visual_attention_mask",),
    "past_values": ("past_observed_mask",),
    "input_features": ("feature_attention_mask", "input_features_mask"),
    "input_values": ("padding_mask",),
}
_clocks: dict[
    tuple[str, str], tuple[int, float] | None
] = {}  # by what the extractor prints, which is all of its settings


class HuggingFace(Adapter):
    """Reads the config, the model's own ``main_input_name``, and tokenizers and other processors;
    never a model's or a class's name."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """A ``PreTrainedModel``; transformers is looked up, never imported."""
        transformers = sys.modules.get("transformers.modeling_utils")
        return transformers is not None and isinstance(model, transformers.PreTrainedModel)

    def prepare(self, model: nn.Module, inputs: Any, processor: Any) -> Prepared:
        """Text, pictures or sound through the tokenizer or processor of the model; ready inputs as
        they are."""
        pictures: dict[str, Any] = {}
        if processor is not None and not ready(inputs):
            inputs, pictures = _processed(model, inputs, processor)
        elif processor is None and not ready(inputs) and _kind(inputs):
            raise InputError(
                message(
                    f"inputs is {_kind(inputs)}, which the model does not read itself",
                    then=[
                        (
                            "give what reads it, too: processor=tokenizer  # or an image "
                            "processor, a feature extractor"
                        )
                    ],
                )
            )
        return Prepared(
            inputs, processor, tuple(getattr(inputs, "encodings", None) or ()), pictures
        )

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
        return found[0] if found else None if other is None else int(other)

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """From ``config.id2label``."""
        names = _names(model)
        return tuple(str(names[k]) for k in sorted(names, key=int))

    def probabilities(self, model: nn.Module, logits: Tensor) -> Tensor | None:
        """As transformers' own classification pipelines: a sigmoid per class for several labels at
        once and for one logit, else a softmax."""
        kind = getattr(model.config, "problem_type", None)
        if kind == "regression" or len(_names(model)) != logits.shape[1]:
            return None
        return (
            logits.sigmoid()
            if kind == "multi_label_classification" or logits.shape[1] == 1
            else logits.softmax(1)
        )

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
        named = dict(zip(inputs.names, inputs.tensors, strict=True))
        mask = named.get(
            "decoder_attention_mask"
            if any(name.startswith("decoder_input") for name in named)
            else "attention_mask"
        )
        if (
            mask is None
            or mask.dim() < 2
            or len(mask) not in (1, inputs.batch)
            or mask.shape[-1] > length
        ):
            return super().last_position(inputs, length)
        seen = mask > ADDED if mask.is_floating_point() and mask.dim() > 2 else mask != 0
        seen = seen.reshape(len(mask), -1, mask.shape[-1]).any(1).expand(inputs.batch, -1)
        return (
            (torch.arange(mask.shape[-1], device=mask.device) * seen).argmax(1).cpu()
            + length
            - mask.shape[-1]
        )

    def tokens(self, model: nn.Module, given: Given) -> list[list[str]] | None:
        """The tokenizer's own pieces if its record or it itself is known, else the ids as text."""
        ids, tokenizer = (
            given.tensor,
            _part(given.prepared.processor, "tokenizer", "convert_ids_to_tokens"),
        )
        if ids.is_floating_point() or ids.dim() != 2:
            return None
        if encodings := _encodings(given):
            return [list(encoding.tokens) for encoding in encodings]
        return [
            [
                str(p)
                for p in (tokenizer.convert_ids_to_tokens(row) if tokenizer is not None else row)
            ]
            for row in ids.tolist()
        ]

    def words(self, model: nn.Module, given: Given) -> list[list[Word]] | None:
        """By the tokenizer's record of the text, else by its way back from ids to text."""
        tokenizer, encodings = (
            _part(given.prepared.processor, "tokenizer", "convert_ids_to_tokens"),
            _encodings(given),
        )
        if (
            given.tensor.is_floating_point()
            or given.tensor.dim() != 2
            or not (encodings or tokenizer)
        ):
            return None
        content = self.content(model, given)
        special = (
            [[False] * given.tensor.shape[1]] * given.batch
            if content is None
            else (~content).tolist()
        )
        if encodings:
            return [
                words_from_record(e, s, tokenizer) for e, s in zip(encodings, special, strict=True)
            ]
        return [
            words_from_ids(row, s, tokenizer)
            for row, s in zip(given.tensor.tolist(), special, strict=True)
        ]

    def content(self, model: nn.Module, given: Given) -> Tensor | None:
        """Neither padding nor a special token: special by the tokenizer's record, else its special
        ids, else the config's; padding by the mask."""
        mask = _mask(given)
        if given.tensor.is_floating_point():
            return mask
        if encodings := _encodings(given):
            special = torch.tensor([e.special_tokens_mask for e in encodings], dtype=torch.bool)
        else:
            values = sorted(
                _special_ids(
                    model, _part(given.prepared.processor, "tokenizer", "convert_ids_to_tokens")
                )
            )
            special = torch.isin(given.tensor.cpu(), torch.tensor(values, dtype=given.tensor.dtype))
        return ~special if mask is None else ~special & mask.cpu()

    def clock(self, model: nn.Module, given: Given) -> tuple[int, float] | None:
        """Measured on the feature extractor, if there is one."""
        extractor = _part(given.prepared.processor, "feature_extractor", "sampling_rate")
        if (
            extractor is None
            or not given.tensor.is_floating_point()
            or given.stream not in getattr(extractor, "model_input_names", ())
        ):
            return None
        rate = int(extractor.sampling_rate)

        def extract(sound: np.ndarray) -> Tensor:
            tensor: Tensor = extractor(sound, sampling_rate=rate, return_tensors="pt")[given.stream]
            return tensor

        key = (given.stream, repr(extractor))
        if key not in _clocks:
            try:
                _clocks[key] = measured_clock(extract, rate)
            except (
                TypeError,
                ValueError,
                RuntimeError,
                KeyError,
            ):  # it does not take a plain recording
                _clocks[key] = None
        return _clocks[key]


def _names(model: nn.Module) -> Mapping[Any, Any]:
    names: Any = getattr(model.config, "id2label", None)
    return names or {}


def _encodings(given: Given) -> tuple[Any, ...]:
    """The tokenizer's records, if they are of this very input."""
    encodings, rows = given.prepared.encodings, given.tensor.tolist()
    same = len(encodings) == given.batch and all(
        len(e.tokens) == len(row) and getattr(e, "ids", row) == row
        for e, row in zip(encodings, rows, strict=True)
    )
    return encodings if same else ()


def _mask(given: Given) -> Tensor | None:
    """Which positions of the input are no padding, by the mask that goes with it; axes the mask
    does not have get length 1."""
    own = re.fullmatch(
        r"(.*?)(input_ids|inputs_embeds|input_features|input_values|inputs)", given.stream
    )
    beside_text = given.tensor.is_floating_point() and "input_ids" in given.inputs
    names = (
        *MASKS.get(given.stream, ()),
        *([f"{own[1]}attention_mask"] if own and not beside_text else []),
    )
    mask = next((given.inputs[name] for name in names if name in given.inputs), None)
    axes = (
        None
        if mask is None
        else _matching(
            tuple(mask.shape[1:]), tuple(given.tensor.shape[1:]), given.tensor.is_floating_point()
        )
    )
    if mask is None or axes is None:
        return None
    shape = [
        len(mask),
        *(given.tensor.shape[i + 1] if i in axes else 1 for i in range(given.tensor.dim() - 1)),
    ]
    return (mask != 0).reshape(shape)


def _matching(
    mask: tuple[int, ...], tensor: tuple[int, ...], floating: bool
) -> tuple[int, ...] | None:
    """The axes of the input along which its mask runs: all of them for ids, the last ones for
    pictures, else the first one of that length."""
    if mask == tensor:
        return tuple(range(len(tensor)))
    if not floating or not mask:
        return None
    if len(mask) > 1:
        return (
            tuple(range(len(tensor) - len(mask), len(tensor)))
            if tensor[-len(mask) :] == mask
            else None
        )
    return (tensor.index(mask[0]),) if mask[0] in tensor else None


def _special_ids(model: nn.Module, tokenizer: Any) -> set[int]:
    """The tokenizer's special ids but those that stand for content (unknown, masked); without a
    tokenizer those the config and its parts name."""
    if tokenizer is not None:
        kept = {getattr(tokenizer, "unk_token_id", None), getattr(tokenizer, "mask_token_id", None)}
        return {int(i) for i in tokenizer.all_special_ids if i not in kept}
    return {
        int(v)
        for value in _config_values(model.config)
        for v in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(v, int) and v >= 0
    }


def _config_values(config: Any, depth: int = 2) -> Iterator[Any]:
    for name, value in vars(config).items():
        if SPECIAL.search(name):
            yield value
        elif depth and hasattr(value, "model_type"):
            yield from _config_values(value, depth - 1)


def _part(processor: Any, name: str, has: str) -> Any:
    """The tokenizer, image processor or feature extractor that ``processor`` is or holds, known by
    what it can do."""
    inner = getattr(processor, name, None)
    return (
        inner
        if inner is not None and hasattr(inner, has)
        else processor
        if hasattr(processor, has)
        else None
    )


def _kind(thing: Any) -> str:
    """What kind of thing that no model reads this is (the first of a list), or ``""``."""
    first = thing[0] if isinstance(thing, (list, tuple)) and thing else thing
    if isinstance(first, (str, list, tuple)):
        return "text"
    if picture_size(first) is not None:
        return "a picture"
    return "sound" if isinstance(first, np.ndarray) and first.ndim == 1 else ""


def _processed(model: nn.Module, inputs: Any, processor: Any) -> tuple[Any, dict[str, Any]]:
    """What the model reads, from text, pictures, sound, or a dict of the processor's own arguments;
    and the pictures' originals."""
    kind = "" if isinstance(inputs, Mapping) else _kind(inputs)
    tokenizer, images, sound = (
        _part(processor, *p)
        for p in (
            ("tokenizer", "convert_ids_to_tokens"),
            ("image_processor", "image_mean"),
            ("feature_extractor", "sampling_rate"),
        )
    )
    many = isinstance(inputs, (list, tuple))
    try:
        if isinstance(inputs, Mapping):
            texts = inputs.get("text")
            several = tokenizer is not None and isinstance(texts, (list, tuple)) and len(texts) > 1
            made = processor(
                **({"padding": True} if several else {}) | dict(inputs), return_tensors="pt"
            )
        elif kind == "text" and tokenizer is not None:
            made = tokenizer(inputs, return_tensors="pt", padding=many and len(inputs) > 1)
        elif kind == "a picture" and images is not None:
            made = images(images=inputs, return_tensors="pt")
        elif kind == "sound" and sound is not None:
            padding = inspect.signature(sound.__call__).parameters.get("padding")
            options = (
                {"padding": True} if many and padding is not None and not padding.default else {}
            )
            made = sound(inputs, sampling_rate=sound.sampling_rate, return_tensors="pt", **options)
        else:
            raise TypeError(
                "it is neither a tokenizer, an image processor nor a feature extractor "
                f"that takes {kind or type(inputs).__name__}"
            )
    except (TypeError, ValueError, KeyError) as error:
        raise cannot_prepare(inputs, processor, error) from error
    pictures = (
        inputs.get("images")
        if isinstance(inputs, Mapping)
        else inputs
        if kind == "a picture"
        else None
    )
    found = {} if pictures is None or images is None else _originals(pictures, images, made)
    return _accepted(model, made), found


def _originals(pictures: Any, processor: Any, made: Any) -> dict[str, Any]:
    name = next(
        (
            n
            for n in made
            if isinstance(made[n], Tensor) and made[n].dim() == 4 and made[n].is_floating_point()
        ),
        None,
    )

    def process(picture: Any) -> Tensor:
        tensor: Tensor = processor(images=picture, return_tensors="pt")[name][0]
        return tensor

    some = list(pictures) if isinstance(pictures, (list, tuple)) else [pictures]
    return (
        originals(name, some, process, made[name])
        if name is not None and len(some) == len(made[name])
        else {}
    )


def _accepted(model: nn.Module, made: Any) -> Any:
    """What the model's ``forward`` takes of it, on the model's device and in its floating type."""
    takes = inspect.signature(model.forward).parameters
    for name in [n for n in made if n not in takes]:
        del made[name]
    for name in list(made):
        if isinstance(made[name], Tensor):
            made[name] = made[name].to(
                model.device, model.dtype if made[name].is_floating_point() else None
            )
    return made
