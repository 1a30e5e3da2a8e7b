"""Hugging Face models: which inputs are tokens, which of them are special, and what the classes are called."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from relprop.adapters.base import Adapter
from relprop.tracer.binding import Inputs

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id", "decoder_start_token_id")


class HuggingFace(Adapter):
    """Reads the config, the model's own ``main_input_name`` and the tokenizer's output; never a model's or a class's name."""

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """A ``PreTrainedModel``; transformers is looked up, never imported."""
        transformers = sys.modules.get("transformers.modeling_utils")
        return transformers is not None and isinstance(model, transformers.PreTrainedModel)

    def token_inputs(self, model: nn.Module, inputs: Inputs) -> tuple[str, ...] | None:
        """The main inputs of the model and of its parts (text and vision towers), and a decoder's ids or ready embeddings."""
        main = {str(module.main_input_name) for module in model.modules() if hasattr(module, "main_input_name")}
        wanted = main | {"decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds"}
        found = tuple(name for name in inputs.names if name in wanted)
        return found or (inputs.names[:1] if inputs.names[0].startswith("input_") else None)

    def label_index(self, model: nn.Module, label: str) -> int | None:
        """From ``config.label2id``."""
        found = (getattr(model.config, "label2id", None) or {}).get(label)
        return None if found is None else int(found)

    def labels(self, model: nn.Module) -> tuple[str, ...]:
        """From ``config.id2label``."""
        names = getattr(model.config, "id2label", None) or {}
        return tuple(str(names[k]) for k in sorted(names))

    def is_causal(self, model: nn.Module) -> bool:
        """A model that generates, without an encoder."""
        can = getattr(model, "can_generate", None)
        return bool(callable(can) and can()) and not getattr(model.config, "is_encoder_decoder", False)

    def last_position(self, inputs: Inputs, length: int) -> Tensor:
        """The last position whose attention mask is not 0 (left and right padding alike)."""
        mask = dict(zip(inputs.names, inputs.tensors, strict=True)).get("attention_mask")
        if mask is None or mask.dim() != 2:
            return super().last_position(inputs, length)
        return (torch.arange(mask.shape[1], device=mask.device) * (mask != 0)).argmax(1).cpu()

    def tokens(self, model: nn.Module, raw: Any, inputs: Inputs, stream: str) -> list[list[str]] | None:
        """The tokenizer's own pieces if the inputs came from a fast tokenizer, else the ids as text."""
        ids = dict(zip(inputs.names, inputs.tensors, strict=True)).get(stream)
        if ids is None or ids.is_floating_point():
            return None
        encodings = getattr(raw, "encodings", None)
        if encodings and len(encodings) == inputs.batch and stream == "input_ids":
            return [list(encoding.tokens) for encoding in encodings]
        return [[str(i) for i in row] for row in ids.tolist()]

    def content(self, model: nn.Module, raw: Any, inputs: Inputs, stream: str) -> Tensor | None:
        """Neither padding nor a special token: by the tokenizer if it is known, else by the special ids of the config."""
        named = dict(zip(inputs.names, inputs.tensors, strict=True))
        ids = named.get(stream)
        if ids is None or ids.is_floating_point():
            return None
        encodings = getattr(raw, "encodings", None)
        if encodings and len(encodings) == inputs.batch and stream == "input_ids":
            special = torch.tensor([e.special_tokens_mask for e in encodings], dtype=torch.bool)
        else:
            values = [v for name in SPECIAL for v in _as_list(getattr(model.config, name, None))]
            special = torch.isin(ids.cpu(), torch.tensor(values, dtype=ids.dtype)) if values else torch.zeros(ids.shape, dtype=torch.bool)
        mask = named.get("attention_mask" if stream == "input_ids" else f"{stream.removesuffix('input_ids')}attention_mask")
        return ~special & (mask.cpu() != 0) if mask is not None and mask.shape == ids.shape else ~special


def _as_list(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
