"""``relprop methods``: the table of methods."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relprop.commands import options
from relprop.commands.explain import known_method
from relprop.commands.printing import echo, echo_json
from relprop.commands.steps import Steps

if TYPE_CHECKING:
    from relprop.methods.base import Method

WIDE = 140  # columns of a terminal that has room for the sources
COLUMNS = {
    "method": "name",
    "at": "works_at",
    "class": "class_specific",
    "signed": "signed",
    "cost": "cost",
    "source": "source",
    "what it says": "plain",
}


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with its options.")] = None,
    json_output: options.Json = False,
) -> None:
    """The methods: whether class-specific, signed, what they cost, and where they come from."""
    with Steps(1) as steps:
        steps.next("loading PyTorch")
        if name is not None:
            known_method(name)
        from relprop.methods import METHODS, available

    rows = [_row(m) for m in (available() if name is None else [METHODS[name]])]
    if json_output:
        echo_json(rows)
    elif name is not None:
        lines = [f"{key.replace('_', ' '):<15}{_cell(value)}" for key, value in rows[0].items()]
        echo("\n".join(lines))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        echo(available())


def _row(method: Method) -> dict[str, Any]:
    """What is said of one method, by the names that the JSON has."""
    rules = method.rule_set(method.options())
    return {
        "name": method.name,
        "works_at": method.level,
        "class_specific": method.class_specific,
        "signed": method.signed,
        "cost": method.cost,
        "rules": getattr(rules, "name", rules) if "relevance" in method.needs else None,
        "source": method.source,
        "plain": method.plain,
        "description": method.description,
        "options": method.options(),
    }


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v!r}" for k, v in value.items()) or "none"
    if isinstance(value, str):
        return value
    return {True: "yes", False: "no", None: "none"}.get(value, str(value))


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    columns = {k: v for k, v in COLUMNS.items() if k != "source" or console.width >= WIDE}
    table = Table(box=box.SIMPLE_HEAD, row_styles=["", "dim"])
    for heading in columns:
        table.add_column(heading, no_wrap=heading not in ("source", "what it says"))
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns.values()))
    console.print(table)
    legend = "cost: forward passes for one target; class: whether the map depends on the target."
    console.print(f"{legend} relprop methods NAME has source and options.", highlight=False)
