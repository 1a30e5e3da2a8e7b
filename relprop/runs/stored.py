"""An explanation as a run keeps it: rows of the table and tensors by name; and put together
again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.explanation import Explanation, TokenScores
from relprop.runs.preparing import Group
from relprop.runs.reading import RunResults

PER_TOKEN = ("scores", "row", "content")
LAYOUT = ("source", "spans")
COLUMNS: Mapping[str, str] = {
    "method": "string",
    "target": "string",
    "output": "float64",
    "probability": "float64",
    "predicted": "int64",
    "label": "int64",
    "rules": "string",
    "layout": "string",
    "tokens": "string",
    "truncated": "int64",
}


def row_of(explanation: Explanation, group: Group, k: int, shares: Tensor | None) -> dict[str, Any]:
    """The row of sample ``k`` of its group but for ``method`` and ``label``; ``shares``: the
    softmax of the model's class scores for it, if it has any."""
    target = explanation.target[k]
    of_class = isinstance(target, int)
    layout = {name: _layout(s, group, k) for name, s in explanation.streams.items()}
    return {
        "target": json.dumps(target, default=str),
        "output": float(explanation.output[k]),
        "rules": explanation.rules,
        "layout": json.dumps(layout),
        "probability": float(shares[target]) if of_class and shares is not None else None,
        "predicted": None if shares is None else int(shares.argmax()),
        "tokens": _tokens(explanation, group, k),
        "truncated": None if group.truncated is None else int(group.truncated[k]),
    }


def tensors_of(named: Mapping[str, Explanation], group: Group, k: int) -> dict[str, Tensor]:
    """The tensors of sample ``k`` of its group, of every method by its label."""
    return {
        _prefix(label, len(named), name, len(explanation.streams)) + n: t
        for label, explanation in named.items()
        for name, stream in explanation.streams.items()
        for n, t in _tensors(stream, k, _kept(stream, group, k)).items()
    }


@guarded
def explanation_of(results: RunResults, index: int, method: str | None = None) -> Explanation:
    """One sample's explanation, a batch of 1, from a run of ``ExplainWork``: scores, tokens,
    ``heatmap()``; without ledger and blocks.

    ``method``: which one, if there are several. Raises ``OptionError`` for a sample that is not
    done, or without a choice among several methods.
    """
    if not isinstance(results, RunResults):
        fact = f"explanation_of({type(results).__name__}): the results of a run are needed"
        raise OptionError(fact, then=["explanation_of(read_run(folder), index)"])
    tensors = results.tensors(index)
    rows = {row["method"]: row for row in results.rows_of(index)}
    if method is None and len(rows) == 1:
        method = next(iter(rows))
    if method is None or method not in rows:
        raise OptionError(f"explanation_of(method={method!r}): there are {', '.join(rows)}")
    row = rows[method]
    layouts = json.loads(row["layout"])
    tokens = json.loads(row["tokens"]) if row["tokens"] else {}
    if isinstance(tokens, list) and len(layouts) == 1:
        tokens = {next(iter(layouts)): tokens}
    streams = {}
    for name, layout in layouts.items():
        start = _prefix(method, len(rows), name, len(layouts))
        own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
        streams[name] = _stream(name, own, layout, tokens.get(name))
    target = json.loads(row["target"])
    target = tuple(target) if isinstance(target, list) else target
    output = torch.tensor([row["output"]], dtype=torch.float64)
    return Explanation(streams, (target,), output, method, row["rules"])


def _prefix(method: str, methods: int, stream: str, streams: int) -> str:
    """How a stream's tensors are named, where there are so many methods and streams."""
    return (f"{method}." if methods > 1 else "") + (f"{stream}." if streams > 1 else "")


def _stream(
    name: str, tensors: Mapping[str, Tensor], layout: Mapping[str, Any], tokens: list[str] | None
) -> TokenScores:
    scores, flow, content = (tensors[n][None] for n in PER_TOKEN)
    source, spans = (tensors.get(n) for n in LAYOUT)
    return TokenScores(
        name,
        scores,
        flow,
        flow - scores,
        content=content,
        source=torch.arange(scores.shape[1]) if source is None else source.long(),
        tokens=None if tokens is None else [tokens],
        grid=layout["grid"] and tuple(layout["grid"]),
        image=layout["image"] and tuple(layout["image"]),
        extent=tuple(layout["extent"]),
        spans=None if spans is None else spans.long(),
    )


def _layout(stream: TokenScores, group: Group, k: int) -> dict[str, Any]:
    cut = group.lengths is not None and stream.grid is None
    extent = (group.lengths[k],) if cut and group.lengths is not None else stream.extent
    return {"grid": stream.grid, "image": stream.image, "extent": extent}


def _tokens(explanation: Explanation, group: Group, k: int) -> str | None:
    """The tokens of each text without padding, as JSON: a list, or lists by input's name."""
    found = {}
    for name, stream in explanation.streams.items():
        if stream.tokens is not None:
            kept = _kept(stream, group, k)
            marks = [True] * len(stream.tokens[k]) if kept is None else kept.tolist()
            found[name] = [t for t, keep in zip(stream.tokens[k], marks, strict=True) if keep]
    if not found:
        return None
    return json.dumps(next(iter(found.values())) if len(found) == 1 else found, ensure_ascii=False)


def _tensors(stream: TokenScores, k: int, kept: Tensor | None) -> dict[str, Tensor]:
    found = {name: getattr(stream, name)[k].detach().cpu() for name in PER_TOKEN}
    if stream.grid is not None:
        layout = {name: getattr(stream, name) for name in LAYOUT}
        found |= {name: t.cpu().int() for name, t in layout.items() if t is not None}
    return found if kept is None else {name: t[kept] for name, t in found.items()}


def _kept(stream: TokenScores, group: Group, k: int) -> Tensor | None:
    """Which tokens of a text are not made from padding, which is on its right."""
    if group.lengths is None or stream.grid is not None:
        return None
    return stream.source.cpu() < group.lengths[k]
