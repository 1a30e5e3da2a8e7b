"""An explanation on the terminal, as JSON, as a page and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from relprop.commands.telling import plain
from relprop.errors import OptionError, message

if TYPE_CHECKING:
    from torch import Tensor

    from relprop.commands.subject import Subject
    from relprop.explanation import Explanation

TOP, SHADES, WIDEST = 10, " ░▒▓█", 48


def on_terminal(explanations: Sequence[Any], subject: Subject) -> str:
    """What to print of explanations of one input, one per target."""
    if hasattr(explanations[0], "terminal"):
        return "\n\n".join(str(e.terminal()) for e in explanations)
    return "\n\n".join(_table(e, subject) for e in explanations)


def json_of(explanation: Explanation) -> Any:
    """An explanation as values that JSON has."""
    if hasattr(explanation, "to_json"):
        return json.loads(explanation.to_json())
    streams = explanation.streams.items()
    samples = [
        {"target": plain(target), "output": plain(float(explanation.output[i])), "inputs": {name: _stream(explanation[name], i) for name, _ in streams}}
        for i, target in enumerate(explanation.target)
    ]
    layout = {name: {"grid": s.grid, "image": s.image, "source": s.source.tolist()} for name, s in streams}
    return {"method": explanation.method, "rules": explanation.rules, "options": plain(explanation.facts.get("options", {})), "inputs": layout, "samples": samples}


def refuse_page() -> None:
    """Raise ``OptionError`` if this version writes no pages."""
    from relprop.explanation import Explanation

    if not hasattr(Explanation, "to_html"):
        raise OptionError("this version of relprop writes no .html: --out x.png or --out x.json")


def page_writer(explanation: Any, subject: Subject) -> Any:
    """What writes the explanation as one HTML file."""
    return lambda path: explanation.to_html(path, model=subject.model)


def picture_writer(explanations: Sequence[Explanation], subject: Subject) -> Any:
    """What draws explanations of one input, one per target, side by side: heat maps over the picture, or the tokens. Raises ``OptionError`` for several inputs."""
    if len(explanations[0].streams) > 1:
        raise OptionError(message("several inputs are explained, and a picture is of one", then=[f"--stream {name}" for name in explanations[0].streams]))
    return lambda path: _save(_figure(explanations, subject), path)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)


def _figure(explanations: Sequence[Explanation], subject: Subject) -> Any:
    from relprop.views.plot import figure, plot_comparison, show_heatmap, show_image

    first = explanations[0]
    if first.grid is None or len(first.grid) != 2:
        named = {title(e, subject): e for e in explanations}
        return first.plot() if len(explanations) == 1 else plot_comparison(named, None, sample=0)
    picture, whole = _picture(first, subject)
    fig, axes = figure(len(explanations) + 1)
    show_image(axes[0], picture, "input")
    for panel, e in zip(axes[1:], explanations, strict=True):
        show_heatmap(panel, e.original_heatmap() if whole else e.heatmap()[0], title(e, subject), picture)
    return fig


def _picture(explanation: Explanation, subject: Subject) -> tuple[Tensor, bool]:
    """The picture that was given, if the explanation knows where its pixels are on it, else the model's own image; and which of the two."""
    from relprop.data.images import image_tensor

    given = subject.inputs.get("images") if isinstance(subject.inputs, dict) else subject.inputs
    originals = next(iter(explanation.streams.values())).originals
    if originals is not None and hasattr(given, "convert"):
        return image_tensor(given), True
    own = subject.own_image()
    assert own is not None  # its explanation has a grid
    return own, False


def title(explanation: Explanation, subject: Subject) -> str:
    """The target, with its label where the model has one."""
    target = explanation.target[0]
    label = subject.label(target)
    return f"{target}" if label is None or label == target else f"{label} ({target})"


def _table(explanation: Explanation, subject: Subject) -> str:
    lines = [f"target {title(explanation, subject)}, output {float(explanation.output[0]):.4g}; {explanation.method}, rules {explanation.rules!r}"]
    for name in explanation.streams:
        one = explanation[name]
        lines += [f"{name}:"] if len(explanation.streams) > 1 else []
        if one.grid is not None and len(one.grid) == 2:
            lines += _blocks(one)
        parts = sorted(_parts(one, 0), key=lambda part: -abs(part[1]))[:TOP]
        strongest, wide = max(abs(score) for _, score in parts) or 1.0, max(len(part) for part, _ in parts)
        lines += [f"  {part:<{wide}}  {score:>11.4g}  {'█' * round(20 * abs(score) / strongest)}" for part, score in parts]
    return "\n".join(lines)


def _parts(one: Explanation, sample: int) -> list[tuple[str, float]]:
    """The content of one input: words, else tokens, else patches by row and column, each with its score."""
    stream = next(iter(one.streams.values()))
    if stream.words is not None:
        return one.words(sample)
    scores, content, source = stream.scores[sample].tolist(), stream.content[sample].tolist(), stream.source.tolist()
    if stream.grid is not None and len(stream.grid) == 2:
        return [(f"row {at // stream.grid[1]}, column {at % stream.grid[1]}", s) for s, c, at in zip(scores, content, source, strict=True) if c and at >= 0]
    names = stream.tokens[sample] if stream.tokens is not None else [str(i) for i in range(len(scores))]
    return [(name, s) for name, s, c in zip(names, scores, content, strict=True) if c]


def _blocks(one: Explanation) -> list[str]:
    """The map in shades of ink, two characters per patch, not wider than 48 patches."""
    assert one.grid is not None
    factor = -(-max(one.grid) // WIDEST)
    heat = one.heatmap((-(-one.grid[0] // factor), -(-one.grid[1] // factor)))[0].abs()
    shares = heat / heat.max().clamp(min=torch.finfo(heat.dtype).tiny)
    return ["  " + "".join(2 * SHADES[round(v * (len(SHADES) - 1))] for v in row) for row in shares.tolist()]


def _stream(one: Explanation, sample: int) -> dict[str, Any]:
    stream = next(iter(one.streams.values()))
    found: dict[str, Any] = {"scores": stream.scores[sample].tolist(), "content": stream.content[sample].tolist()}
    if stream.tokens is not None:
        found["tokens"] = stream.tokens[sample]
    if stream.words is not None:
        found["words"] = [{"text": text, "score": score} for text, score in one.words(sample)]
    return plain(found)  # type: ignore[no-any-return]
