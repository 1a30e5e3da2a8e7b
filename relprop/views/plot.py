"""matplotlib figures of an explanation. matplotlib is an extra, looked up when a plot is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from relprop.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from relprop.explanation import Explanation


def figure(columns: int, width: float = 3.2, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure with a row of axes, without touching pyplot's global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise OptionError('plots need matplotlib: pip install "relprop[plot]"') from None
    fig = Figure(figsize=(width * columns, height), layout=ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.1))
    FigureCanvasAgg(fig)
    return fig, list(fig.subplots(1, columns, squeeze=False)[0])


def show_image(axes: Axes, image: Tensor, title: str) -> None:
    """An image (C, H, W) or (H, W), values in [0, 1]."""
    pixels = _pixels(image)
    axes.imshow(pixels, cmap="gray" if pixels.ndim == 2 else None, vmin=0, vmax=1)
    axes.set_title(title)
    axes.set_axis_off()


def show_heatmap(axes: Axes, heat: Tensor, title: str, image: Tensor | None = None) -> Any:
    """A heat map (H, W) over the grey image it explains; one with negative values in colours that diverge about 0."""
    if image is not None:
        pixels = _pixels(image)
        axes.imshow(pixels if pixels.ndim == 2 else pixels.mean(-1), cmap="gray", vmin=0, vmax=1)
    values = heat.detach().float().cpu()
    strongest = float(values.abs().max()) or 1.0
    scale: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -strongest, "vmax": strongest} if bool((values < 0).any()) else {"cmap": "inferno"}
    drawn = axes.imshow(values.numpy(), alpha=0.75 if image is not None else 1.0, **scale)
    axes.set_title(title)
    axes.set_axis_off()
    return drawn


def _pixels(image: Tensor) -> Any:
    image = image.detach().float().cpu()
    if image.dim() == 3:
        image = image[0] if image.shape[0] == 1 else image.movedim(0, -1)
    return image.numpy()


def plot_explanation(explanation: Explanation, image: Tensor | None, *, sample: int) -> Figure:
    """One sample: its heat map (over its image, if given; a column per time of a video), its tokens as bars, or its scores along the recording.

    ``image`` is the model's own, or the picture it was made from, if the explanation knows that one.
    """
    if not -len(explanation) <= sample < len(explanation):
        raise OptionError(f"sample={sample}: the explanation has {len(explanation)} samples")
    title = f"target {explanation.target[sample]}"
    if explanation.grid is None:
        return _plot_sequence(explanation, sample, title)
    if len(explanation.grid) > 2:
        times, *_ = explanation.grid
        frames = explanation.heatmap((times, *explanation.image[1:]))[sample] if explanation.image else ()
        fig, columns = figure(times)
        for i, (axes, heat) in enumerate(zip(columns, frames, strict=True)):
            show_heatmap(axes, heat, f"{title}, {i + 1} of {times}")
        return fig
    fig, (axes,) = figure(1, 4, 4)
    original = next(iter(explanation.streams.values())).originals
    whole = image is not None and original is not None and explanation.image != tuple(image.shape[-2:]) == original[sample].size
    heat = explanation.original_heatmap(sample) if whole else explanation.heatmap()[sample]
    fig.colorbar(show_heatmap(axes, heat, title, image), ax=axes, shrink=0.8)
    return fig


def _plot_sequence(explanation: Explanation, sample: int, title: str) -> Figure:
    """Bars with the tokens' labels; a line for what has none (sound, time series), in seconds if they are known."""
    scores = explanation.scores[sample].tolist()
    tokens = next(iter(explanation.streams.values()))
    if tokens.tokens is None and tokens.spans is not None and bool((tokens.spans.diff(dim=-1) > 1).any()):
        known = explanation.source >= 0
        at = explanation.seconds() if tokens.clock else tokens.spans[:, 0]
        fig, (axes,) = figure(1, 8.0, 3)
        axes.plot(at[known].mean(-1).tolist(), explanation.scores[sample, known.to(explanation.scores.device)].tolist(), color="tab:red")
        axes.set_xlabel("seconds" if tokens.clock else "step of the input")
    else:
        labels = tokens.tokens[sample] if tokens.tokens else [str(i) for i in range(len(scores))]
        fig, (axes,) = figure(1, max(4.0, 0.32 * len(scores)), 3)
        axes.bar(range(len(scores)), scores, color=_colours(scores, explanation.content[sample].tolist()))
        axes.set_xticks(list(range(len(scores))), labels, rotation=90)
    axes.set_title(title)
    return fig


def _colours(scores: list[float], content: list[bool]) -> list[str]:
    """Red for the target, blue against it, grey for what is no content."""
    return ["lightgrey" if not c else "tab:red" if s >= 0 else "tab:blue" for s, c in zip(scores, content, strict=True)]


def plot_comparison(explanations: Mapping[str, Explanation], image: Tensor | None, *, sample: int) -> Figure:
    """Several methods' explanations of one sample side by side, each on its own scale (that of its content): heat maps, or a row of shaded tokens each."""
    first = next(iter(explanations.values()))
    if not -len(first) <= sample < len(first):
        raise OptionError(f"sample={sample}: the explanations have {len(first)} samples")
    if all(e.grid is not None and len(e.grid) == 2 for e in explanations.values()):
        fig, columns = figure(len(explanations), 2.6, 3.0)
        for axes, (label, e) in zip(columns, explanations.items(), strict=True):
            show_heatmap(axes, e.heatmap()[sample], label, image)
        return fig
    same = {label: e for label, e in explanations.items() if e.scores.shape == first.scores.shape}
    labels = first.tokens[sample] if first.tokens else [str(i) for i in range(first.scores.shape[1])]
    fig, (axes,) = figure(1, max(4.0, 0.5 * len(labels)), 0.4 * len(same) + 1.2)
    content = first.content[sample].to(first.scores.device)
    rows = [(e.scores[sample] / float(e.scores[sample][content].abs().max() or 1)).clamp(-1, 1).detach().float().cpu().tolist() for e in same.values()]
    axes.imshow(rows, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(list(range(len(labels))), labels, rotation=90)
    axes.set_yticks(list(range(len(same))), list(same))
    axes.set_title(f"target {first.target[sample]}")
    return fig
