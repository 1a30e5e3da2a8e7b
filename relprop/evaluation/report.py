"""The evaluation as a page: the papers' tables with our numbers, what was published beside them, and where the orders differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from relprop.errors import InputError
from relprop.evaluation.base import needed
from relprop.evaluation.papers import TABLES, PaperTable
from relprop.evaluation.table import FLOORS, Column, Numbers, Table
from relprop.views.plot import figure

PICTURES = {"digit_scenes": "evaluation-perturbation.png", "reviews": "evaluation-token-f1.png"}
HEADING = {"digit_scenes": "Digit scenes", "reviews": "Film reviews", "sanity": "Sanity checks, on digit scenes"}


def blocks(found: Mapping[str, Numbers]) -> dict[str, str]:
    """The page's parts by name, as Markdown. ``found``: the numbers of the tasks that were run, of ``digit_scenes``, ``reviews`` and ``sanity``."""
    parts = {paper.key: paper_table(paper, found[paper.task]) for paper in TABLES if paper.task in found}
    return parts | {f"all-{name}": numbers.table(f"{HEADING.get(name, name)}: every row and column").markdown() for name, numbers in found.items()}


def paper_table(paper: PaperTable, numbers: Numbers) -> str:
    """One of the papers' tables: ours, with the two floors, then the published numbers and how the orders of the methods agree."""
    columns = [c.name for m in numbers.measures for c in (Column(m, s) for s in m.statistics) if c.name in paper.columns or m.name in paper.columns]
    table = numbers.table(paper.title, [*paper.rows, *FLOORS], columns)
    lines = [table.markdown(paper.transposed)]
    if paper.published:
        lines += ["", f"Published ({paper.published_on}):", "", _published(paper)]
        lines += ["", *(f"- {agreement(paper, table, column)}" for column in paper.columns)]
    else:
        lines += ["", f"Published: {paper.published_on}."]
    return "\n".join(lines)


def _published(paper: PaperTable) -> str:
    def cell(row: str, column: str) -> str:
        value = paper.published.get((row, column))
        return "–" if value is None else f"{value:g}"

    if paper.transposed:
        head, body = ["", *paper.rows], [[column, *(cell(row, column) for row in paper.rows)] for column in paper.columns]
    else:
        head, body = ["", *paper.columns], [[row, *(cell(row, column) for column in paper.columns)] for row in paper.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def agreement(paper: PaperTable, table: Table, column: str) -> str:
    """One sentence: the order of the methods here, the published one, and Spearman's ρ of the two."""
    rows = [row for row in paper.rows if (row, column) in paper.published and (row, column) in table.cells]
    better = next(c.higher_is_better for c in table.columns if c.name == column)
    published = sorted(rows, key=lambda row: paper.published[row, column], reverse=better)
    ours = [row for row in table.order(column) if row in rows]
    rho = float(needed("scipy.stats").spearmanr([table.cells[r, column].interval.mean for r in rows], [paper.published[r, column] for r in rows]).statistic)
    return f"{column}, best first: here {' > '.join(ours)}; published {' > '.join(published)}; Spearman's ρ of the numbers {rho:.2f}."


def draw(found: Mapping[str, Numbers], folder: Path) -> list[Path]:
    """The curves: accuracy against the share removed (digit scenes), token-F1 against k (reviews: Figure 4 of the paper)."""
    written = []
    for name, numbers in found.items():
        if name in PICTURES:
            curves = [m for m in numbers.measures if m.name in ("negative perturbation", "positive perturbation")] if name == "digit_scenes" else [m for m in numbers.measures if m.name == "token-F1"]
            fig, axes = figure(len(curves))
            for axis, measure in zip(axes, curves, strict=True):
                rows = [r for p in TABLES if p.task == name and p.key in ("cvpr-table-1", "cvpr-figure-4") for r in (*p.rows, *FLOORS)]
                for row in rows:
                    if (row, measure.name) in numbers.tables:
                        values = 100 * numbers.tables[row, measure.name].nanmean(0)
                        x = [10 * i for i in range(10)] if name == "digit_scenes" else list(measure.metric.k)  # type: ignore[attr-defined]
                        axis.plot(x, values[:len(x)], label=row, linestyle="--" if row in FLOORS else "-", linewidth=2.5 if row == "transformer_attribution" else 1.2)
                axis.set_axis_on()
                axis.set_title(measure.name)
                axis.set_xlabel("% of the pixels removed" if name == "digit_scenes" else "words marked")
                axis.set_ylabel("accuracy (%)" if name == "digit_scenes" else "F1 (%)")
            axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
            path = folder / PICTURES[name]
            fig.savefig(path, dpi=110, bbox_inches="tight")
            written.append(path)
    return written


def page(parts: Mapping[str, str], command: str) -> str:
    """The parts as one page."""
    return "\n\n".join([f"# Evaluation\n\nMade by `{command}`.", *(fenced(name, part) for name, part in parts.items())]) + "\n"


def fenced(name: str, part: str) -> str:
    """A part between the comments that mark it, for ``update``."""
    return f"<!-- {name}: generated -->\n{part}\n<!-- /{name} -->"


def update(path: Path, parts: Mapping[str, str]) -> list[str]:
    """Put the parts in their places in a page that has some of the marks, leaving all else as it is; the names that were put. Raises ``InputError`` if it has none."""
    text, put = path.read_text(encoding="utf-8"), []
    for name, part in parts.items():
        pattern = re.compile(rf"<!-- {re.escape(name)}: generated -->.*?<!-- /{re.escape(name)} -->", re.DOTALL)
        if pattern.search(text):
            text = pattern.sub(lambda _, name=name, part=part: fenced(name, part), text)  # type: ignore[misc]
            put.append(name)
    if not put:
        raise InputError(f"{path.name} has no place for {', '.join(parts)}: such a place is {fenced(next(iter(parts)), '').splitlines()[0]}")
    path.write_text(text, encoding="utf-8")
    return put


