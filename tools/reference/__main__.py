"""``python -m tools.reference make | compare``: keep what relprop says of every model, or say what
is otherwise now."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from tools.reference.comparison import differences
from tools.reference.files import Entry, by_family, entries, made_with, versions, write
from tools.reference.run import measured
from tools.reference.subjects import Subject, every

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
Only = Annotated[str, typer.Option(help="Only models whose name holds one of these, by commas.")]
Jobs = Annotated[int, typer.Option(help="Processes, one thread each.")]
Sample = Annotated[int, typer.Option(help="So many models, drawn by the hash of the commit.")]
#: More models than this that cannot be compared under other versions are a failure.
SKIPPED = 0.05


@app.command()
def make(only: Only = "", jobs: Jobs = 2, out: Path = Path("build/reference/made")) -> None:
    """Measure the models and write the files. An interrupted run goes on where it stopped."""
    asked = chosen(only)
    found = measured(asked, out, jobs=jobs, rounding=True, log=typer.echo)
    write(by_family(found, {n: s.family for n, s in asked.items()}))
    shutil.rmtree(out)
    typer.echo(f"{len(found)} models are kept")


@app.command()
def compare(
    only: Only = "",
    jobs: Jobs = 2,
    sample: Sample = 0,
    out: Path = Path("build/reference/compared"),
) -> None:
    """Measure the models and print what is otherwise; exit with 1 if anything is."""
    asked = chosen(only, sample)
    kept = entries(s.family for s in asked.values())
    found = measured(asked, out, jobs=jobs, rounding=False, log=typer.echo)
    shutil.rmtree(out)
    skipped = [n for n in found if unlike(asked[n].family, found[n], kept.get(n, {}))]
    lines = [line for n in found if n not in skipped for line in _of(n, found[n], kept)]
    typer.echo("\n".join(lines))
    for name in skipped:
        typer.echo(f"not compared, since other versions give another graph: {name}")
    typer.echo(f"{len(found) - len(skipped)} models compared, {len(lines)} differences")
    if lines or len(skipped) > SKIPPED * len(found):
        raise typer.Exit(1)


def unlike(family: str, now: Entry, then: Entry) -> bool:
    """Whether another version of a package gives another graph."""
    return versions() != made_with(family) and now.get("operations") != then.get("operations")


def _of(name: str, now: Entry, kept: dict[str, Entry]) -> list[str]:
    if name not in kept:
        return [f"{name}: is not kept; python -m tools.reference make --only '{name}'"]
    return [f"{name}: {line}" for line in differences(now, kept[name])]


def chosen(only: str, sample: int = 0, among: Iterable[str] | None = None) -> dict[str, Subject]:
    """The subjects that are asked for, in an order by chance: none takes long at the end."""
    words, known = [w for w in only.split(",") if w], every()
    found = [n for n in among or known if not words or any(w in n for w in words)]
    seed = commit() if sample else ""
    return {n: known[n] for n in by_chance(found, seed)[: sample or None]}


def by_chance(names: Iterable[str], seed: str) -> list[str]:
    """The names in an order that another seed makes another."""
    return sorted(names, key=lambda n: zlib.crc32(f"{seed}{n}".encode()))


def commit() -> str:
    """The commit, which draws the sample; no commit draws the same one."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip()


if __name__ == "__main__":
    app(prog_name="python -m tools.reference")
