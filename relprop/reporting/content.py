"""What a page holds of every sample, as plain JSON and chunks: its scores, its ledger, and the maps
of its attention sites, in the room that the page's limit leaves. Numbers that are shown as such
stay float32, unrounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from relprop.explanation import Block, Explanation, TokenScores
from relprop.interpreter.accounts import Account
from relprop.interpreter.ledger import Ledger
from relprop.progress import with_progress
from relprop.reporting.chunks import Chunks
from relprop.reporting.maps import Maps
from relprop.reporting.page import rendered
from relprop.reporting.pooling import pooled_tokens
from relprop.reporting.words import in_words
from relprop.views.audit import worst_residual
from relprop.views.regions import token_places
from relprop.views.stages import ends

FOR_MATRICES = 0.6  # the share of a sample's room that all C matrices may take
TAGS = 700  # characters of a map's entry beside its numbers
FACTS = {
    "attention_sites": "attention sites",
    "softmaxes_without_site": "softmaxes that are no attention",
    "unrecognised": "attention without a softmax, not counted",
    "decisions": "branches decided at capture",
    "generic": "operations by the generic rule",
    "inputs_without_attention": "inputs past all attention",
    "constant_inputs": "inputs taken as constants",
    "constant_lookups": "lookups taken as constants",
}
"""What the page calls those of an explanation's ``facts`` that are lists."""


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
        "streams": [_stream(s, n, picture, chunks, room) for s in e.streams.values()],
        "blocks": None,
        "ledger": None if e.ledger is None else _ledger(e.ledger, n),
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
    scores = [next(iter(e.streams.values())).scores[n] for e in explanations]
    both = list(zip(explanations, scores, strict=True))
    keys = [[maps.add(block, n, own) for block in e.blocks or ()] for e, own in both]
    written = maps.written(chunks, max(0.0, room - TAGS * len(maps.entries)))
    return [
        None
        if not e.blocks
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


def _stream(
    tokens: TokenScores, sample: int, picture: str | None, chunks: Chunks, room: float
) -> dict[str, Any]:
    """One input's scores for one sample. ``room``: how many characters C may take; where all of it
    takes more, the rows with the highest scores are kept."""
    pooled, note = pooled_tokens(tokens)
    places = token_places(pooled)
    pooled = _upright(pooled)
    size = pooled.image[-2:] if pooled.image is not None and len(pooled.image) > 1 else None
    is_picture = pooled.grid is not None and len(pooled.grid) == 2 and size is not None
    numbers = {n: getattr(pooled, n)[sample].float() for n in ("scores", "row", "identity")}
    return {
        "name": tokens.name,
        "count": int(pooled.scores.shape[1]),
        "grid": pooled.grid,
        "image": size,
        "note": note,
        "picture": picture if is_picture else None,
        "places": places,
        "tokens": None if pooled.tokens is None else pooled.tokens[sample],
        "words": None if pooled.words is None else pooled.words[sample],
        **{name: chunks.add(values) for name, values in numbers.items()},
        "content": chunks.add(pooled.content[sample].to(torch.uint8)),
        "source": chunks.add(pooled.source.to(torch.int32)),
        "matrix": _matrix(pooled, sample, chunks, room),
        "dtype": str(tokens.scores.dtype).removeprefix("torch."),
    }


def _upright(tokens: TokenScores) -> TokenScores:
    """The tokens of a spectrogram where they are drawn: time to the right, pitch upwards."""
    if tokens.clock is None or tokens.grid is None or len(tokens.grid) != 2:
        return tokens
    time = tokens.clock[0]
    grid, image = (tokens.grid[1 - time], tokens.grid[time]), tokens.image
    at = torch.unravel_index(tokens.source.clamp(min=0), tokens.grid)
    source = (grid[0] - 1 - at[1 - time]) * grid[1] + at[time]
    return replace(
        tokens,
        grid=grid,
        image=None if image is None else (image[1 - time], image[time]),
        source=source.where(tokens.source >= 0, -1),
    )


def _matrix(tokens: TokenScores, sample: int, chunks: Chunks, room: float) -> dict[str, Any] | None:
    """C of one sample, as many of its rows as there is room for."""
    if tokens.matrix is None:
        return None
    c = tokens.matrix[sample].detach().cpu().float().numpy()
    count = min(len(c), int(room / (c.shape[1] * 4 * 4 / 3)))
    weights = np.abs(tokens.scores[sample].detach().cpu().float().numpy())
    rows = np.sort(np.argsort(-weights, kind="stable")[:count])
    kept = None if count == len(c) else [int(row) for row in rows]
    return {"chunk": chunks.add(c[rows]), "rows": kept}


def _ledger(ledger: Ledger, sample: int) -> dict[str, Any]:
    """One sample's books: end to end, by module, by parameter and by cause."""
    modules: dict[str, list[Account]] = {}
    for account in ledger.accounts:
        modules.setdefault(account.path, []).append(account)
    return {
        "totals": {name: float(value[sample]) for name, value in ledger.totals().items()},
        "worst": worst_residual(ledger, sample),
        "accounts": len(ledger.accounts),
        "modules": [[path, len(own), *ends(own, sample).values()] for path, own in modules.items()],
        "absorbed": _sorted({name: float(v[sample]) for name, v in ledger.absorbed().items()}),
        "lost": _sorted({n: float(v[sample]) for n, v in ledger.lost().items()}),
    }


def _sorted(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: -abs(item[1]))


def facts_of(explanation: Explanation) -> list[list[str]]:
    """How an explanation was made, as pairs of a name and a text."""
    facts = explanation.facts
    rows = [["method", explanation.method], ["rule set", explanation.rules]]
    if facts.get("options"):
        options = ", ".join(f"{name}={value}" for name, value in facts["options"].items())
        rows.append(["options", options])
    if facts.get("front_end"):
        rows.append(["captured by", str(facts["front_end"])])
    shown = {name: facts[key] for key, name in FACTS.items() if facts.get(key)}
    return rows + [[name, ", ".join(map(str, values))] for name, values in shown.items()]
