"""The tensors that an explanation keeps if it is asked to (``keep=``), as pictures need them; where
they are missing, an error that says how to keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from relprop.errors import OptionError

if TYPE_CHECKING:
    from relprop.explanation import Block, Explanation

SYMBOLS = {"attention": "A", "gradient": "∇A", "relevance": "R"}


def needed(kept: Tensor | None, what: str, keep: str) -> Tensor:
    """A tensor that was kept. Raises ``OptionError`` naming the ``keep=`` that keeps it."""
    if kept is None:
        raise _not_kept(what, keep)
    return kept


def chosen_block(explanation: Explanation, block: int, what: str) -> tuple[Block, str]:
    """The attention site of a number in forward order, −1 the last, and what a picture calls it.
    Raises ``OptionError``."""
    blocks = explanation.blocks
    if blocks is None:
        raise _not_kept(what, "blocks")
    if not isinstance(block, int) or not -len(blocks) <= block < len(blocks):
        raise OptionError(
            f"block={block!r}: the explanation has {len(blocks)}, 0 to {len(blocks) - 1} "
            "in forward order"
        )
    return blocks[block], blocks[block].path or f"block {block % len(blocks)}"


def maps_of(block: Block, kind: str, sample: int) -> Tensor:
    """The attention, gradient or relevance of one sample, (heads, queries, keys). Raises
    ``OptionError``."""
    if kind not in SYMBOLS:
        raise OptionError(f"kind={kind!r}: one of {', '.join(map(repr, SYMBOLS))}")
    found: Tensor | None = getattr(block, kind)
    if found is None:
        raise OptionError(
            f"this method computed no {kind} at {block.path}",
            then=["method='transformer_attribution' has attention, gradient and relevance"],
        )
    if found.dim() != 4:
        fact = (
            f"{block.path} attends within parts of the input: its {kind} is "
            f"{list(found.shape[1:])} per sample"
        )
        raise OptionError(fact, then=["explanation.blocks[...] has the numbers"])
    return found[sample]


def numbers(values: Tensor) -> np.ndarray:
    """The values as a numpy array, in double precision where the device has it."""
    precision = torch.float32 if values.device.type == "mps" else torch.float64
    found: np.ndarray = values.detach().to(precision).cpu().numpy()
    return found


def _not_kept(what: str, keep: str) -> OptionError:
    return OptionError(
        f"{what} needs what this explanation did not keep",
        then=[f"relprop.explain(..., keep={keep!r})"],
    )
