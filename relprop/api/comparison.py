"""What ``compare`` found: explanations side by side, and how alike they rank tokens."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.api.rounding import rank_correlation
from relprop.error_boundary import guarded
from relprop.errors import OptionError, counted, nearest
from relprop.explanation import Explanation
from relprop.views.html_tables import square

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metric = Callable[[Explanation], Any]


@dataclass(frozen=True)
class Trial:
    """One choice of heads and layers, and what the metric says of it: the mean over samples."""

    method: str
    options: Mapping[str, Any]
    value: float
    explanation: Explanation = field(repr=False)


@guarded
@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found: an explanation per method (by its label), why others are not defined
    for this model, and the trials of a search, best first."""

    explanations: Mapping[str, Explanation]
    refused: Mapping[str, str] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()

    def __getitem__(self, label: str) -> Explanation:
        """One method's explanation. Raises ``OptionError`` with the list, or with the reason for
        which there is none."""
        if label not in self.explanations:
            why = f" ({self.refused[label]})" if label in self.refused else ""
            raise OptionError(
                f"comparison[{label!r}]: there are {', '.join(self.explanations)}{why}",
                then=nearest(label, self.explanations),
            )
        return self.explanations[label]

    def rank_correlations(self, stream: str | None = None) -> tuple[tuple[str, ...], Tensor]:
        """The methods that score the same tokens, and Spearman's ρ of every two of them on content
        tokens, (methods, methods), meaned over the samples that have one.

        ``stream``: the explained input, where there are several. Methods at the input score pixels
        where those over attention score patches: they are compared if they score as many tokens as
        the first method does. NaN: no sample has two distinct scores by both.
        """
        chosen = {
            label: e if stream is None else e[stream]
            for label, e in self.explanations.items()
            if stream is None or stream in e.streams
        }
        if not chosen:
            there = dict.fromkeys(name for e in self.explanations.values() for name in e.streams)
            raise OptionError(
                f"stream={stream!r}: the explained inputs are {', '.join(map(repr, there))}",
                then=nearest(stream, there),
            )
        first = next(iter(chosen.values()))
        same = {
            label: e.scores.double().cpu()
            for label, e in chosen.items()
            if e.scores.shape == first.scores.shape
        }
        table = torch.full((len(same), len(same)), torch.nan, dtype=torch.float64)
        for i, a in enumerate(same.values()):
            for k, b in enumerate(same.values()):
                rows = zip(a, b, first.content.cpu(), strict=True)
                each = [rank_correlation(x[c], y[c]) for x, y, c in rows]
                table[i, k] = torch.stack(each).nanmean()
        return tuple(same), table

    def __str__(self) -> str:
        first = next(iter(self.explanations.values()))
        counts = f"{counted(len(self.explanations), 'method')}, {counted(len(first), 'sample')}"
        lines = [f"{counts}, target {first._named_target()}"]
        for stream in first.streams:
            names, table = self.rank_correlations(stream)
            wide = max(map(len, names))
            lines += [
                "",
                f"rank correlations of the scores of {stream!r}",
                " " * (wide + 4) + "".join(f"{i + 1:>7}" for i in range(len(names))),
            ]
            lines += [
                f"{i + 1:>3} {name:<{wide}}" + "".join(f"{v:>7.2f}" for v in row)
                for i, (name, row) in enumerate(zip(names, table.tolist(), strict=True))
            ]
        for trial in self.trials:
            options = ", ".join(f"{k}={v!r}" for k, v in trial.options.items())
            lines.append(f"{trial.value:>10.4f}  {trial.method}({options})")
        return "\n".join([*lines, *self._notes()])

    __repr__ = __str__

    def _notes(self) -> list[str]:
        """What is in no table: methods that score other parts, and those that are not defined."""
        apart = [
            f"{label} scores {e.streams[stream].scores.shape[1]} parts of {stream!r}, so that its "
            "ranks are not compared"
            for stream in next(iter(self.explanations.values())).streams
            for label, e in self.explanations.items()
            if stream in e.streams and label not in self.rank_correlations(stream)[0]
        ]
        return [*apart, *(f"not defined here: {n}: {why}" for n, why in self.refused.items())]

    def _repr_html_(self) -> str:
        parts = []
        for stream in next(iter(self.explanations.values())).streams:
            parts.append(f"<p>Rank correlations of the scores of {html.escape(repr(stream))}</p>")
            parts.append(square(*self.rank_correlations(stream)))
        return "".join([*parts, *(f"<p>{html.escape(line)}</p>" for line in self._notes())])

    def plot(
        self, image: Tensor | None = None, *, sample: int = 0, stream: str | None = None
    ) -> Figure:
        """The methods side by side for one sample: heat maps over ``image``, or tokens shaded by
        score. Each has its own scale; signed ones diverge about 0."""
        from relprop.views.plot import plot_comparison

        return plot_comparison(shown(self, stream), image, sample=sample)


def shown(comparison: Comparison, stream: str | None) -> dict[str, Explanation]:
    """Each method's explanation, of one explained input alone if it is named."""
    found = comparison.explanations.items()
    return {label: e if stream is None else e[stream] for label, e in found}
