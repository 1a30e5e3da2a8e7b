"""Mutants: a condition, comparison, operator, constant or statement of the engine is changed, and
the tests are asked whether they notice.

    python -m tools.mutants --draw 400 --seed 1
    python -m tools.mutants --only "rules/sums.py:split: if total == 0: -> if total != 0:"

No file is changed: a process forked from one that has the libraries compiles the changed module as
it imports it. First the tests run once with a mark at each statement, which tells what each
reaches. A mutant then meets the tests of its own folder that reach its statement, and if it lives,
others: the shortest first, as many as took ``BUDGETS`` seconds; each run is stopped after ``STOP``
of processor time. A draw goes on where it was stopped (``build/mutants``). What a test starts as a
process of its own is not mutated. Neither mutmut nor cosmic-ray tells folders of tests apart, draws
by a seed, or names a mutant by its statement.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[1]
SITES = "attention heads queries softmax_rows labels"
TRACED = f"capture trace assemble atoms axes axes_moved {SITES}".split()
#: What is changed, and how the paths of its own tests begin.
AREAS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "rules": (["rules/*.py"], ("rules",)),
    "interpreter": (["interpreter/*.py"], ("parity", "methods/test_held", "methods/test_segments")),
    "plan": (["plan/*.py"], ("rules", "methods/test_held")),
    "roll-up": (["rollup/*.py", "runner/rollup.py"], ("rollup",)),
    "tracer": ([f"tracer/{name}.py" for name in TRACED], ("tracer",)),
}
ASKED = ("methods/test_books", *(begins for _, own in AREAS.values() for begins in own))
OPTIONS = ["-q", "-m", "not slow", "--assert=plain"]  # what is imported already is not rewritten
BUDGETS, STOP, MEMORY, HANGS = (30, 15), 60, 8 << 30, 900
OWN, OTHERS, STOPPED, LIVED = "died by its own tests", "by others only", "stopped", "lived"
LIBRARIES = "torch timm transformers hypothesis numpy scipy captum sklearn accelerate".split()
SWAPPED: dict[type, type] = {ast.And: ast.Or, ast.Add: ast.Sub, ast.Mult: ast.Div, ast.Lt: ast.LtE}
SWAPPED |= {ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn}
SWAPPED |= {there: back for back, there in SWAPPED.items()}
SWAPPED |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
#: Left alone: what is thrown, texts, types, and arguments that only check or only tell a place.
ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
NO_CODE = ("annotation", "returns", "decorator_list", "bases")
CHECKS = ("strict", "stacklevel")
#: The name, the area, the file, its changed code, and the statement's line if it is in a function.
Mutant = tuple[str, str, Path, Any, int | None]
REACHED = set[tuple[str, int]]()  # the file and the line of each mark that has been passed


def replacements(node: ast.AST, place: str) -> Iterator[ast.AST]:
    """What would stand in place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            yield ast.Compare(node.left, [SWAPPED[type(op)]()], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(SWAPPED[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPPED and not any(map(is_text, ast.walk(node))):
            yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
    turned = isinstance(node, (ast.Compare, ast.UnaryOp, ast.Constant))
    if place in ("test", "ifs", "guard") and not turned:
        yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]


def is_text(node: ast.AST) -> bool:
    """Is it written as a string?"""
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", 0), str)


def changes(node: ast.AST, function: str = "", held: Any = None) -> Iterator[tuple[Any, ...]]:
    """All changes below a node: the function, the statement, and what would stand at which place
    of which holder."""
    for place, value in ast.iter_fields(node):
        many = isinstance(value, list)
        for at, child in list(enumerate(value)) if many else [(place, value)]:
            if place in NO_CODE or not isinstance(child, ast.AST) or isinstance(child, ALONE):
                continue
            if getattr(child, "arg", "") in CHECKS or ast.unparse(child) == "TYPE_CHECKING":
                continue
            statement = child if isinstance(child, ast.stmt) else held
            for new in replacements(child, place):
                yield function, statement, value if many else vars(node), at, new
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inside = f"{function}.{child.name}".strip(".")
            yield from changes(child, inside, statement)


def line(statement: ast.stmt) -> str:
    """A statement in one line, without the blocks in it and what decorates it."""
    bare = copy.copy(statement)
    blocks = ("body", "orelse", "finalbody", "handlers", "decorator_list")
    vars(bare).update({b: [] for b in blocks if hasattr(bare, b)})
    return " ".join(ast.unparse(bare).split())


def files() -> list[tuple[str, Path]]:
    """What is changed: the area, and the file."""
    at = ROOT / "relprop"
    return [(a, p) for a, (some, _) in AREAS.items() for one in some for p in sorted(at.glob(one))]


def inner(tree: ast.AST) -> set[ast.AST]:
    """What is inside functions: it does not run when the file is imported."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return {n for f in functions for s in f.body for n in ast.walk(s)}


def mutants(asked: Container[str] = ()) -> Iterator[Mutant]:
    """Each mutant; those that are asked for with the changed file's code."""
    seen: Counter[str] = Counter()
    for area, path in files():
        tree = ast.parse(path.read_text())
        inside = inner(tree)
        for function, statement, holder, at, new in list(changes(tree)):
            before, old, holder[at] = line(statement), holder[at], new
            after = "pass" if old is statement else line(statement)
            name = f"{path.relative_to(ROOT / 'relprop')}:{function}: {before} -> {after}"
            seen[name] += 1
            name += "'" * (seen[name] - 1)  # two changes that look the same
            ast.fix_missing_locations(tree)
            code = compile(tree, str(path), "exec") if name in asked else None
            yield name, area, path, code, statement.lineno if statement in inside else None
            holder[at] = old


class Watch:
    """A pytest plugin that keeps what each test takes, and which marks it reaches."""

    def __init__(self) -> None:
        self.took, self.reached = Counter[str](), defaultdict[str, set[tuple[str, int]]](set)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """A test function with all its parameters is one."""
        name, began = item.nodeid.split("[")[0], time.process_time()
        REACHED.clear()
        yield
        self.took[name] += time.process_time() - began  # type: ignore[assignment]
        self.reached[name] |= REACHED


def marked(path: Path) -> Any:
    """The code of a file, each statement of its functions with a mark before it."""
    tree = ast.parse(path.read_text())
    inside = inner(tree)
    for node in list(ast.walk(tree)):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and block and block[0] in inside:
                for s in [s for s in block if isinstance(s, ast.stmt)]:
                    mark = ast.parse(f"__reached__.add(({str(path)!r}, {s.lineno}))").body[0]
                    block.insert(block.index(s), ast.copy_location(mark, s))
    return compile(ast.fix_missing_locations(tree), str(path), "exec")


def quiet() -> None:
    """Print nothing more."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def imported(codes: Callable[[str], Any]) -> None:
    """Import the files of which there is another code as that."""
    usual = SourceFileLoader.get_code

    def changed(self: Any, name: str) -> Any:
        return codes(self.path) or usual(self, name)

    SourceFileLoader.get_code = changed  # type: ignore


def look(file: str, kept: Path) -> int:
    """Run a file of tests with marks: what each takes, and which tests reach which lines."""
    quiet()
    vars(builtins)["__reached__"] = REACHED
    paths = {str(path) for _, path in files()}
    imported(lambda path: marked(Path(path)) if path in paths else None)
    code = pytest.main([*OPTIONS, file], plugins=[at := Watch()])
    reached = defaultdict[str, defaultdict[int, list[str]]](lambda: defaultdict(list))
    for test, places in at.reached.items():
        for path, line_ in places:
            reached[path][line_].append(test)
    kept.write_text(json.dumps({"took": at.took, "reached": reached}))
    return int(code)


def meet(path: Path, code: Any, tests: list[str]) -> int:
    """Import the file as this code, and run the tests up to the first that fails."""
    quiet()
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + STOP, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    imported(lambda found: code if found == str(path) else None)
    return int(pytest.main([*OPTIONS, "-x", *tests]))


def apart(work: Callable[..., int], *given: Any) -> int:
    """The exit code of ``work`` in a process of its own, which has the libraries."""
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=lambda: os._exit(work(*given)))
    child.start()
    child.join(HANGS)
    child.kill()
    child.join()
    return child.exitcode or 0


def known(folder: Path, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """Of each file of tests what its tests take and reach."""
    under = sorted(str(p.relative_to(ROOT / "tests")) for p in ROOT.glob("tests/*/test_*.py"))
    files = {f: folder / f.replace("/", "+") for f in under if f.startswith(ASKED)}
    todo = {f: kept for f, kept in files.items() if not kept.exists()}
    codes = pool.map(lambda f: apart(look, f"tests/{f}", todo[f]), todo)
    if failing := [f for f, code in zip(todo, codes, strict=True) if code]:
        raise SystemExit(f"these tests fail without a mutant, or are stopped: {failing}")
    return {f: json.loads(kept.read_text()) for f, kept in files.items()}


def chosen(found: dict[str, Any], path: Path, at: int | None, budget: float) -> list[str]:
    """The shortest tests that reach a line, within a budget; each file's together. What runs at
    import is for all tests that reach something of the file."""
    tests = []
    for of in found.values():
        reached = of["reached"].get(str(path), {})
        places = reached.values() if at is None else [reached.get(str(at), [])]
        tests += [(of["took"][test], test) for test in set().union(*places)]
    within = []
    for took, test in sorted(tests):
        budget -= took
        within += [test] if budget > 0 else []
    return sorted(within)


def verdict(mutant: Mutant, found: dict[str, Any]) -> str:
    """What came of a mutant."""
    _, area, path, code, at = mutant
    own = {f: of for f, of in found.items() if f.startswith(AREAS[area][1])}
    others = {f: of for f, of in found.items() if f not in own}
    for came, asked, budget in zip((OWN, OTHERS), (own, others), BUDGETS, strict=True):
        tests = chosen(asked, path, at, budget)
        if ended := apart(meet, path, code, tests) if tests else 0:  # or a crash
            return STOPPED if ended in (-signal.SIGXCPU, -signal.SIGKILL) else came
    return LIVED


def main(draw: int = 400, seed: int = 1, only: str = "") -> None:
    """Ask of each mutant of a draw, or of the one of a name, in whatever file it is now, and print
    what came of it, and the figures."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    areas = {name: area for name, area, *_ in mutants()}
    drawn = random.Random(seed).sample(sorted(areas), len(areas))[:draw]
    if only:
        drawn = [n for n in areas if n.split(":", 1)[1] == only.split(":", 1)[1]]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    folder = ROOT / "build/mutants" / commit.stdout.strip()
    folder.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        importlib.import_module(library)
    kept = folder / "came.jsonl"
    done = dict(map(json.loads, kept.open())) if kept.exists() else {}
    with ThreadPoolExecutor(2) as pool, kept.open("a") as file:
        found = known(folder, pool)
        asked = [m for m in mutants(set(drawn) - set(done)) if m[3]]
        for mutant, came in zip(asked, pool.map(lambda m: verdict(m, found), asked), strict=True):
            done[mutant[0]] = came
            print(json.dumps([mutant[0], came]), file=file, flush=True)
            print(f"{came}: {mutant[0]}", flush=True)
    columns = ("", "drawn", OWN, OTHERS, STOPPED, LIVED)
    print("", *columns, "", sep="|", end="\n|---|---|---|---|---|---|\n")
    for area in (*AREAS, "all"):
        of = Counter(done[n] for n in drawn if area in (areas[n], "all"))
        print("", area, of.total(), *(of[came] for came in columns[2:]), "", sep="|")


if __name__ == "__main__":
    typer.run(main)
