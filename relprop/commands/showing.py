"""An explanation as JSON, as a page and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from relprop.commands.subject import Subject
    from relprop.commands.writing import Writer
    from relprop.explanation import Explanation


def json_of(explanation: Explanation) -> Any:
    """An explanation as values that JSON has."""
    return json.loads(explanation.to_json())


def page_writer(explanations: Sequence[Explanation], subject: Subject) -> Writer:
    """What writes explanations of one input, one per target, as one HTML file."""
    from relprop.reporting import report

    streams = [s for e in explanations for s in e.streams.values()]
    kept = any(o.picture is not None for s in streams for o in s.originals or ())
    picture = None if kept else subject.own_image()
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
    from relprop.views.overlay import laid
    from relprop.views.plot import figure, plot_comparison, show_heatmap, show_image

    first = explanations[0]
    if first.grid is None or len(first.grid) != 2:
        named = {title(e, subject): e for e in explanations}
        return first.plot() if len(explanations) == 1 else plot_comparison(named, None, sample=0)
    under = laid(first, 0, None)[1]
    picture = subject.own_image() if under is None else under
    fig, axes = figure(len(explanations) + 1)
    show_image(axes[0], picture, "input")
    for panel, e in zip(axes[1:], explanations, strict=True):
        show_heatmap(panel, laid(e, 0, None)[0], title(e, subject), picture)
    return fig


def title(explanation: Explanation, subject: Subject) -> str:
    """The target, with its label where the model has one."""
    target = explanation.target[0]
    label = subject.label(target)
    return f"{target}" if label is None or label == target else f"{label} ({target})"
