"""The evaluation as a page: the papers' tables with our numbers, what was published beside them,
and where the orders differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from relprop.errors import InputError, writable
from relprop.evaluation.base import needed
from relprop.evaluation.table import FLOORS, Column, Numbers, Table, markdown_grid
from relprop.views.curves import curves
from relprop.views.plot import figure
from tools.evaluation.papers import DIFFERENCES, TABLES, PaperTable

#: Of each task the picture's file, the table whose rows it has, its measures, and what the axes
#: are.
PICTURES = {
    "digit_scenes": (
        "evaluation-perturbation.png",
        "cvpr-table-1",
        ("negative perturbation", "positive perturbation"),
        "% of the pixels removed",
        "accuracy (%)",
    ),
    "reviews": (
        "evaluation-token-f1.png",
        "cvpr-figure-4",
        ("token-F1",),
        "words marked",
        "F1 (%)",
    ),
}
#: The columns of the tables of differences.
DIFFERENT = (
    "negative perturbation: target",
    "positive perturbation: target",
    "segmentation: mIoU",
    "AOPC",
    "LOdds",
    "token-F1: mean over k",
)
#: Columns that the tables of all methods leave out: as those of the predicted class, nearly, and
#: as those of the mean over k.
REPEATED = ("perturbation: target", *(f": k = {k}" for k in range(100)))
HEADING = {
    "digit_scenes": "Digit scenes",
    "reviews": "Film reviews",
    "sanity": "Sanity checks, on digit scenes",
}


def blocks(found: Mapping[str, Numbers]) -> dict[str, str]:
    """The page's parts by name, as Markdown. ``found``: the numbers of the tasks that were run, of
    ``digit_scenes``, ``reviews`` and ``sanity``."""
    parts = {
        paper.key: paper_table(paper, found[paper.task]) for paper in TABLES if paper.task in found
    }
    parts |= {f"differences-{name}": differences(found[name]) for name in PICTURES if name in found}
    return parts | {
        f"all-{name}": numbers.table(
            f"{HEADING.get(name, name)}: all methods, with intervals",
            columns=[c.name for c in _columns(numbers) if not c.name.endswith(REPEATED)],
        ).markdown()
        for name, numbers in found.items()
    }


def _columns(numbers: Numbers) -> list[Column]:
    return [Column(m, s) for m in numbers.measures for s in m.statistics]


def differences(numbers: Numbers) -> str:
    """What a balanced gradient, the positive part and other rules change: one row less another, by
    paired bootstrap; ° where the interval holds 0."""
    columns = [c for c in _columns(numbers) if c.name in DIFFERENT]
    pairs = {f"{row} − {other}": (row, other) for row, other in DIFFERENCES}

    def cell(pair: str, column: Column) -> str:
        found, digits = numbers.difference(*pairs[pair], column), column.digits
        if found is None:
            return "–"
        mean, low, high = (f"{v:+.{digits}f}" for v in (found.mean, found.low, found.high))
        return f"{mean}{'°' if found.low <= 0 <= found.high else ''} [{low}, {high}]"

    headings = [(f"{c.name} {'↑' if c.higher_is_better else '↓'}", c) for c in columns]
    note = "One row less another on the same samples; 95 % paired bootstrap; °: holds 0."
    return markdown_grid(list(pairs), headings, cell, False) + f"\n\n- {note}"


def paper_table(paper: PaperTable, numbers: Numbers) -> str:
    """One of the papers' tables: the numbers of here, without intervals, the published ones in
    brackets, and how the orders of the methods agree."""
    table = numbers.table(paper.title, [*paper.rows, *FLOORS], paper.columns)

    def cell(row: str, column: Column) -> str:
        here, there = (
            table.text(row, column).split(" [")[0],
            paper.published.get((row, column.name)),
        )
        return here if there is None else f"{here} ({there:g})"

    headings = [(f"{c.name} {'↑' if c.higher_is_better else '↓'}", c) for c in table.columns]
    said = f"Published ({paper.published_on})"
    if paper.published:
        agreed = "; ".join(f"{c} {agreement(paper, table, c):.2f}" for c in paper.columns)
        said = f"{said}: in brackets. Spearman's ρ of the two: {agreed}"
    grid = markdown_grid(table.rows, headings, cell, paper.transposed)
    return f"### {paper.title}\n\n{grid}\n\n{said}."


def agreement(paper: PaperTable, table: Table, column: str) -> float:
    """Spearman's ρ of the numbers here and the published ones."""
    rows = [r for r in paper.rows if (r, column) in paper.published and (r, column) in table.cells]
    here = [table.cells[r, column].interval.mean for r in rows]
    published = [paper.published[r, column] for r in rows]
    return float(needed("scipy.stats").spearmanr(here, published).statistic)


