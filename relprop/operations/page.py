"""The table of operations as a page of the documentation: ``python -m relprop.operations.page``
writes it into ``docs/vocabulary.md``, between the marks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from relprop.operations.kinds import Kind
from relprop.operations.table import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "vocabulary.md"
BEGIN, END = "<!-- the table begins -->\n", "<!-- the table ends -->\n"


def table() -> str:
    """Every kind, what it means, and the operators that have a line, in Markdown."""
    names: dict[Kind, list[str]] = defaultdict(list)
    for name, operation in TABLE.items():
        names[operation.kind].append(f"`{name}`")
    rows = ["| kind | what it does | operators with a line |", "|---|---|---|"]
    for kind in Kind:
        rows.append(
            f"| {kind.name.lower().replace('_', ' ')} | {kind.value} | "
            f"{' '.join(sorted(names[kind]))} |"
        )
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with the table as it is now."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
