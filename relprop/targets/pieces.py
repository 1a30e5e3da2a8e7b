"""Pieces of a tokenizer's vocabulary as targets, and where a model fills them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from relprop.errors import TargetError
from relprop.targets.start import Context


def id_of(text: str, tokenizer: Any) -> int:
    """The id of a piece of the vocabulary, or of text that is one piece. Raises ``TargetError`` for
    other text."""
    found = tokenizer.convert_tokens_to_ids(text)
    if found is not None and (
        found != getattr(tokenizer, "unk_token_id", None)
        or text == getattr(tokenizer, "unk_token", None)
    ):
        return int(found)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1 or ids[0] == getattr(tokenizer, "unk_token_id", None):
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
    found = [t for t, batched in both if batched and _are_ids(t)]
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


def _are_ids(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and not tensor.is_floating_point()
