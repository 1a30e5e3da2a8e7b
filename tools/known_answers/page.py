"""A study's numbers as a table of a page."""

from __future__ import annotations

from relprop.evaluation import Numbers
from relprop.evaluation.table import Column, markdown_grid
from tools.known_answers.study import Study

SECONDS = "seconds"


def table(study: Study, numbers: Numbers) -> str:
    """Rows × columns, the first of them with intervals; seconds of a repeated call; what was left
    out and why."""
    shown = [c.name for c in study.columns if c.name != SECONDS]
    made = numbers.table(study.title, columns=shown)

    def cell(row: str, column: Column | None) -> str:
        if column is None:
            return seconds(numbers, row)
        text = made.text(row, column)
        return text if column.name == shown[0] else text.split(" [")[0]

    columns: list[tuple[str, Column | None]] = [
        (f"{c.name} {'↑' if c.higher_is_better else '↓'}", c) for c in made.columns
    ]
    grid = markdown_grid(made.rows, [*columns, ("s", None)], cell, False)
    counts = [t for (_, column), t in numbers.tables.items() if column == study.columns[0].name]
    units = max(len(t) for t in counts)
    samples = int(max(float(t[:, 1].sum()) for t in counts))
    notes = [
        f"{units} {study.units}, {samples} {study.samples}; 95 % bootstrap intervals over "
        f"{study.units}; °: cannot be told from random; s: CPU seconds of a repeated call.",
        *(f"`{row}`: {why}." for row, why in made.refused.items()),
    ]
    return "\n".join([f"### {study.title}\n", grid, "", *(f"- {note}" for note in notes)])


def seconds(numbers: Numbers, row: str) -> str:
    """CPU seconds of a sample, or a dash."""
    found = numbers.tables.get((row, SECONDS))
    return "–" if found is None else f"{float(found[:, 0].sum() / found[:, 1].sum()):.2g}"
