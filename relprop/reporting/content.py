"""An explanation as plain JSON and chunks: what the page shows of one sample. Numbers that are
shown as such stay float32, unrounded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relprop.explanation import Explanation, TokenScores
from relprop.interpreter.ledger import Ledger
from relprop.reporting.chunks import Chunks

MOST_CELLS = (
    4096  # more positions than that are shown as sums over neighbours: no hand finds a single one
)


def stream_content(
    tokens: TokenScores, sample: int, picture: str | None, chunks: Chunks, room: float
) -> dict[str, Any]:
    """One input's scores for one sample. ``room``: how many characters C may take; where all of it
    takes more, the rows with the highest scores are kept."""
    pooled, note = pooled_tokens(tokens)
    matrix: dict[str, Any] | None = None
    if pooled.matrix is not None:
        c = pooled.matrix[sample].detach().cpu().float().numpy()
        count = min(len(c), int(room / (c.shape[1] * 4 * 4 / 3)))
        rows = np.sort(
            np.argsort(
                -np.abs(pooled.scores[sample].detach().cpu().float().numpy()), kind="stable"
            )[:count]
        )
        matrix = {
            "chunk": chunks.add(c[rows]),
            "rows": None if count == len(c) else [int(r) for r in rows],
        }
    grid = list(pooled.grid) if pooled.grid is not None else None
    size = [*pooled.image[-2:]] if pooled.image is not None and len(pooled.image) > 1 else None
    return {
        "name": tokens.name,
        "count": int(pooled.scores.shape[1]),
        "grid": grid,
        "image": size,
        "note": note,
        "picture": picture if grid is not None and len(grid) == 2 and size is not None else None,
        "tokens": None if pooled.tokens is None else list(pooled.tokens[sample]),
        **{
            n: chunks.add(getattr(pooled, n)[sample].float()) for n in ("scores", "row", "identity")
        },
        "content": chunks.add(pooled.content[sample].to(torch.uint8)),
        "source": chunks.add(pooled.source.to(torch.int32)),
        "matrix": matrix,
        "dtype": str(tokens.scores.dtype).removeprefix("torch."),
    }


def pooled_tokens(tokens: TokenScores) -> tuple[TokenScores, str | None]:
    """The tokens, or where there are more than ``MOST_CELLS``, sums over neighbours, with a
    sentence that says so."""
    count = tokens.scores.shape[1]
    if count <= MOST_CELLS:
        return tokens, None
    extent = tokens.grid if tokens.grid is not None else (count,)
    step = 1
    while math.prod(-(-n // step) for n in extent) > MOST_CELLS / 4:
        step += 1
    coarse = tuple(-(-n // step) for n in extent)
    place = tokens.source if tokens.grid is not None else torch.arange(count)
    kept = place >= 0
    index = torch.unravel_index(place.clamp(min=0), extent)
    cell = torch.zeros_like(place)
    for axis, n in zip(index, coarse, strict=True):
        cell = cell * n + axis // step
    total = math.prod(coarse)

    def summed(values: Tensor) -> Tensor:
        values = values.detach().cpu().double()
        return (
            values.new_zeros(len(values), total).index_add(1, cell[kept], values[:, kept]).float()
        )

    side = "×".join([str(step)] * len(extent))
    note = (
        f"{count} positions are too many to point at: each cell holds {side} of them, "
        "and its number is the sum of theirs"
    ) + (", without the model's own tokens." if not bool(kept.all()) else ".")
    return replace(
        tokens,
        scores=summed(tokens.scores),
        row=summed(tokens.row),
        identity=summed(tokens.identity),
        content=summed(tokens.content) > 0,
        source=torch.arange(total),
        tokens=None,
        grid=coarse if tokens.grid is not None else None,
        matrix=None,
        input=None,
        spans=None,
        words=None,
        layers=None,
    ), note + (" C is not shown." if tokens.matrix is not None else "")


def ledger_content(ledger: Ledger, sample: int) -> dict[str, Any]:
    """One sample's books: end to end, by module, by parameter and by cause."""
    rows: dict[str, dict[str, float]] = {}
    for account in ledger.accounts:
        row = rows.setdefault(account.path, defaultdict(float))
        row["operations"] += 1
        row["unread"] += float(account.unread[sample])
        row["residual"] += float(account.residual[sample])
        for kind in ("absorbed", "lost"):
            row[kind] += sum(float(v[sample]) for v in getattr(account, kind).values())
    return {
        "totals": {name: float(value[sample]) for name, value in ledger.totals().items()},
        "worst": _worst(ledger, sample),
        "accounts": len(ledger.accounts),
        "modules": [
            [path, *(row[n] for n in ("operations", "absorbed", "lost", "unread", "residual"))]
            for path, row in rows.items()
        ],
        "absorbed": _sorted({name: float(v[sample]) for name, v in ledger.absorbed().items()}),
        "lost": _sorted({n: float(v[sample]) for n, v in ledger.lost().items()}),
        "reached": [[name, float(v[sample])] for name, v in ledger.reached.items()],
    }


def _worst(ledger: Ledger, sample: int) -> float:
    ratios = [
        abs(float(a.residual[sample])) / size
        for a in ledger.accounts
        if (size := float(a.absolute[sample])) > 0
    ]
    return max(ratios, default=0.0)


def _sorted(amounts: Mapping[str, float]) -> list[list[Any]]:
    return [
        [name, value] for name, value in sorted(amounts.items(), key=lambda item: -abs(item[1]))
    ]


def facts_of(explanation: Explanation) -> list[list[str]]:
    """How an explanation was made, as pairs of a name and a text."""
    facts = explanation.facts
    rows = [["method", explanation.method], ["rule set", explanation.rules]]
    rows += (
        [["options", ", ".join(f"{k}={v}" for k, v in facts["options"].items())]]
        if facts.get("options")
        else []
    )
    rows += [["captured by", str(facts["front_end"])]] if facts.get("front_end") else []
    rows += [
        [name, ", ".join(map(str, facts[key]))]
        for key, name in (
            ("attention_sites", "attention sites"),
            ("softmaxes_without_site", "softmaxes that are no attention"),
            ("decisions", "branches decided at capture"),
            ("generic", "operations by the generic rule"),
            ("inputs_without_attention", "inputs past all attention"),
            ("constant_inputs", "inputs taken as constants"),
            ("constant_lookups", "lookups taken as constants"),
        )
        if facts.get(key)
    ]
    return rows
