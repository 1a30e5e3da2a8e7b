"""A generation as a table, JSON, lines in a terminal and a picture: a row per generated token."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError
from relprop.views.audit import SHOWN
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
from relprop.views.listed import rows
from relprop.views.shaded_text import draw_words
from relprop.views.shown import checked
from relprop.views.terminal import print_text
from relprop.views.token_maps import Maps, columns, maps_of, strongest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from relprop.explanation import Generation

WORDS, LETTERS = 5.0, 10.0  # inches of words beside pictures, and the size of these in points


def steps_of(generation: Generation, sample: int) -> list[int]:
    """The steps before the sample's end. Raises ``OptionError`` for a sample that is not there."""
    checked(generation.steps[0], sample)
    return [k for k, token in enumerate(generation.ids[sample].tolist()) if token >= 0]


def shares(generation: Generation, name: str, sample: int) -> list[list[float]]:
    """A row per generated token: the scores of an input's tokens, as shares of the largest |score|
    of content among all inputs."""
    found = []
    for k in steps_of(generation, sample):
        step, stream = generation.steps[k], generation.steps[k].streams[name]
        row = (stream.scores[sample] * stream.content[sample]).double() / strongest(step, sample)
        found.append(row.clamp(-1, 1).tolist())
    return found


def to_dataframe(generation: Generation) -> Any:
    """A row per sample, step, input and token, as an explanation's, with the token generated."""
    try:
        import pandas
    except ImportError:
        raise OptionError('to_dataframe() needs pandas: pip install "relprop[pandas]"') from None
    ids, labels = generation.ids.tolist(), generation.labels
    found = [
        {"step": k, "generated": labels[row["sample"]][k], "id": ids[row["sample"]][k], **row}
        for k, step in enumerate(generation.steps)
        for row in rows(step)
        if ids[row["sample"]][k] >= 0
    ]
    frame = pandas.DataFrame(found)
    first = generation.steps[0]
    frame.attrs = {"method": first.method, "rules": first.rules, "prompt": generation.prompt}
    return frame


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


def show(generation: Generation, sample: int, *, k: int) -> None:
    """Print it."""
    print_text(terminal(generation, sample, k=k))


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
        (score, f"{name}:" if several else "", label)
        for name, s in generation.steps[step].streams.items()
        for score, label, inside in zip(
            s.scores[sample].tolist(), columns(s, sample), s.content[sample].tolist(), strict=True
        )
        if inside and score != 0
    ]
    total = math.fsum(abs(score) for score, _, _ in found)
    best = sorted(found, key=lambda part: -part[0])[:k]
    shares = [(score / total, where + visible(label, 24)) for score, where, label in best]
    named = [part for i, part in enumerate(shares) if i == 0 or part[0] >= SHOWN]
    return ", ".join(f"{name} ({share:.2f})" for share, name in named)


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
    found, labels = shares(generation, name, sample), columns(stream, sample)
    tokens = [generation.labels[sample][k] for k in kept]
    wide = min(max(3.0, 0.18 * len(labels)), 12.0) + room_for(tokens)
    high = min(max(1.0, 0.2 * len(kept)), 10.0) + room_for(labels) + 0.4
    axes = axes_or_new(None, wide, high)
    import numpy as np

    values = np.asarray(found)
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
            draw_words(axes, *words_before(generation, name, sample, step), WORDS, LETTERS)
    return fig


def words_before(
    generation: Generation, name: str, sample: int, step: int
) -> tuple[list[str], list[float]]:
    """The tokens of content before a generated token, and their shares."""
    stream = generation.steps[step].streams[name]
    end = generation.prompt + step if name == generation.stream else stream.scores.shape[1]
    values = (stream.scores[sample] / strongest(generation.steps[step], sample)).tolist()
    every = zip(columns(stream, sample), values, stream.content[sample].tolist(), strict=True)
    some = [(label, value) for label, value, inside in list(every)[:end] if inside]
    return [visible(label, 60) for label, _ in some], [value for _, value in some]
