"""The table of operations as a page of the documentation: ``python -m relprop.operations.page``
writes it into ``docs/vocabulary.md``, between the marks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from relprop.operations.kinds import Kind
from relprop.operations.table import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "vocabulary.md"
BEGIN, END = "<!-- the table begins -->\n", "<!-- the table ends -->\n"


def table() -> str:
    """Every kind, what it means, and how many operators have a line, in Markdown."""
    lines = Counter(operation.kind for operation in TABLE.values())
    rows = ["| kind | what it does | operators with a line |", "|---|---|---|"]
    rows += [f"| {k.name.lower().replace('_', ' ')} | {k.value} | {lines[k]} |" for k in Kind]
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
