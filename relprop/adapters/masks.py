"""Which positions of a Hugging Face model's input are padding or special tokens, by the masks that
come with it, the tokenizer and the config."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters.given import Given
from relprop.tracer.binding import Inputs

SPECIAL = re.compile(r"(^|_)(?!mask_|unk_)[a-z]+_token_(id|index)$")
OWN_MASK = re.compile(r"(.*?)(input_ids|inputs_embeds|input_features|input_values|inputs)")
ADDED = -1e4  # a mask that is added to scores hides what is below
MASKS = {  # beside the attention mask of the same beginning
    "pixel_values": ("pixel_mask", "pixel_attention_mask"),
    "visual_embeds": ("visual_attention_mask",),
    "visual_feats": ("visual_attention_mask",),
    "past_values": ("past_observed_mask",),
    "input_features": ("feature_attention_mask", "input_features_mask"),
    "input_values": ("padding_mask",),
}


def no_padding(given: Given) -> Tensor | None:
    """Which positions of the input are no padding, by the mask that goes with it; axes the mask
    does not have get length 1."""
    mask = next((given.inputs[name] for name in _mask_names(given) if name in given.inputs), None)
    if mask is None:
        return None
    tensor = given.tensor
    axes = _matching(tuple(mask.shape[1:]), tuple(tensor.shape[1:]), tensor.is_floating_point())
    if axes is None:
        return None
    lengths = [n if i in axes else 1 for i, n in enumerate(tensor.shape[1:])]
    return (mask != 0).reshape(len(mask), *lengths)


def is_padded(named: Mapping[str, Any]) -> bool:
    """Whether a call holds padded texts, by its attention mask."""
    mask = named.get("attention_mask")
    return isinstance(mask, Tensor) and mask.dim() == 2 and bool((mask == 0).any())


def positions_of(model: nn.Module, named: Mapping[str, Any]) -> dict[str, Tensor]:
    """``position_ids`` of texts with padding before them, (batch, positions), as ``generate``
    counts them: nothing where there is none, they are given, or the model takes none or counts
    what is no padding itself (its embedding of positions has a row for padding)."""
    mask, takes = named.get("attention_mask"), inspect.signature(model.forward).parameters
    if mask is None or "position_ids" in named or "position_ids" not in takes:
        return {}
    counts = any(
        "position" in name and getattr(m, "padding_idx", None) is not None
        for name, m in model.named_modules()
    )
    if counts or mask.dim() != 2 or not bool((mask[:, 0] == 0).any()):
        return {}
    return {"position_ids": (mask.long().cumsum(1) - 1).masked_fill(mask == 0, 0)}


def _mask_names(given: Given) -> list[str]:
    """What the mask of an input may be called."""
    names = list(MASKS.get(given.stream, ()))
    own = OWN_MASK.fullmatch(given.stream)
    beside_text = given.tensor.is_floating_point() and "input_ids" in given.inputs
    return names + ([f"{own[1]}attention_mask"] if own and not beside_text else [])


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
        last = tuple(range(len(tensor) - len(mask), len(tensor)))
        return last if tensor[-len(mask) :] == mask else None
    return (tensor.index(mask[0]),) if mask[0] in tensor else None


def last_seen(inputs: Inputs, length: int) -> Tensor | None:
    """The last position of each sample that its mask lets any query see; ``None`` without a mask of
    these positions."""
    named = dict(zip(inputs.names, inputs.tensors, strict=True))
    decoder = any(name.startswith("decoder_input") for name in named)
    mask = named.get("decoder_attention_mask" if decoder else "attention_mask")
    if mask is None or mask.dim() < 2 or len(mask) not in (1, inputs.batch):
        return None
    positions = mask.shape[-1]
    if positions > length:
        return None
    seen = mask > ADDED if mask.is_floating_point() and mask.dim() > 2 else mask != 0
    seen = seen.reshape(len(mask), -1, positions).any(1).expand(inputs.batch, -1)
    last = (torch.arange(positions, device=mask.device) * seen).argmax(1)
    return last.cpu() + length - positions


def is_special(given: Given, special: tuple[int, ...]) -> Tensor:
    """Which ids are special tokens, (batch, positions): by the tokenizer's record of the text, else
    those that are always ``special``."""
    if encodings := records(given):
        return torch.tensor([e.special_tokens_mask for e in encodings], dtype=torch.bool)
    values = torch.tensor(special, dtype=given.tensor.dtype)
    return torch.isin(given.tensor.cpu(), values)


def records(given: Given) -> tuple[Any, ...]:
    """The tokenizer's own records of the samples, if they are of this very input."""
    encodings, rows = given.prepared.encodings, given.tensor.tolist()
    same = len(encodings) == given.batch and all(
        len(e.tokens) == len(row) and getattr(e, "ids", row) == row
        for e, row in zip(encodings, rows, strict=True)
    )
    return encodings if same else ()


def special_ids(tokenizer: Any) -> set[int]:
    """The tokenizer's special ids but those that stand for content (unknown, masked); none without
    a tokenizer."""
    kept = {getattr(tokenizer, "unk_token_id", None), getattr(tokenizer, "mask_token_id", None)}
    return {int(i) for i in getattr(tokenizer, "all_special_ids", ()) if i not in kept}


def config_ids(config: Any) -> set[int]:
    """The special ids that a config and its parts name."""
    return {int(v) for v in _config_values(config) if isinstance(v, int) and v >= 0}


def _config_values(config: Any, depth: int = 2) -> Iterator[Any]:
    """The special ids of a config and of the configs in it."""
    for name, value in vars(config).items():
        if SPECIAL.search(name):
            yield from value if isinstance(value, (list, tuple)) else [value]
        elif depth and hasattr(value, "model_type"):
            yield from _config_values(value, depth - 1)
