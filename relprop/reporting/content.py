"""An explanation as plain JSON and chunks: what the page shows of one sample. Numbers that are
shown as such stay float32, unrounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from relprop.explanation import Explanation, TokenScores
from relprop.interpreter.ledger import Ledger
from relprop.reporting.chunks import Chunks
from relprop.reporting.pooling import pooled_tokens
from relprop.views.regions import token_places

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


def stream_content(
    tokens: TokenScores, sample: int, picture: str | None, chunks: Chunks, room: float
) -> dict[str, Any]:
    """One input's scores for one sample. ``room``: how many characters C may take; where all of it
    takes more, the rows with the highest scores are kept."""
    pooled, note = pooled_tokens(tokens)
    places = token_places(pooled)
    pooled = _upright(pooled)
    matrix = _matrix(pooled, sample, chunks, room)
    grid = list(pooled.grid) if pooled.grid is not None else None
    size = [*pooled.image[-2:]] if pooled.image is not None and len(pooled.image) > 1 else None
    is_picture = grid is not None and len(grid) == 2 and size is not None
    numbers = {n: getattr(pooled, n)[sample].float() for n in ("scores", "row", "identity")}
    return {
        "name": tokens.name,
        "count": int(pooled.scores.shape[1]),
        "grid": grid,
        "image": size,
        "note": note,
        "picture": picture if is_picture else None,
        "places": places,
        "tokens": None if pooled.tokens is None else list(pooled.tokens[sample]),
        "words": None if pooled.words is None else pooled.words[sample],
        **{name: chunks.add(values) for name, values in numbers.items()},
        "content": chunks.add(pooled.content[sample].to(torch.uint8)),
        "source": chunks.add(pooled.source.to(torch.int32)),
        "matrix": matrix,
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


def ledger_content(ledger: Ledger, sample: int) -> dict[str, Any]:
    """One sample's books: end to end, by module, by parameter and by cause."""
    columns = ("operations", "absorbed", "lost", "unread", "residual")
    return {
        "totals": {name: float(value[sample]) for name, value in ledger.totals().items()},
        "worst": _worst(ledger, sample),
        "accounts": len(ledger.accounts),
        "modules": [[path, *(row[n] for n in columns)] for path, row in _by_module(ledger, sample)],
        "absorbed": _sorted({name: float(v[sample]) for name, v in ledger.absorbed().items()}),
        "lost": _sorted({n: float(v[sample]) for n, v in ledger.lost().items()}),
        "reached": [[name, float(v[sample])] for name, v in ledger.reached.items()],
    }


def _by_module(ledger: Ledger, sample: int) -> list[tuple[str, dict[str, float]]]:
    """The accounts of each module of the model, added up."""
    rows: dict[str, dict[str, float]] = {}
    for account in ledger.accounts:
        row = rows.setdefault(account.path, defaultdict(float))
        row["operations"] += 1
        row["unread"] += float(account.unread[sample])
        row["residual"] += float(account.residual[sample])
        for kind in ("absorbed", "lost"):
            row[kind] += sum(float(v[sample]) for v in getattr(account, kind).values())
    return list(rows.items())


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
    if facts.get("options"):
        options = ", ".join(f"{name}={value}" for name, value in facts["options"].items())
        rows.append(["options", options])
    if facts.get("front_end"):
        rows.append(["captured by", str(facts["front_end"])])
    shown = {name: facts[key] for key, name in FACTS.items() if facts.get(key)}
    return rows + [[name, ", ".join(map(str, values))] for name, values in shown.items()]
