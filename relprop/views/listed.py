"""An explanation as lists, tables and JSON: its words, its strongest parts, a row per token. pandas
is looked up when a table is asked for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.errors import OptionError, message
from relprop.views.audit import concerns
from relprop.views.shown import place_of, units

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores


def words(tokens: TokenScores, sample: int) -> list[tuple[str, float]]:
    """One sample's words, each with the sum of its tokens' scores."""
    if tokens.words is None:
        raise OptionError(
            message(
                "words() needs to know the tokenizer",
                then=["relprop.explain(model, inputs, processor=tokenizer)"],
            )
        )
    scores = tokens.scores[sample].tolist()
    return [(word, sum(scores[i] for i in made)) for word, made in tokens.words[sample]]


def seconds(tokens: TokenScores, rate: float | None) -> Tensor:
    """(tokens, 2): from when to when in the recording each token was made."""
    if tokens.spans is None or (rate is None and tokens.clock is None):
        raise OptionError(
            message(
                "seconds() needs to know how long a step of the input is",
                then=[
                    "explanation.seconds(rate=16000)",
                    "relprop.explain(model, inputs, processor=feature_extractor)",
                ],
            )
        )
    if rate is not None and not rate > 0:
        raise OptionError(f"seconds(rate={rate!r}): a positive number of steps per second")
    axis, step = tokens.clock or (0, 0.0)
    times = tokens.spans[:, axis].clamp(0, tokens.extent[axis]) * (
        step if rate is None else 1 / rate
    )
    return torch.where((tokens.source < 0)[:, None], math.nan, times)


def top(
    explanation: Explanation, k: int, sample: int, *, by: str | None
) -> list[tuple[Any, float]]:
    """The ``k`` content parts with the largest scores; of equal ones the earlier first."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise OptionError(f"top(k={k!r}): a positive number of words, tokens or patches")
    found = units(explanation, sample, by, what="top()")
    parts = [
        (name, score)
        for name, score, content in zip(found.names, found.scores, found.content, strict=True)
        if content
    ]
    return sorted(parts, key=lambda part: -part[1])[:k]


def rows(explanation: Explanation) -> list[dict[str, Any]]:
    """A row per sample, input and token, as plain values."""
    found = []
    for name, stream in explanation.streams.items():
        scores, row, identity, content = (
            t.tolist() for t in (stream.scores, stream.row, stream.identity, stream.content)
        )
        source = stream.source.tolist()
        for i in range(len(explanation)):
            word_of = (
                {t: k for k, (_, made) in enumerate(stream.words[i]) for t in made}
                if stream.words is not None
                else {}
            )
            for t, at in enumerate(source):
                one = {
                    "sample": i,
                    "input": name,
                    "index": t,
                    "score": scores[i][t],
                    "row": row[i][t],
                    "identity": identity[i][t],
                }
                one |= {"content": content[i][t], "source": at}
                one |= {} if stream.tokens is None else {"token": stream.tokens[i][t]}
                if stream.words is not None:
                    one |= {
                        "word": stream.words[i][word_of[t]][0] if t in word_of else None,
                        "word_index": word_of.get(t),
                    }
                place = place_of(at, stream.grid) if stream.grid is not None else None
                axes = (
                    ("time", "patch_row", "patch_column")[-len(stream.grid) :]
                    if stream.grid is not None
                    else ()
                )
                found.append(
                    one | {axis: None if place is None else place[n] for n, axis in enumerate(axes)}
                )
    return found


def to_dataframe(explanation: Explanation) -> Any:
    """``rows`` as a pandas ``DataFrame``; the target, its label and the method are in its
    ``attrs``."""
    try:
        import pandas
    except ImportError:
        raise OptionError('to_dataframe() needs pandas: pip install "relprop[pandas]"') from None
    frame = pandas.DataFrame(rows(explanation))
    for name in {"word_index", "time", "patch_row", "patch_column"} & set(frame.columns):
        frame[name] = frame[name].astype("Int64")
    frame.attrs = {
        "method": explanation.method,
        "rules": explanation.rules,
        "target": list(explanation.target),
    }
    frame.attrs["labels"] = None if explanation.labels is None else list(explanation.labels)
    return frame


def to_json(explanation: Explanation, *, indent: int | None) -> str:
    """Everything a person or a page needs of every sample; no NaN, which JSON does not have."""
    samples = []
    for i in range(len(explanation)):
        streams = {}
        for name, stream in explanation.streams.items():
            streams[name] = {
                "scores": stream.scores[i].tolist(),
                "content": stream.content[i].tolist(),
            }
            streams[name] |= {} if stream.tokens is None else {"tokens": stream.tokens[i]}
            streams[name] |= (
                {}
                if stream.words is None
                else {"words": [{"text": text, "score": score} for text, score in words(stream, i)]}
            )
        samples.append(
            {
                "target": _plain(explanation.target[i]),
                "label": explanation.labels[i] if explanation.labels is not None else None,
                "probability": None
                if explanation.probability is None
                else float(explanation.probability[i]),
                "output": _plain(float(explanation.output[i])),
                "inputs": streams,
                "concerns": concerns(explanation, i),
            }
        )
    layout = {
        name: {"grid": s.grid, "image": s.image, "source": s.source.tolist()}
        for name, s in explanation.streams.items()
    }
    how = {
        "method": explanation.method,
        "rules": explanation.rules,
        "options": _plain(dict(explanation.facts.get("options", {}))),
    }
    whole = how | {"inputs": layout, "samples": samples}
    return json.dumps(whole, indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
