"""Calls for a Hugging Face model of the sweep: two of the same shapes, with different padding in
each sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from relprop.commands.typical_inputs import LENGTH, Inputs, end_id, masks, parts, wanted

SHORTER = (0, 3, 5)
BOTH = {
    "zero-shot image classification",
    "visual question answering",
    "document question answering",
}
GENERATES = {"sequence to sequence", "speech recognition"}
IDS = ("input_ids", "decoder_input_ids")
Call = dict[str, Tensor]


def call_for(
    model: nn.Module, tasks: tuple[str, ...], batch: int, settings: Mapping[str, Any]
) -> tuple[Call, Call, dict[str, Tensor]]:
    """Two calls of the same shapes and, by input name, which positions are padding. ``settings``
    override lengths, sizes and which inputs are given."""
    both, generates = bool(BOTH & set(tasks)), bool(GENERATES & set(tasks))
    names = settings.get("inputs") or wanted(model, both=both, generates=generates)
    make = Inputs(model, batch, settings)
    first, second = ({name: make(name) for name in names} for _ in range(2))
    pads = {}
    for name, (mask_name, mask) in _masks(make, first).items():
        pads[name] = ~mask
        for call in (first, second):
            call[mask_name] = mask.long()
            call[name] = _padded(model.config, name, call[name], mask)
    return first, second, pads


def _masks(make: Inputs, call: Call) -> dict[str, tuple[str, Tensor]]:
    """The masks that go with the inputs, by input: a name and which positions are real, with
    different padding in each sample."""
    found = {}
    for name, mask_name, shape in masks(make, call):
        if mask_name not in make.settings.get("without", ()):
            mask = _shortened(shape[0], shape[-1], make.settings)
            height = shape[1] if len(shape) == 3 else None
            found[name] = mask_name, mask if height is None else mask[:, None].repeat(1, height, 1)
    return found


def _shortened(batch: int, length: int, settings: Mapping[str, Any]) -> Tensor:
    """Real positions: all of the first sample, three quarters of the second, seven twelfths of the
    third."""
    mask = torch.ones(batch, length, dtype=torch.bool)
    for i in range(batch):
        cut = length * SHORTER[i % len(SHORTER)] // LENGTH
        left = settings.get("padding") == "left"
        mask[i, slice(0, cut) if left else slice(length - cut, None)] = False
    return mask


def _padded(config: Any, name: str, given: Tensor, mask: Tensor) -> Tensor:
    """An input with padding where the mask is 0; each text ended as a tokenizer would end it."""
    if name not in IDS:
        return given * along(mask, given)
    if given.dim() != 2:
        return given
    ids = torch.where(mask, given, _pad(config))
    if (end := end_id(config)) is not None:
        ids[torch.arange(len(ids)), (torch.arange(mask.shape[1]) * mask).argmax(1)] = end
    return ids


def along(mask: Tensor, given: Tensor) -> Tensor:
    """A mask (batch, positions) or (batch, height, width) with axes of length 1 where ``given`` has
    features or channels."""
    if given.dim() == mask.dim():
        return mask
    positions_last = given.shape[given.dim() - mask.dim() + 1 :] == mask.shape[1:]
    return (
        mask.unsqueeze(1)
        if positions_last
        else mask.reshape(*mask.shape, *(1,) * (given.dim() - mask.dim()))
    )


def _pad(config: Any) -> int:
    pads = (getattr(part, "pad_token_id", None) for part in parts(config))
    return next((pad for pad in pads if isinstance(pad, int) and pad >= 0), 0)
