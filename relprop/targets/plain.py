"""The plain forms of a target: an index, a label, a piece of a tokenizer's vocabulary, a tuple of
them, or a list or tensor with one for each sample; and where a model fills pieces in."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relprop.errors import TargetError
from relprop.targets.start import Context

Index = tuple[int | str, ...]
"""One entry for each axis of one sample's output; a label may stand for its class."""
FORMS = (
    "give None, an int, a list or tensor with one int per sample, a "
    "tuple of ints, a label, a callable, or one of relprop.targets"
)


def plain_index(index: object) -> Index:
    """A tuple of ints and labels from one of them or a tuple. Raises ``TargetError`` for anything
    else."""
    if index is None:
        fact = "None stands for what the model predicts in every sample, and not in a list"
        raise TargetError(fact, then=["give each sample's own: logits.argmax(-1).tolist()"])
    items = index if isinstance(index, tuple) else (index,)
    try:
        if not items or any(isinstance(k, bool) for k in items):
            raise TypeError
        return tuple(k if isinstance(k, str) else operator.index(k) for k in items)
    except TypeError:
        fact = f"target {index!r} is {type(index).__name__}"
        raise TargetError(fact, then=[FORMS]) from None


def without_tensors(target: object) -> object:
    """Ints, labels, and lists of them and of tuples, in place of tensors and arrays. Raises
    ``TargetError`` for tensors of other numbers or of too many axes."""
    if hasattr(target, "__array__") and not isinstance(target, (Tensor, int, float, str)):
        array = np.asarray(target)
        target = torch.as_tensor(array) if array.dtype.kind in "biuf" else array.tolist()
    if not isinstance(target, Tensor):
        return target
    if target.is_meta:
        raise TargetError("target is a tensor on the meta device: it has no values")
    if target.is_floating_point() or target.dtype == torch.bool or target.dim() > 2:
        raise TargetError(
            f"target is a {str(target.dtype).removeprefix('torch.')} tensor of shape "
            f"{list(target.shape)}; indices are integers, shape [], [batch] or "
            "[batch, axes]"
        )
    if not target.dim():
        return int(target)
    return [tuple(t) if isinstance(t, list) else t for t in target.tolist()]


def id_of(text: str, tokenizer: Any) -> int:
    """The id of a piece of the vocabulary, or of text that is one piece. Raises ``TargetError`` for
    other text."""
    found, unknown = tokenizer.convert_tokens_to_ids(text), getattr(tokenizer, "unk_token_id", None)
    if found is not None and (found != unknown or text == getattr(tokenizer, "unk_token", None)):
        return int(found)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] == unknown:
        pieces = list(map(repr, tokenizer.convert_ids_to_tokens(ids))) or ["none"]
        fact = f"token({text!r}): not one token of this tokenizer but {', '.join(pieces)}"
        then = f"the first of them: relprop.targets.token({pieces[0]}, tokenizer)"
        raise TargetError(fact, then=[then] * (len(ids) > 1))
    return int(ids[0])


def masked_positions(
    mask_id: int, target: object, context: Context, samples: Sequence[int]
) -> list[int]:
    """Where the one mask token of each sample is. Raises ``TargetError`` where there is none, or
    are several; ``target``: as it was given."""
    both = zip(context.inputs.tensors, context.inputs.batched, strict=True)
    found = [t for t, batched in both if batched and t.dim() == 2 and not t.is_floating_point()]
    rows = found[0][list(samples)].tolist() if found else [[] for _ in samples]
    return [_masked(mask_id, ids, target, k) for k, ids in zip(samples, rows, strict=True)]


def _masked(mask_id: int, ids: Sequence[int], target: object, sample: int) -> int:
    places = [position for position, token in enumerate(ids) if token == mask_id]
    if len(places) == 1:
        return places[0]
    where = "no mask token"
    if places:
        where = f"{len(places)} mask tokens, at {', '.join(map(str, places))}"
    fact = f"target {target}: sample {sample} has {where}; say which position: "
    raise TargetError(fact + "relprop.targets.token(..., position=...)")
