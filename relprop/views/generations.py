"""A generation as a table, JSON, lines in a terminal and a picture: a row per generated token."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from relprop.errors import OptionError
from relprop.views.audit import best_shares
from relprop.views.escape import visible
from relprop.views.figure import (
    axes_or_new,
    blank,
    grid_of,
    room_for,
    scale_of,
    show_image,
    write_ticks,
    write_title,
)
from relprop.views.listed import framed, rows
from relprop.views.shaded_text import draw_words
from relprop.views.shown import checked
from relprop.views.token_maps import Maps, columns, maps_of, strongest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from relprop.explanation import Generation

WORDS, LETTERS = 5.0, 10.0  # inches of words beside pictures, and the size of these in points


def steps_of(generation: Generation, sample: int) -> list[int]:
    """The steps before the sample's end. Raises ``OptionError`` for a sample that is not there."""
    checked(generation.steps[0], sample)
    return [k for k, token in enumerate(generation.ids[sample].tolist()) if token >= 0]


def to_dataframe(generation: Generation) -> Any:
    """A row per sample, step, input and token, as an explanation's, with the token generated."""
    ids, labels = generation.ids.tolist(), generation.labels
    found = [
        {"step": k, "generated": labels[row["sample"]][k], "id": ids[row["sample"]][k], **row}
        for k, step in enumerate(generation.steps)
        for row in rows(step)
        if ids[row["sample"]][k] >= 0
    ]
    return framed(found, generation.steps[0], prompt=generation.prompt)


def to_json(generation: Generation, *, indent: int | None) -> str:
    """``contents`` as text."""
    return json.dumps(contents(generation), indent=indent, allow_nan=False)


def contents(generation: Generation) -> dict[str, Any]:
    """Every sample: its generated tokens, each with its logit and a score per token before it."""
    first = generation.steps[0]
    return {
        "method": first.method,
        "rules": first.rules,
        "stream": generation.stream,
        "prompt": generation.prompt,
        "samples": [_sample(generation, i) for i in range(len(generation))],
    }


def _sample(generation: Generation, sample: int) -> dict[str, Any]:
    first, kept = generation.steps[0], steps_of(generation, sample)
    return {
        "inputs": {
            name: {
                "tokens": columns(s, sample),
                "content": s.content[sample].tolist(),
                **({} if s.grid is None else {"grid": s.grid, "source": s.source.tolist()}),
            }
            for name, s in first.streams.items()
        },
        "steps": [
            {
                "token": generation.labels[sample][k],
                "id": int(generation.ids[sample, k]),
                "output": float(generation.steps[k].output[sample]),
                "scores": {
                    name: s.scores[sample].tolist()
                    for name, s in generation.steps[k].streams.items()
                },
            }
            for k in kept
        ],
    }


def terminal(generation: Generation, sample: int, *, k: int) -> str:
    """A line per generated token: the ``k`` tokens before it with the largest scores, in shares of
    all |score| of content."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise OptionError(f"show(k={k!r}): a positive number of tokens")
    kept, first = steps_of(generation, sample), generation.steps[0]
    names = [visible(generation.labels[sample][i], 24) for i in kept]
    lines = [f"{len(kept)} generated tokens, {first.method}, rules {first.rules}"]
    width = max(map(len, names), default=0)
    for i, name in zip(kept, names, strict=True):
        lines.append(f"{name:>{width}}  {_strongest(generation, i, sample, k)}")
    return "\n".join(lines)


def _strongest(generation: Generation, step: int, sample: int, k: int) -> str:
    """The strongest tokens of one step, whichever input they are of."""
    several = len(generation.streams) > 1
    found = [
        (f"{name}:{visible(label, 24)}" if several else visible(label, 24), score)
        for name, s in generation.steps[step].streams.items()
        for score, label, inside in zip(
            s.scores[sample].tolist(), columns(s, sample), s.content[sample].tolist(), strict=True
        )
        if inside and score != 0
    ]
    total = math.fsum(abs(score) for _, score in found)
    return ", ".join(f"{name} ({share:.2f})" for name, share in best_shares(found, k, total))


def plot(generation: Generation, sample: int) -> Figure:
    """A row per generated token: the tokens before it as columns, or, beside pictures, the pictures
    with their maps and the words shaded. Raises ``OptionError`` where several inputs of text are
    explained."""
    kept = steps_of(generation, sample)
    if found := maps_of([generation.steps[k] for k in kept], sample):
        return _plot_beside(generation, sample, kept, found)
    if len(generation.streams) > 1:
        names = ", ".join(f"generation[{name!r}].plot()" for name in generation.streams)
        raise OptionError("plot(): several inputs are explained, a picture is of one", then=[names])
    return _plot_rows(generation, sample, kept)


def _plot_rows(generation: Generation, sample: int, kept: list[int]) -> Figure:
    (name,) = generation.streams
    stream = generation.steps[0].streams[name]
    labels = columns(stream, sample)
    tokens = [generation.labels[sample][k] for k in kept]
    wide = min(max(3.0, 0.18 * len(labels)), 12.0) + room_for(tokens)
    high = min(max(1.0, 0.2 * len(kept)), 10.0) + room_for(labels) + 0.4
    axes = axes_or_new(None, wide, high)
    values = np.array([_shares(generation, name, sample, k) for k in kept])
    axes.imshow(values, aspect="auto", **scale_of(values, strongest=1.0))
    write_ticks(axes, "x", labels, rotation=90.0)
    write_ticks(axes, "y", tokens)
    axes.spines[:].set_visible(False)
    write_title(axes, f"{generation.steps[0].method}, each row by its strongest token")
    return axes.figure  # type: ignore[return-value]


def _plot_beside(generation: Generation, sample: int, kept: list[int], found: list[Maps]) -> Figure:
    """A row per generated token: each picture under its map, then the words before the token."""
    texts = [n for n in generation.streams if generation.steps[0].streams[n].grid is None]
    high = min(1.7, 40.0 / len(kept))
    widths = [high] * len(found) + [WORDS] * len(texts)
    fig = blank(sum(widths), (high + 0.2) * len(kept))
    lines = grid_of(fig, len(kept), len(widths), widths)
    for place, (line, step) in enumerate(zip(lines, kept, strict=True)):
        for axes, one in zip(line, found, strict=False):
            show_image(axes, one.over(one.shares[place]), "")
        write_title(line[0], visible(generation.labels[sample][step], 24))
        for axes, name in zip(line[len(found) :], texts, strict=True):
            stream = generation.steps[step].streams[name]
            end = generation.prompt + step if name == generation.stream else None
            inside = stream.content[sample][:end].nonzero()[:, 0].tolist()
            labels, values = columns(stream, sample), _shares(generation, name, sample, step)
            words = [visible(labels[i], 60) for i in inside]
            draw_words(axes, words, [values[i] for i in inside], WORDS, LETTERS)
    return fig


def _shares(generation: Generation, name: str, sample: int, step: int) -> list[float]:
    """The scores of an input's content before a generated token, as shares of the largest |score|
    among all inputs."""
    explanation, stream = generation.steps[step], generation.steps[step].streams[name]
    content = (stream.scores[sample] * stream.content[sample]).double()
    return (content / strongest(explanation, sample)).tolist()
