"""``python -m tools.house``: the size of the house, measured on its own files.

Lines and functions of the package, by room: how long functions are (as they stand, docstrings
included, and without them), how long files, how many parameters, how many fields a class has, on
how many lines ``Any`` stands, and how much of the package is engine, product, or neither.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "relprop"
ENGINE = ("operations", "tracer", "rules", "plan", "interpreter", "rollup", "runner", "methods")
CORE = (*ENGINE, "opening", "layout", "targets")
NEITHER = ("data", "demo", "runs", "evaluation", "commands", "cli.py", "__main__.py")


@dataclass(frozen=True)
class Function:
    """One function: where it is, its lines with and without its docstring, and how many parameters
    it has that are not keyword-only, and in all."""

    place: str
    lines: int
    code: int
    positional: int
    parameters: int


def functions(path: Path) -> Iterator[Function]:
    """The functions of a file, inner ones included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or 0) - node.lineno + 1
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            own = [
                a for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")
            ]
            place = f"{path.relative_to(PACKAGE.parent)}:{node.lineno} {node.name}"
            every = len(own) + len(node.args.kwonlyargs)
            yield Function(place, lines, lines - docstring, len(own), every)


def room(path: Path) -> str:
    """The room a file is in."""
    return path.relative_to(PACKAGE).parts[0]


def quantile(values: list[int], share: float) -> int:
    """The value below which that share of them lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def row(name: str, found: list[Function], lines: int) -> str:
    """One line of the table."""
    spans, code = [f.lines for f in found], [f.code for f in found]
    numbers = (
        lines,
        len(found),
        quantile(spans, 0.5),
        quantile(spans, 0.9),
        max(spans, default=0),
        sum(n > 25 for n in spans),
        sum(n > 50 for n in spans),
        quantile(code, 0.9),
        max(code, default=0),
        sum(n > 50 for n in code),
    )
    return f"{name:<14}" + "".join(f"{n:>9}" for n in numbers)


def main() -> None:
    """Print all of it."""
    files = sorted(PACKAGE.rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in files}
    found = {path: list(functions(path)) for path in files}
    head = ("lines", "functions", "median", "p90", "longest", "> 25", "> 50")
    print(f"{'room':<14}" + "".join(f"{h:>9}" for h in (*head, "p90 *", "longest *", "> 50 *")))
    for name in sorted({room(p) for p in files}):
        own = [p for p in files if room(p) == name]
        print(row(name, [f for p in own for f in found[p]], sum(lines[p] for p in own)))
    every = [f for p in files for f in found[p]]
    print(row("all", every, sum(lines.values())), "  (* without docstrings)")

    parts = Counter[str]()
    for path in files:
        kind = (
            "engine" if room(path) in ENGINE else "neither" if room(path) in NEITHER else "product"
        )
        parts[kind] += lines[path]
    print("\nlines:", ", ".join(f"{kind} {n}" for kind, n in parts.most_common()))
    typed = Counter(
        "core" if room(p) in CORE else "elsewhere"
        for p in files
        for line in p.read_text().splitlines()
        if re.search(r"\bAny\b", line)
    )
    print("lines with Any:", ", ".join(f"{where} {n}" for where, n in typed.items()))
    print("\nfiles above 300 lines:")
    print(
        "\n".join(f"  {n:>4} {p.relative_to(PACKAGE.parent)}" for p, n in lines.items() if n > 300)
    )
    print("\nclasses with more than 12 fields:")
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(s, ast.AnnAssign) for s in node.body)
                if fields > 12:
                    print(f"  {fields:>4} {path.relative_to(PACKAGE.parent)} {node.name}")
    if "--long" in sys.argv:
        print("\nfunctions above 50 lines without docstring, or with more than 6 parameters:")
        for f in sorted(every, key=lambda f: -f.code):
            if f.code > 50 or f.positional > 6:
                others = f.parameters - f.positional
                print(f"  {f.code:>4} lines {f.positional:>3} + {others} {f.place}")


if __name__ == "__main__":
    main()
