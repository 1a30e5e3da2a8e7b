"""What a page holds of every sample: its scores, its ledger, and the maps of its attention sites,
in the room that the page's limit leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relprop.explanation import Block, Explanation
from relprop.progress import with_progress
from relprop.reporting.chunks import Chunks
from relprop.reporting.content import ledger_content, stream_content
from relprop.reporting.maps import Maps
from relprop.reporting.page import rendered
from relprop.reporting.words import in_words

FOR_MATRICES = 0.6  # the share of a sample's room that all C matrices may take
TAGS = 700  # characters of a map's entry beside its numbers


@dataclass(frozen=True)
class Material:
    """What a page is made from: explanations of one batch, the pictures they are of as ``data:``
    URIs, and how many bytes each sample may take."""

    explanations: list[Explanation]
    pictures: list[str] | None
    per_sample: float

    @property
    def batch(self) -> int:
        """How many samples there are."""
        return len(self.explanations[0])

    @property
    def limit(self) -> float:
        """How many bytes the page may have."""
        return self.per_sample * self.batch

    @property
    def per_matrix(self) -> float:
        """How many characters one sample's C matrix may take."""
        streams = [s for e in self.explanations for s in e.streams.values()]
        return FOR_MATRICES * self.per_sample / max(sum(s.matrix is not None for s in streams), 1)


def filled(
    heads: list[dict[str, Any]], material: Material, chunks: Chunks, room: float
) -> list[dict[str, Any]]:
    """The explanations with all they hold of every sample. Everything but the maps is written
    first; the maps share what ``room`` leaves."""
    samples = range(material.batch)
    found: list[dict[str, Any]] = [
        {**head, "samples": [_sample(e, n, material, chunks) for n in samples]}
        for head, e in zip(heads, material.explanations, strict=True)
    ]
    rest = room - chunks.size() - len(rendered({"title": "", "explanations": found}, []))
    for n in with_progress(samples, "sample", len(samples)):
        maps = _blocks(material.explanations, n, chunks, rest / material.batch)
        for explanation, blocks in zip(found, maps, strict=True):
            explanation["samples"][n]["blocks"] = blocks
    return found


def _sample(e: Explanation, n: int, material: Material, chunks: Chunks) -> dict[str, Any]:
    """Everything of one sample but its maps."""
    picture = None if material.pictures is None else material.pictures[n]
    room = material.per_matrix
    return {
        "target": _target(e, n),
        "output": float(e.output[n]),
        "said": in_words(e, n),
        "streams": [stream_content(s, n, picture, chunks, room) for s in e.streams.values()],
        "blocks": None,
        "ledger": None if e.ledger is None else ledger_content(e.ledger, n),
    }


def _target(e: Explanation, n: int) -> str:
    """What was explained in sample ``n``: the class's label, where the model has one, with its
    index."""
    label, target = None if e.labels is None else e.labels[n], str(e.target[n])
    return target if label is None or label == target else f"{label} ({target})"


def _blocks(
    explanations: list[Explanation], n: int, chunks: Chunks, room: float
) -> list[list[dict[str, Any]] | None]:
    """One sample's maps, for each explanation those of each of its attention sites; ``None`` for an
    explanation that kept none."""
    maps = Maps()
    keys = [[maps.add(block, n, _scores(e, n)) for block in e.blocks or ()] for e in explanations]
    written = maps.written(chunks, max(0.0, room - TAGS * len(maps.entries)))
    return [
        None
        if e.blocks is None
        else [
            {"path": b.path, **_tokens_of(b, e), **{kind: written[key] for kind, key in k.items()}}
            for b, k in zip(e.blocks, mine, strict=True)
        ]
        for e, mine in zip(explanations, keys, strict=True)
    ]


def _tokens_of(block: Block, e: Explanation) -> dict[str, str | None]:
    """Which input's tokens a block's queries and keys are taken to be: the one input with as many.
    Windows have tokens of their own."""

    def only(count: int) -> str | None:
        names = [s.name for s in e.streams.values() if s.scores.shape[1] == count]
        return names[0] if len(names) == 1 and block.attention.dim() == 4 else None

    return {
        "query_tokens": only(block.attention.shape[-2]),
        "key_tokens": only(block.attention.shape[-1]),
    }


def _scores(e: Explanation, sample: int) -> np.ndarray:
    scores: np.ndarray = (
        next(iter(e.streams.values())).scores[sample].detach().cpu().float().numpy()
    )
    return scores
