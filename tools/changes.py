"""Which mutants there are, by name, and how a file is imported changed: for ``tools.mutants``."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[1]
SITES = "attention attended_constants heads queries softmax_rows labels"
TRACED = f"capture trace assemble atoms axes axes_moved axes_joined {SITES}".split()
WALKS = "parity methods/test_chunks methods/test_head. methods/test_held methods/test_one_gradient"
WALKS += " methods/test_segments methods/test_shared_walks"
#: What is changed, and which tests are its own: how their paths begin.
AREAS: dict[str, tuple[list[str], list[str]]] = {
    "rules": (["rules/*.py"], ["rules"]),
    "interpreter": (["interpreter/*.py"], WALKS.split()),
    "plan": (["plan/*.py"], ["rules", "methods/test_held"]),
    "roll-up": (["rollup/*.py", "runner/rollup.py"], ["rollup"]),
    "tracer": ([f"tracer/{name}.py" for name in TRACED], ["tracer"]),
}
SWAPPED: dict[type, type] = {ast.And: ast.Or, ast.Add: ast.Sub, ast.Mult: ast.Div, ast.Lt: ast.LtE}
SWAPPED |= {ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
SWAPPED |= {there: back for back, there in SWAPPED.items()}
SWAPPED |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
OPPOSITE = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
BLOCKS = ("body", "orelse", "finalbody", "handlers")
#: Left alone: what is thrown, texts, types, and arguments that only check or only tell a place.
ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
NO_CODE = ("annotation", "returns", "decorator_list", "bases")
CHECKS = ("strict", "stacklevel")


@dataclass
class Change:
    """What would stand at a place of a node, in a statement of a function."""

    function: str
    statement: Any
    holder: Any
    at: str | int
    new: Any

    def swap(self) -> None:
        """Put the new there; called again, the old."""
        self.holder[self.at], self.new = self.new, self.holder[self.at]

    def name(self) -> str:
        """The function and its statement, before and after; of long ones what is around."""
        before = line(self.statement)
        self.swap()
        after = "pass" if self.new is self.statement else line(self.statement)
        self.swap()
        return f"{self.function}: {near(before, after)} -> {near(after, before)}"


def near(text: str, other: str, most: int = 100, around: int = 40) -> str:
    """A text; of a long one what is around the first place where it differs from another."""
    at = next(i for i, (a, b) in enumerate(zip(text + " ", other + " ", strict=False)) if a != b)
    if len(text) <= most:
        return text
    start, end = max(at - around, 0), at + around
    return "…" * (start > 0) + text[start:end] + "…" * (end < len(text))


def line(statement: ast.stmt) -> str:
    """A statement in one line, without the blocks in it and what decorates it."""
    bare = copy.copy(statement)
    vars(bare).update({b: [] for b in (*BLOCKS, "decorator_list") if hasattr(bare, b)})
    return " ".join(ast.unparse(bare).split())


def replacements(node: ast.AST, place: str) -> Iterator[ast.AST]:
    """What would stand in place of a node."""
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                ops = [*node.ops[:i], SWAPPED[type(op)](), *node.ops[i + 1 :]]
                yield ast.Compare(node.left, ops, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(SWAPPED[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPPED and not is_text(node.left, node.right):
            yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
    turned = isinstance(node, ast.Compare) and isinstance(node.ops[0], OPPOSITE)
    turned |= isinstance(node, (ast.UnaryOp, ast.Constant))
    if place in ("test", "ifs", "guard") and isinstance(node, ast.expr) and not turned:
        yield ast.UnaryOp(ast.Not(), node)


def is_text(*nodes: ast.AST) -> bool:
    """Is one of them written as a string?"""
    return any(isinstance(n, ast.JoinedStr) or type(getattr(n, "value", 0)) is str for n in nodes)


def is_for_types(node: ast.AST) -> bool:
    """Is it read by type checkers alone?"""
    return isinstance(node, ast.If) and line(node) == "if TYPE_CHECKING:"


def changes(node: ast.AST, function: str = "", statement: Any = None) -> Iterator[Change]:
    """All changes below a node."""
    for place, value in ast.iter_fields(node):
        many = isinstance(value, list)
        for at, child in list(enumerate(value)) if many else [(place, value)]:
            if place in NO_CODE or not isinstance(child, ast.AST) or isinstance(child, ALONE):
                continue
            if getattr(child, "arg", "") in CHECKS or is_for_types(child):
                continue
            held = child if isinstance(child, ast.stmt) else statement
            for new in replacements(child, place):
                yield Change(function, held, value if many else vars(node), at, new)
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inside = f"{function}.{child.name}".strip(".")
            yield from changes(child, inside, held)


def inner(tree: ast.AST) -> list[ast.stmt]:
    """The statements inside functions."""
    bodies = [s for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) for s in n.body]
    return list(dict.fromkeys(n for s in bodies for n in ast.walk(s) if isinstance(n, ast.stmt)))


def marked(tree: ast.Module, first: int) -> ast.Module:
    """The tree, with a mark at each statement inside functions that tells that it has run."""
    numbers = {s: first + i for i, s in enumerate(inner(tree))}
    blocks = [getattr(n, b, None) for n in ast.walk(tree) for b in BLOCKS]
    for block in (b for b in blocks if isinstance(b, list)):
        for s in list(block):
            if s in numbers and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)):
                mark = ast.parse(f"__reached__[{numbers[s]}] = 49").body[0]
                block.insert(block.index(s), ast.copy_location(mark, s))
    return tree


@dataclass(frozen=True)
class Mutant:
    """A change by its number in a file, and the marks of what it changes."""

    name: str
    area: str
    path: Path
    number: int
    marks: int

    def planted(self) -> ast.Module:
        """The changed file."""
        tree = ast.parse(self.path.read_text())
        list(changes(tree))[self.number].swap()
        return tree


def files() -> Iterator[tuple[str, Path, int]]:
    """What is changed: the area, the file, and the number of its first mark."""
    first = 0
    for area, (patterns, _) in AREAS.items():
        for path in sorted(p for one in patterns for p in (ROOT / "relprop").glob(one)):
            yield area, path, first
            first += len(inner(ast.parse(path.read_text())))


def mutants() -> dict[str, Mutant]:
    """Every mutant by its name; where two would have the same, the second has a prime."""
    found: dict[str, Mutant] = {}
    for area, path, first in files():
        tree = ast.parse(path.read_text())
        marks = {s: 1 << first + i for i, s in enumerate(inner(tree))}
        for number, change in enumerate(changes(tree)):
            name = f"{path.relative_to(ROOT / 'relprop')}:{change.name()}"
            while name in found:
                name += "'"
            mark = marks.get(change.statement, sum(marks.values()))
            found[name] = Mutant(name, area, path, number, mark)
    return found


def named(name: str) -> Mutant:
    """The mutant of that name, wherever its function has moved."""
    every = mutants()
    moved = [m for n, m in every.items() if n.split(":", 1)[1] == name.split(":", 1)[1]]
    return every[name] if name in every or len(moved) != 1 else moved[0]


def plant(trees: dict[str, ast.Module]) -> None:
    """From now on files are imported as these trees, by path; others as they are."""
    usual = SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if self.path not in trees:
            return usual(self, fullname)
        return compile(ast.fix_missing_locations(trees[self.path]), self.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
