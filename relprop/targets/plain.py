"""The plain forms of a target: an index, a label, a tuple of them, or a list or tensor with one for
each sample."""

from __future__ import annotations

import operator

import numpy as np
import torch
from torch import Tensor

from relprop.errors import TargetError

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
