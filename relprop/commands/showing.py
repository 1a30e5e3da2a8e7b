"""An explanation as JSON, as a page and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def page_writer(
    explanations: Sequence[Explanation] | Mapping[str, Explanation], subject: Subject
) -> Writer:
    """What writes explanations of the same inputs, one per target or by their methods' names, as
    one HTML file."""
    from relprop.reporting import report

    each = list(explanations.values() if isinstance(explanations, Mapping) else explanations)
    streams = [s for e in each for s in e.streams.values()]
    kept = any(o.picture is not None for s in streams for o in s.originals or ())
    pictures = None if kept else subject.own_images()
    names = subject.names if len(subject.names) == len(each[0]) else None
    return lambda path: report(
        explanations, path, model=subject.model, pictures=pictures, names=names
    )


def picture_writer(explanations: Sequence[Explanation], subject: Subject) -> Writer:
    """What draws explanations, one per target: a row for each input, heat maps over the picture, or
    the tokens. Raises ``OptionError`` for several inputs of one sample."""
    refuse_several(explanations[0])
    return lambda path: _figure(explanations, subject).savefig(path, dpi=110)


def refuse_several(explanation: Explanation) -> None:
    """Refuse to draw several inputs in one picture, before anything is written."""
    if len(explanation.streams) > 1:
        fact = "several inputs are explained, and a picture is of one"
        raise OptionError(fact, then=[f"--stream {name}" for name in explanation.streams])


def _figure(explanations: Sequence[Explanation], subject: Subject) -> Figure:
    from relprop.views.figure import scale_of, several
    from relprop.views.overlay import full_colour, heatmap_and_image
    from relprop.views.plot import plot_comparison, show_heatmap, show_image
    from relprop.views.shaded_text import texts

    first = explanations[0]
    if first.grid is None or len(first.grid) != 2:
        named = {title(e, subject, i): e[i] for i in range(len(first)) for e in explanations}
        if len(first) > 1:
            return texts(named)
        return first.plot() if len(named) == 1 else plot_comparison(named, None, sample=0)
    own = subject.own_images()
    rows = several(None, len(first), len(explanations) + 1, 3.2, 3.6)
    for i, (axes, name) in enumerate(zip(rows, subject.names, strict=True)):
        under = heatmap_and_image(first, i, None)[1]
        picture = under if under is not None or own is None else own[i]
        show_image(axes[0], picture, name if len(first) > 1 else "input")
        for panel, e in zip(axes[1:], explanations, strict=True):
            heat = heatmap_and_image(e, i, None)[0]
            scale = scale_of(heat, strongest=full_colour(heat, next(iter(e.streams.values()))))
            show_heatmap(panel, heat, title(e[i], subject), picture, scale=scale)
    return rows[0][0].figure  # type: ignore[return-value]


def title(explanation: Explanation, subject: Subject, sample: int = 0) -> str:
    """The target, with its label where the model has one, and its input's name where there are
    several."""
    target = explanation.target[sample]
    label = subject.label(target)
    text = f"{target}" if label is None or label == target else f"{label} ({target})"
    return text if len(explanation) == 1 else f"{subject.names[sample]}: {text}"
