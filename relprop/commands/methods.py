"""``relprop methods``: the table of methods."""

from __future__ import annotations

import sys
from typing import Any

from relprop.commands.explain import known_method
from relprop.commands.steps import Steps
from relprop.commands.telling import tell, tell_json

WIDE = 140  # columns of a terminal that has room for the sources


def show_methods(name: str | None = None, *, json_output: bool = False) -> None:
    """Print every method there is, or one of them with its options. Raises ``WrongUsage`` for a
    name that is none."""
    with Steps(1) as steps:
        steps.next("loading PyTorch")
        if name is not None:
            known_method(name)
        from relprop.methods import METHODS, available

    chosen = [METHODS[name]] if name is not None else list(available())
    rows: list[dict[str, Any]] = [
        {
            "name": m.name,
            "works_at": m.level,
            "class_specific": m.class_specific,
            "signed": m.signed,
            "cost": m.cost,
            "rules": m.rules if "relevance" in m.needs else None,
            "source": m.source,
            "description": m.description,
            "options": m.options(),
        }
        for m in chosen
    ]
    if json_output:
        tell_json(rows)
    elif name is not None:
        tell(
            "\n".join(
                f"{key.replace('_', ' '):<15}{_cell(value)}" for key, value in rows[0].items()
            )
        )
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        tell(available())


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v!r}" for k, v in value.items()) or "none"
    return (
        {True: "yes", False: "no", None: "none"}.get(value, str(value))
        if not isinstance(value, str)
        else value
    )


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = {
        "method": "name",
        "at": "works_at",
        "class": "class_specific",
        "signed": "signed",
        "cost": "cost",
        "source": "source",
        "what it is": "description",
    }
    if console.width < WIDE:
        del columns["source"]
    table = Table(box=box.SIMPLE_HEAD, row_styles=["", "dim"])
    for heading in columns:
        table.add_column(heading, no_wrap=heading not in ("source", "what it is"))
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns.values()))
    console.print(table)
    console.print(
        (
            "cost: forward passes for one target; class: whether the map depends on the "
            "target. relprop methods NAME has source and options."
        ),
        highlight=False,
    )
