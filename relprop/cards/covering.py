"""Covering parts of an input and asking the model again: patches of a picture by its mean colour,
words by an attention mask of 0."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relprop.cards.answering import Words
from relprop.error_boundary import guarded
from relprop.errors import RelpropError
from relprop.opening import base_model
from relprop.tracer.binding import bind
from relprop.tracer.surroundings import undisturbed

BATCH = 8  # covered inputs that share a forward pass


@guarded
def logits_with(
    model: nn.Module, inputs: Any, changed: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The logits (runs, ...), in double on the CPU, of one sample of ``inputs``, some of which are
    ``changed``: by name, (runs, ...). Nothing changed: one run. What the model raises is a
    ``RelpropError``."""
    bound, found = bind(inputs), []
    changed = changed or {bound.names[0]: bound.tensors[0]}
    for start in range(0, len(next(iter(changed.values()))), BATCH):
        some = {name: every[start : start + BATCH] for name, every in changed.items()}
        runs = len(next(iter(some.values())))
        tensors = (
            some.pop(name, t.expand(runs, *t.shape[1:]) if batched else t)
            for name, t, batched in zip(bound.names, bound.tensors, bound.batched, strict=True)
        )
        args, named = bound.rebuild(tuple(tensors))
        with undisturbed(model), torch.no_grad():
            output = model(*args, **{**named, **some})
        by_name = output if isinstance(output, Mapping) else {}
        logits = by_name.get("logits", getattr(output, "logits", output))
        if not isinstance(logits, Tensor) or not logits.dim() or len(logits) != runs:
            raise RelpropError("the model's output has no logits (batch, classes)")
        found.append(logits.double().cpu())
    return torch.cat(found)


def covered_picture(image: Tensor, gone: Tensor) -> Tensor:
    """The image (channels, H, W) with its mean colour where ``gone`` (runs, rows, columns), bool,
    says so, (runs, channels, H, W)."""
    small = gone[:, None].to(image.device).double()
    mean = image.mean((1, 2), keepdim=True)
    return torch.where(F.interpolate(small, image.shape[1:]).bool(), mean, image)


def covered_words(model: nn.Module, inputs: Any, words: Words, gone: Tensor) -> dict[str, Tensor]:
    """Attention masks by name, (runs, tokens), that are 0 where ``gone`` (runs, words), bool, says
    so. Raises ``RelpropError`` where no word can be covered."""
    bound, takes = bind(inputs), inspect.signature(base_model(model).forward).parameters
    own = dict(zip(bound.names, bound.tensors, strict=True))
    if not words:
        raise RelpropError("it has no words")
    masks: dict[str, Tensor] = {}
    for at, (name, _, tokens) in enumerate(words):
        if name not in own:
            raise RelpropError("the words are no input by name")
        if own[name].is_floating_point():
            raise RelpropError("what has scores are no words")
        prefix = name.removesuffix("input_ids") if name.endswith("input_ids") else ""
        mask = f"{prefix}attention_mask"
        if mask not in takes:
            raise RelpropError(f"the model takes no {mask}")
        if mask not in masks:
            every = own.get(mask, torch.ones_like(own[name]))
            masks[mask] = every.expand(len(gone), -1).clone()
        for run in gone[:, at].nonzero().flatten().tolist():
            masks[mask][run, tokens] = 0
    return masks
