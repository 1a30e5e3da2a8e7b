"""An explanation as JSON, as a page and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from relprop.commands.subject import Subject
    from relprop.commands.writing import Writer
    from relprop.explanation import Explanation


def json_of(explanation: Explanation) -> Any:
    """An explanation as values that JSON has."""
    return json.loads(explanation.to_json())


def page_writer(explanations: Sequence[Explanation], subject: Subject) -> Writer:
    """What writes explanations of one input, one per target, as one HTML file."""
    from relprop.reporting import report

    picture = subject.own_image()
    return lambda path: report(
        list(explanations),
        path,
        model=subject.model,
        pictures=None if picture is None else picture[None],
    )


def picture_writer(explanations: Sequence[Explanation], subject: Subject) -> Writer:
    """What draws explanations of one input, one per target, side by side: heat maps over the
    picture, or the tokens. Raises ``OptionError`` for several inputs."""
    refuse_several(explanations[0])
    return lambda path: _figure(explanations, subject).savefig(path, dpi=110)


def refuse_several(explanation: Explanation) -> None:
    """Refuse to draw several inputs in one picture, before anything is written."""
    if len(explanation.streams) > 1:
        fact = "several inputs are explained, and a picture is of one"
        raise OptionError(fact, then=[f"--stream {name}" for name in explanation.streams])


def _figure(explanations: Sequence[Explanation], subject: Subject) -> Figure:
    from relprop.views.plot import figure, plot_comparison, show_heatmap, show_image

    first = explanations[0]
    if first.grid is None or len(first.grid) != 2:
        named = {title(e, subject): e for e in explanations}
        return first.plot() if len(explanations) == 1 else plot_comparison(named, None, sample=0)
    picture, whole = _picture(first, subject)
    fig, axes = figure(len(explanations) + 1)
    show_image(axes[0], picture, "input")
    for panel, e in zip(axes[1:], explanations, strict=True):
        heat = e.original_heatmap() if whole else e.heatmap()[0]
        show_heatmap(panel, heat, title(e, subject), picture)
    return fig


def _picture(explanation: Explanation, subject: Subject) -> tuple[Tensor, bool]:
    """The picture that was given, if the explanation knows where its pixels are on it, else the
    model's own image; and which of the two."""
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
