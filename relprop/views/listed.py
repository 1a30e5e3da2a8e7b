"""An explanation as lists, tables and JSON: its words, its strongest parts, a row per token. pandas
is looked up when a table is asked for."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.views.audit import concerns
from relprop.views.shown import place_of, units

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores

SAY_RATE = (
    "explanation.seconds(rate=16000)",
    "relprop.explain(model, inputs, processor=feature_extractor)",
)


def words(tokens: TokenScores, sample: int, *, share: bool = False) -> list[tuple[str, float]]:
    """One sample's words, each with the sum of its tokens' scores, or its share of all words'."""
    if tokens.words is None:
        raise OptionError(
            "words() needs to know the tokenizer",
            then=["relprop.explain(model, inputs, processor=tokenizer)"],
        )
    if not isinstance(sample, int) or not -len(tokens.scores) <= sample < len(tokens.scores):
        raise OptionError(f"sample={sample!r}: the explanation has {len(tokens.scores)} samples")
    scores = tokens.scores[sample].tolist()
    found = [(word, sum(scores[i] for i in made)) for word, made in tokens.words[sample]]
    return shares(found) if share else found


def shares(parts: list[tuple[Any, float]]) -> list[tuple[Any, float]]:
    """Scores as shares of the sum of all |score|; 0 where that is 0."""
    total = sum(abs(score) for _, score in parts) or 1.0
    return [(name, score / total) for name, score in parts]


def seconds(tokens: TokenScores, rate: float | None) -> Tensor:
    """(tokens, 2): from when to when in the recording each token was made."""
    if tokens.spans is None or (rate is None and tokens.clock is None):
        raise OptionError("seconds() needs to know how long a step of the input is", then=SAY_RATE)
    if rate is not None and not rate > 0:
        raise OptionError(f"seconds(rate={rate!r}): a positive number of steps per second")
    axis, known_step = tokens.clock or (0, 0.0)
    step = known_step if rate is None else 1 / rate
    times = tokens.spans[:, axis].clamp(0, tokens.extent[axis]) * step
    return torch.where((tokens.source < 0)[:, None], math.nan, times)


def top(
    explanation: Explanation, k: int, sample: int, *, by: str | None, share: bool = False
) -> list[tuple[Any, float]]:
    """The ``k`` content parts with the largest scores; of equal ones the earlier first."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise OptionError(f"top(k={k!r}): a positive number of words, tokens or patches")
    found = units(explanation, sample, by, what="top()")
    parts = shares(found.inside()) if share else found.inside()
    return sorted(parts, key=lambda part: -part[1])[:k]


def rows(explanation: Explanation) -> list[dict[str, Any]]:
    """A row per sample, input and token, as plain values."""
    return [
        row
        for stream in explanation.streams.values()
        for sample in range(len(explanation))
        for row in _rows_of(stream, sample)
    ]


def _rows_of(stream: TokenScores, sample: int) -> list[dict[str, Any]]:
    """The rows of one sample's tokens in one input."""
    scores, row, identity, content = (
        values[sample].tolist()
        for values in (stream.scores, stream.row, stream.identity, stream.content)
    )
    source = stream.source.tolist()
    return [
        {
            "sample": sample,
            "input": stream.name,
            "index": t,
            "score": scores[t],
            "row": row[t],
            "identity": identity[t],
            "content": content[t],
            "source": source[t],
            **names,
            **_place(source[t], stream.grid),
        }
        for t, names in enumerate(_names(stream, sample))
    ]


def _names(stream: TokenScores, sample: int) -> list[dict[str, Any]]:
    """Each token's label, and the word it belongs to, where they are known."""
    found: list[dict[str, Any]] = [{} for _ in range(stream.scores.shape[1])]
    if stream.tokens is not None:
        for names, label in zip(found, stream.tokens[sample], strict=True):
            names["token"] = _utf8(label)
    if stream.words is not None:
        for names in found:
            names |= {"word": None, "word_index": None}
        for k, (word, made) in enumerate(stream.words[sample]):
            for t in made:
                found[t] |= {"word": _utf8(word), "word_index": k}
    return found


def _utf8(text: str) -> str:
    """Text with the halves of characters written out that UTF-8 does not have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _place(source: int, grid: tuple[int, ...] | None) -> dict[str, int | None]:
    """Where a patch is, by the names of the grid's axes."""
    if grid is None:
        return {}
    axes = ("time", "patch_row", "patch_column")[-len(grid) :]
    return dict(zip(axes, place_of(source, grid) or (None,) * len(axes), strict=True))


def to_dataframe(explanation: Explanation) -> Any:
    """``rows`` as a pandas ``DataFrame``; the target, its label and the method are in its
    ``attrs``."""
    labels = None if explanation.labels is None else list(explanation.labels)
    frame = framed(rows(explanation), explanation, target=list(explanation.target), labels=labels)
    for name in {"word_index", "time", "patch_row", "patch_column"} & set(frame.columns):
        frame[name] = frame[name].astype("Int64")
    return frame


def framed(found: list[dict[str, Any]], made_by: Explanation, **facts: Any) -> Any:
    """Rows as a pandas ``DataFrame`` whose ``attrs`` say by which method and rules, and more
    ``facts``."""
    try:
        import pandas
    except ImportError:
        raise OptionError('to_dataframe() needs pandas: pip install "relprop[pandas]"') from None
    frame = pandas.DataFrame(found)
    frame.attrs = {"method": made_by.method, "rules": made_by.rules, **facts}
    return frame


def to_json(explanation: Explanation, *, indent: int | None) -> str:
    """Everything a person or a page needs of every sample; no NaN, which JSON does not have."""
    if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= 16):
        raise OptionError(f"to_json(indent={indent!r}): None, or a number of spaces, 0 to 16")
    inputs = {
        name: {"grid": s.grid, "image": s.image, "source": s.source.tolist()}
        for name, s in explanation.streams.items()
    }
    whole = {
        "method": explanation.method,
        "rules": explanation.rules,
        "options": _plain(dict(explanation.facts.get("options", {}))),
        "inputs": inputs,
        "samples": [_sample_as_json(explanation, i) for i in range(len(explanation))],
    }
    return json.dumps(whole, indent=indent, allow_nan=False)


def _sample_as_json(explanation: Explanation, sample: int) -> dict[str, Any]:
    labels, probability = explanation.labels, explanation.probability
    predictions = explanation.predictions
    return {
        "target": _plain(explanation.target[sample]),
        "label": None if labels is None else labels[sample],
        "probability": None if probability is None else float(probability[sample]),
        "output": _plain(float(explanation.output[sample])),
        "prediction": None if predictions is None else _plain(predictions[sample]._asdict()),
        "inputs": {name: _tokens_as_json(s, sample) for name, s in explanation.streams.items()},
        "concerns": concerns(explanation, sample),
    }


def _tokens_as_json(stream: TokenScores, sample: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "scores": stream.scores[sample].tolist(),
        "content": stream.content[sample].tolist(),
    }
    if stream.tokens is not None:
        found["tokens"] = stream.tokens[sample]
    if stream.words is not None:
        found["words"] = [{"text": text, "score": score} for text, score in words(stream, sample)]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
