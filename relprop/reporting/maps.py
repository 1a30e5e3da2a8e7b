"""Attention, gradient and relevance of every head in a few megabytes: rounded to steps, as fine as
the page's limit lets them be.

A map of *resolution* 1/n is rounded so that no number is further off than 1/n of the map's largest
magnitude. Every kind of map starts at the finest resolution, 1/4095; while all together are too
large, the largest kind is coarsened, none below 1/255 before all are there. Where even the coarsest
is too large, single heads keep fewer rows: those of the tokens with the highest scores. Means over
heads keep every row as long as there is room, each row with a scale of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from relprop.explanation import Block
from relprop.reporting.chunks import Chunks

LEVELS = (4095, 255, 191, 127, 95, 63, 47, 31, 23, 15)
FEWER_ROWS = 63  # the resolution at which rows are left out
KINDS = ("attention", "gradient", "relevance")


def rounded(maps: np.ndarray, level: int, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers to within 1/``level`` of the largest magnitude along ``axes``: whole numbers, and the
    size of one step for each map (or row): value = whole number · step."""
    largest = np.abs(maps).max(axis=axes, keepdims=True, initial=0)
    steps = (2 / level * largest).astype(np.float32)
    whole = np.rint(maps / np.where(steps > 0, steps, 1)).clip(-(level // 2), level // 2)
    return whole.astype(np.int16 if level > 255 else np.int8), steps.reshape(-1)


def compressed_size(values: np.ndarray) -> int:
    """About how many characters a chunk of these whole numbers takes: their entropy, in base64."""
    counts = np.bincount(values.reshape(-1).astype(np.int64) - int(values.min(initial=0)))
    shares = counts[counts > 0] / max(values.size, 1)
    return int(values.size * float(-(shares * np.log2(shares)).sum()) / 8 * 4 / 3 * 1.04) + 200


@dataclass
class Entry:
    """One map of one sample: (heads, queries, keys), ``order`` its rows from the most to the least
    wanted. ``lead``: (heads,), or windows and such before it."""

    kind: str
    maps: np.ndarray
    order: np.ndarray
    lead: tuple[int, ...]
    sizes: dict[int, int] = field(default_factory=dict)

    def size(self, level: int) -> int:
        """About how many characters it takes at a resolution."""
        if level not in self.sizes:
            self.sizes[level] = compressed_size(rounded(self.maps, level, (1, 2))[0])
        return self.sizes[level]

    def mean_size(self) -> int:
        """About how many characters the mean over heads takes."""
        return compressed_size(rounded(self.maps.mean(0), 255, (1,))[0])


@dataclass
class Maps:
    """All maps of one sample, whatever explanations they belong to; the same map is there once
    (attention is the same for all targets)."""

    entries: dict[bytes, Entry] = field(default_factory=dict)

    def add(self, block: Block, sample: int, scores: Tensor) -> dict[str, bytes]:
        """A block's maps, by kind. ``scores`` (tokens,): rows are wanted by them where the queries
        are these tokens, by what they hold otherwise."""
        kept = {kind: getattr(block, kind) for kind in KINDS if getattr(block, kind) is not None}
        whole = {kind: t[sample].detach().cpu().float() for kind, t in kept.items()}
        arrays = {kind: t.flatten(0, -3).numpy() for kind, t in whole.items()}
        lead = tuple(block.attention.shape[1:-2])
        weights = np.abs(arrays.get("relevance", arrays["attention"])).sum((0, 2))
        if len(lead) == 1 and len(scores) == block.attention.shape[-2]:
            weights = scores.detach().cpu().float().abs().numpy()
        order = np.argsort(-weights, kind="stable")
        keys = {kind: _digest(array) for kind, array in arrays.items()}
        for kind, array in arrays.items():
            self.entries.setdefault(keys[kind], Entry(kind, array, order, lead))
        return keys

    def chosen_levels(self, room: float) -> tuple[dict[str, int], float]:
        """A resolution for each kind, and the share of the rows that single heads keep, so that all
        take about ``room`` characters."""
        levels = dict.fromkeys(KINDS, LEVELS[0])
        while sum((sizes := self._sizes(levels)).values()) > room:
            finest = [kind for kind in KINDS if levels[kind] == LEVELS[0]]
            finer = finest or [kind for kind in KINDS if levels[kind] != LEVELS[-1]]
            if not finer:
                levels = dict.fromkeys(KINDS, FEWER_ROWS)
                return levels, max(0.0, room / sum(self._sizes(levels).values()))
            largest = max(finer, key=lambda kind: sizes[kind])
            levels[largest] = LEVELS[LEVELS.index(levels[largest]) + 1]
        return levels, 1.0

    def _sizes(self, levels: dict[str, int]) -> dict[str, int]:
        """About how many characters the maps of each kind take at its resolution."""
        return {
            kind: sum(entry.size(level) for entry in self.entries.values() if entry.kind == kind)
            for kind, level in levels.items()
        }

    def written(self, chunks: Chunks, room: float) -> dict[bytes, dict[str, Any]]:
        """Every map as the page reads it, in about ``room`` characters: means over heads first, at
        most 2/5 of the room."""
        means = sum(e.mean_size() for e in self.entries.values())
        share = min(1.0, 0.4 * room / means) if means else 1.0
        levels, heads_share = self.chosen_levels(max(0.0, room - share * means))
        return {
            key: _written(entry, chunks, levels[entry.kind], heads_share, share)
            for key, entry in self.entries.items()
        }


def _digest(array: np.ndarray) -> bytes:
    data = f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(data).digest()


def _written(
    entry: Entry, chunks: Chunks, level: int, share: float, mean_share: float
) -> dict[str, Any]:
    rows, mean_rows = (_rows(entry, s) for s in (share, mean_share))
    whole, steps = rounded(entry.maps, level, (1, 2))
    mean, mean_steps = rounded(entry.maps.mean(0), 255, (1,))
    return {
        "level": level,
        "lead": list(entry.lead),
        "heads": len(entry.maps),
        "queries": entry.maps.shape[1],
        "keys": entry.maps.shape[2],
        "values": chunks.add(whole[:, rows]),
        "steps": [float(s) for s in steps],
        "rows": _listed(rows, entry),
        "wide": level > 255,
        "mean": chunks.add(mean[mean_rows]),
        "mean_steps": chunks.add(mean_steps[mean_rows]),
        "mean_rows": _listed(mean_rows, entry),
    }


def _rows(entry: Entry, share: float) -> np.ndarray:
    """The rows that are kept, in order of the map."""
    return np.sort(entry.order[: int(len(entry.order) * share)])


def _listed(rows: np.ndarray, entry: Entry) -> list[int] | None:
    return None if len(rows) == entry.maps.shape[1] else [int(r) for r in rows]
