"""Explanation: the result. One score per input token, and everything a person does with them next: look, save, compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relprop.errors import OptionError, RelpropError
from relprop.interpreter.ledger import Ledger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Block:
    """One attention site: its module path, and attention A, gradient ∇A and relevance R, each (batch, heads, queries, keys)."""

    path: str
    attention: Tensor
    gradient: Tensor | None
    relevance: Tensor | None


@dataclass(frozen=True, eq=False)
class Explanation:
    """What the model looked at, for every sample of a batch.

    ``scores`` (batch, tokens): one per input token in input order, prefix and special tokens included: what attention carried,
    ``row`` − ``identity``. ``row`` is the row of C (Eq. 14) that the head reads, ``identity`` what skip connections alone leave.
    ``content`` (batch, tokens), bool: which are patches or words, not class tokens, separators or padding. ``source`` (tokens,): the
    input position each token came from (−1: none). ``tokens``: labels, for text; ``grid`` (h, w) and ``image`` (H, W), for images.
    ``target`` names what was explained in each sample, ``output`` (batch,) its value y_t. ``ledger`` has the relevance's books
    (``None`` for a method without relevance). ``blocks``, ``matrix`` (C, (batch, s, s)) and ``input`` (relevance at the embedding or
    pixels) are there if ``keep=`` named them. ``facts`` says how it was made: front end, generic ops, options.
    """

    scores: Tensor
    row: Tensor
    identity: Tensor
    content: Tensor
    source: Tensor
    target: tuple[Any, ...]
    output: Tensor
    method: str
    rules: str
    stream: str
    ledger: Ledger | None = None
    tokens: list[list[str]] | None = None
    grid: tuple[int, int] | None = None
    image: tuple[int, int] | None = None
    blocks: tuple[Block, ...] | None = None
    matrix: Tensor | None = None
    input: Tensor | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.scores)

    def heatmap(self, size: tuple[int, int] | int | None = None) -> Tensor:
        """The patches' scores as an image, (batch, H, W), bilinear (``align_corners=False``); ``size`` defaults to the input image's.

        Raises ``OptionError`` for an explanation that is not of an image.
        """
        if self.grid is None:
            raise OptionError("heatmap() is for images: this explanation has no patch grid; use scores and tokens")
        if size is None:
            size = self.image
        elif isinstance(size, int):
            size = (size, size)
        patches = self.source >= 0
        maps = self.scores.new_zeros(len(self), self.grid[0] * self.grid[1])
        maps[:, self.source[patches]] = self.scores[:, patches]
        maps = maps.unflatten(1, self.grid)
        return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]

    def save(self, path: str | Path) -> Path:
        """Write everything to one safetensors file with a JSON header; ``relprop.load`` reads it back."""
        from relprop.storage import save

        return save(self, path)

    def plot(self, image: Tensor | None = None, *, sample: int = 0) -> Figure:
        """A matplotlib figure of one sample: the heat map over ``image`` (C, H, W in [0, 1]), or the tokens as bars. Needs ``relprop[plot]``."""
        from relprop.views.plot import plot_explanation

        return plot_explanation(self, image, sample=sample)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.grid)) + " patches" if self.grid else f"{self.scores.shape[1]} tokens"
        return f"Explanation({len(self)} samples, {shape}, target {self.target[0]!r}{', ...' if len(self.target) > 1 else ''}, method {self.method!r}, rules {self.rules!r})"


def join(parts: list[Explanation]) -> Explanation:
    """One explanation of a batch that was computed in parts."""
    from relprop.interpreter.ledger import join_ledgers

    first = parts[0]
    if len(parts) == 1:
        return first
    kinds = {(p.scores.shape[1:], tuple(b.path for b in p.blocks or ())) for p in parts}
    if len(kinds) > 1:
        raise RelpropError(f"samples took branches of the model with different tokens or attention sites ({len(kinds)} kinds): explain them one by one")

    def cat(name: str) -> Any:
        return None if getattr(first, name) is None else torch.cat([getattr(p, name) for p in parts])

    blocks = None if first.blocks is None else tuple(_join_block(same) for same in zip(*(p.blocks or () for p in parts), strict=True))
    ledger = None if first.ledger is None else join_ledgers([p.ledger for p in parts if p.ledger is not None])
    return Explanation(
        cat("scores"), cat("row"), cat("identity"), cat("content"), first.source, tuple(t for p in parts for t in p.target), cat("output"),
        first.method, first.rules, first.stream, ledger, None if first.tokens is None else [t for p in parts for t in p.tokens or ()],
        first.grid, first.image, blocks, cat("matrix"), cat("input"), first.facts,
    )


def _join_block(same: tuple[Block, ...]) -> Block:
    def cat(name: str) -> Any:
        return None if getattr(same[0], name) is None else torch.cat([getattr(b, name) for b in same])

    return Block(same[0].path, cat("attention"), cat("gradient"), cat("relevance"))
