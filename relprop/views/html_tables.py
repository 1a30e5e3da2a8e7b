"""Tables for notebooks: HTML without a style sheet, all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a row of headings; the first cell of each row is its name."""
    top = "".join(f'<th scope="col" style="text-align:left">{_text(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def square(names: Sequence[str], values: Iterable[Iterable[float]]) -> str:
    """A matrix of numbers between things of the same names."""
    lines = zip(names, values, strict=True)
    return table(["", *names], [(name, *(f"{float(v):.2f}" for v in row)) for name, row in lines])


def _row(cells: Sequence[object]) -> str:
    name, *rest = cells
    first = f'<th scope="row" style="text-align:left">{_text(name)}</th>'
    return first + "".join(f'<td style="text-align:left">{_text(cell)}</td>' for cell in rest)


def _text(value: object) -> str:
    return html.escape(str(value))