def draw(found: Mapping[str, Numbers], folder: Path) -> list[Path]:
    """The curves: accuracy against the share removed (digit scenes), token-F1 against k (reviews:
    Figure 4 of the paper)."""
    written = []
    for name, (file, paper, measures, xlabel, ylabel) in PICTURES.items():
        if name not in found:
            continue
        drawn = [m for m in found[name].measures if m.name in measures]
        rows = next((*p.rows, *FLOORS) for p in TABLES if p.key == paper)
        fig, axes = figure(len(drawn))
        for axis, measure in zip(axes, drawn, strict=True):
            tables = {r: found[name].tables.get((r, measure.name)) for r in rows}
            drawn_rows = {r: _curve(measure, t) for r, t in tables.items() if t is not None}
            curves(
                {r: at for r, at in drawn_rows.items() if bool(at[1].isfinite().all())},
                ax=axis,
                title=measure.name,
                xlabel=xlabel,
                ylabel=ylabel,
            )
            if (own := axis.get_legend()) is not None:  # one legend serves all
                own.remove()
        axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
        fig.savefig(writable(folder / file), dpi=110, bbox_inches="tight")
        written.append(folder / file)
    return written


def _curve(measure: Any, table: Tensor) -> tuple[list[int], Tensor]:
    """Where a measure's columns stand, and their means over the samples, in percent; of hits those
    with maps of the predicted class."""
    x = list(getattr(measure.metric, "k", range(0, 100, 10)))
    return x, 100 * table.nanmean(0)[: len(x)]


def page(parts: Mapping[str, str], command: str) -> str:
    """The parts as one page."""
    return (
        "\n\n".join(
            [
                f"# Evaluation\n\nMade by `{command}`.",
                *(fenced(name, part) for name, part in parts.items()),
            ]
        )
        + "\n"
    )


def fenced(name: str, part: str) -> str:
    """A part between the comments that mark it, for ``update``."""
    return f"<!-- {name}: generated -->\n{part}\n<!-- /{name} -->"


def update(path: Path, parts: Mapping[str, str]) -> list[str]:
    """Put the parts in their places in a page that has some of the marks, leaving all else as it
    is; the names that were put. Raises ``InputError`` if it has none, or there is no page."""
    if not path.is_file():
        raise InputError(f"there is no page {str(path)!r} to put {', '.join(parts)} into")
    text, put = path.read_text(encoding="utf-8"), []
    for name, part in parts.items():
        pattern = re.compile(
            rf"<!-- {re.escape(name)}: generated -->.*?<!-- /{re.escape(name)} -->", re.DOTALL
        )
        if pattern.search(text):
            text = pattern.sub(lambda _, name=name, part=part: fenced(name, part), text)  # type: ignore[misc]
            put.append(name)
    if not put:
        raise InputError(
            f"{path.name} has no place for {', '.join(parts)}: such a place is "
            f"{fenced(next(iter(parts)), '').splitlines()[0]}"
        )
    path.write_text(text, encoding="utf-8")
    return put
