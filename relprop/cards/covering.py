"""Covering parts of an input and asking the model again: patches of a picture by its mean colour,
words by an attention mask of 0."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relprop.cards.answer_data import Words
from relprop.error_boundary import guarded
from relprop.errors import RelpropError
from relprop.explanation import Explanation
from relprop.opening import base_model
from relprop.targets.outputs import CLASSES
from relprop.tracer.binding import bind, flatten_output
from relprop.tracer.side_effects import restored
from relprop.tracer.surroundings import as_python, undisturbed

BATCH = 8  # covered inputs that share a forward pass


@guarded
def logits_with(
    model: nn.Module,
    inputs: Any,
    changed: Mapping[str, Tensor] | None = None,
    read: Callable[[Tensor], Tensor] = Tensor.double,
) -> Tensor:
    """What is ``read`` of the logits (runs, ...), on the CPU, of one sample of ``inputs``, some of
    which are ``changed``: by name, (runs, ...). Nothing changed: one run. Only what is read is
    kept. What the model raises is a ``RelpropError``."""
    bound, found = bind(inputs), []
    changed = changed or {bound.names[0]: bound.tensors[0][:1]}
    size = BATCH if all(bound.batched) else 1  # what belongs to no sample is not repeated
    for start in range(0, len(next(iter(changed.values()))), size):
        some = {name: every[start : start + size] for name, every in changed.items()}
        runs = len(next(iter(some.values())))
        tensors = (
            some.pop(name, t.expand(runs, *t.shape[1:]) if batched else t)
            for name, t, batched in zip(bound.names, bound.tensors, bound.batched, strict=True)
        )
        args, named = bound.rebuild(tuple(tensors))
        with undisturbed(model), torch.no_grad(), as_python(model), restored(model):
            outputs, tree = flatten_output(model(*args, **{**named, **some}))
        every = zip(tree.names, outputs, strict=True)
        there = {name: t for name, t in every if t.is_floating_point() and t.dim()}
        logits = there.get(CLASSES, next(iter(there.values())) if len(there) == 1 else None)
        if logits is None or len(logits) != runs:
            raise RelpropError("the model's output has no logits (batch, classes)")
        found.append(read(logits.cpu()))
    return torch.cat(found)


def covered_picture(image: Tensor, gone: Tensor) -> Tensor:
    """The image (channels, H, W) with its mean colour where ``gone`` (runs, rows, columns), bool,
    says so, (runs, channels, H, W)."""
    small = gone[:, None].to(image.device).double()
    mean = image.mean((1, 2), keepdim=True)
    return torch.where(F.interpolate(small, image.shape[1:]).bool(), mean, image)


def covered_words(
    model: nn.Module, inputs: Any, words: Words, gone: Tensor, of: Explanation
) -> dict[str, Tensor]:
    """Attention masks by name, (runs, positions), that are 0 where ``gone`` (runs, words), bool,
    says so. ``of``: the explanation whose tokens the words are made of. Raises ``RelpropError``
    where no word can be covered."""
    bound, takes = bind(inputs), inspect.signature(base_model(model).forward).parameters
    own = dict(zip(bound.names, bound.tensors, strict=True))
    if not words:
        raise RelpropError("it has no words")
    masks: dict[str, Tensor] = {}
    for at, (name, _, tokens) in enumerate(words):
        if name not in own:
            raise RelpropError("the words are no input by name")
        if own[name].is_floating_point():
            raise RelpropError("there is no neutral value to put in place of a number")
        prefix = name.removesuffix("input_ids") if name.endswith("input_ids") else ""
        mask = f"{prefix}attention_mask"
        if mask not in takes:
            raise RelpropError(f"the model takes no {mask}")
        if mask not in masks:
            every = own.get(mask, torch.ones_like(own[name]))
            masks[mask] = every.expand(len(gone), -1).clone()
        places = [k for k in of.streams[name].source[tokens].tolist() if k >= 0]
        for run in gone[:, at].nonzero().flatten().tolist():
            masks[mask][run, places] = 0
    return masks
