"""A study's numbers as a table of a page."""

from __future__ import annotations

from relprop.evaluation import Numbers
from relprop.evaluation.table import Column, markdown_grid
from tools.known_answers.study import Study

SECONDS = "seconds"


def table(study: Study, numbers: Numbers) -> str:
    """Rows × columns of all samples, the first of them with intervals; seconds of a repeated call;
    what was left out and why."""
    parts = ": "  # of a column by data set, as docs/which-method.md has it
    shown = [c.name for c in study.columns if c.name != SECONDS and parts not in c.name]
    made = numbers.table(study.title, columns=shown)

    def cell(row: str, column: Column | None) -> str:
        if column is None:
            return seconds(numbers, row)
        text = made.text(row, column).replace("**", "")
        return text if column.name == shown[0] else text.split(" [")[0]

    columns: list[tuple[str, Column | None]] = [
        (f"{c.name} {arrow(c)}".rstrip(), c) for c in made.columns
    ]
    grid = markdown_grid(made.rows, [*columns, ("s", None)], cell, False)
    first = study.columns[0].name
    of_first = {row: t for (row, column), t in numbers.tables.items() if column == first}
    most = {name: _most(numbers, name) for name in shown}
    fewer = {row: len(t) for row, t in of_first.items() if len(t) < most[first][0]}
    other = {name: n for name, n in most.items() if n != most[first]}
    notes = [
        f"{most[first][0]} {study.units}, {most[first][1]} {study.samples}; 95 % bootstrap "
        f"intervals over {study.units}; °: cannot be told from random; s: CPU seconds, repeated.",
        *(f"{name}: {n[0]} {study.units}, {n[1]} {study.samples}." for name, n in other.items()),
        *(f"{first} of `{row}`: {count} {study.units}." for row, count in fewer.items()),
        *(f"`{row}`: {why}." for row, why in made.refused.items()),
    ]
    return "\n".join([f"### {study.title}\n", grid, "", *(f"- {note}" for note in notes)])


def arrow(column: Column) -> str:
    """Which way is better; of a correlation that is best near 0, neither."""
    if column.name == "random weights":
        return ""
    return "↑" if column.higher_is_better else "↓"


def _most(numbers: Numbers, column: str) -> tuple[int, int]:
    """How many units and samples a column has, at most."""
    tables = (t for (_, name), t in numbers.tables.items() if name == column)
    return max(((len(t), int(t[:, 1].sum())) for t in tables), default=(0, 0))


def seconds(numbers: Numbers, row: str) -> str:
    """CPU seconds of a sample (the median: a unit may have a capture in it), or a dash."""
    found = numbers.tables.get((row, SECONDS))
    return "–" if found is None else f"{float((found[:, 0] / found[:, 1]).median()):.2g}"
