"""Mutants: a condition, comparison, operator, constant or statement of the engine is changed, and
the tests are asked whether they notice.

    python -m tools.mutants --draw 400 --seed 1
    python -m tools.mutants --only "rules/sums.py:split: if total == 0: -> if total != 0:"

No file is changed: a process forked from one that has imported the libraries compiles the changed
module as it imports it. First each test file runs once, with marks in the statements. A mutant then
meets the tests of its own folder and, if it lives, others: of the files that reach its statement,
first the tests that reach it themselves, as many as took ``BUDGETS`` seconds of processor time.
Each run is stopped after ``STOP``. What is known of this code stands in ``build/mutants``; a draw
goes on where it was stopped. What a test starts as a process of its own is not mutated.

Neither mutmut nor cosmic-ray tells folders of tests apart, draws by a seed, or names a mutant by
its statement; and cosmic-ray starts Python and torch anew for each.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools.changes import AREAS, ROOT, Mutant, files, inner, marked, mutants, named, plant

BUDGETS, STOP, MEMORY = (30, 15), 60, 8 << 30
QUIET = 60  # seconds by the clock: a process that does nothing in them hangs
#: All tests that are asked: how their paths begin.
ASKED = [
    "rules",
    "tracer",
    "rollup",
    *AREAS["interpreter"][1],
    "methods/test_a",
    "methods/test_books",
]
LIBRARIES = "torch timm transformers hypothesis numpy scipy captum sklearn accelerate".split()
OPTIONS = ["-m", "not slow", "--assert=plain"]  # what is imported already is not rewritten
OWN, OTHERS, STOPPED, LIVED = "own tests", "others only", "stopped", "lived"
Say = Callable[[Any], None]


class Tests:
    """A pytest plugin: the tests in ``order`` run in it, or all; what each took and reached is
    said, and which failed is kept."""

    def __init__(self, order: list[str] | None, say: Say) -> None:
        self.order, self.say = order, say
        self.failed: list[str] = []
        self.reached = getattr(builtins, "__reached__", bytearray(b"0"))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out the others; keep what importing has reached."""
        self.imported = bytes(self.reached)
        if self.order is not None:
            place = {test: i for i, test in enumerate(self.order)}
            chosen = [i for i in items if i.nodeid in place]
            items[:] = sorted(chosen, key=lambda i: place[i.nodeid])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Say what a test that passes takes, and reaches."""
        self.reached[:] = self.imported
        began = time.process_time()
        yield
        if self.order is None and item.nodeid not in self.failed:
            bits = f"{int(self.reached[::-1].decode(), 2):x}"
            self.say((item.nodeid, round(time.process_time() - began, 3), bits))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep what fails."""
        if report.failed:
            self.failed.append(report.nodeid)

    def run(self, paths: list[str], *options: str) -> str:
        """The first test that fails, or what else goes wrong."""
        code = pytest.main([*OPTIONS, *options, *paths], plugins=[self])
        good = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return "" if good else (*self.failed, f"importing: {code!r}")[0]


def worked(process: int) -> float:
    """The seconds of processor time that a process has taken."""
    return sum(psutil.Process(process).cpu_times()[:2])


def apart(work: Callable[..., None], *given: Any) -> tuple[list[Any], int]:
    """What ``work`` says in a process of its own, which has the libraries, and its exit code."""
    fork = multiprocessing.get_context("fork")
    hears, says = fork.Pipe(duplex=False)
    child = fork.Process(target=work, args=(says.send, *given))
    child.start()
    says.close()
    said: list[Any] = []
    with contextlib.suppress(EOFError):
        used = -1.0
        while (more := hears.poll(QUIET)) or used != (used := worked(child.pid or 0)):
            said += [hears.recv()] if more else []
    child.join(QUIET)
    child.kill()
    child.join()
    return said, child.exitcode or 0


def look(say: Say, path: str) -> None:
    """Run a test file with marks; at the end say which libraries it has imported."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    trees = [(str(path), ast.parse(path.read_text()), first) for _, path, first in files()]
    marks = sum(len(inner(tree)) for _, tree, _ in trees)
    vars(builtins)["__reached__"] = bytearray(b"0" * marks)
    plant({name: marked(tree, first) for name, tree, first in trees})
    Tests(None, say).run([path])
    say([n for n in sys.modules if n.split(".")[0] in LIBRARIES])


def test_files() -> list[str]:
    """The files of the tests that are asked."""
    names = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tests/*/test_*.py"))
    return [n for begin in ASKED for n in names if n.startswith(f"tests/{begin}")]


def known(kept: Path) -> dict[str, Any]:
    """Of each test file what its tests take and reach, and which libraries it imports."""
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in test_files():
        if name not in found:
            (*tests, libraries), _ = apart(look, name)
            found[name] = {"tests": tests, "libraries": libraries}
            kept.write_text(json.dumps(found))
            print(f"{name}: {len(tests)} tests, {sum(t[1] for t in tests):.0f} s", flush=True)
        for library in found[name]["libraries"]:
            with contextlib.suppress(Exception):
                importlib.import_module(library)
        gc.freeze()  # each process would look through it anew
    return found


def chosen(marks: int, found: dict[str, Any], budget: float) -> list[str]:
    """Tests for what has these marks: of each function the shortest first, each file's together."""
    tests = []
    for of in found.values():
        hits = {test: bool(int(bits, 16) & marks) for test, _, bits in of["tests"]}
        if any(hits.values()):
            tests += [(not hits[test], took, test) for test, took, _ in of["tests"]]
    seen = Counter[tuple[bool, str]]()
    asked, within = [], []
    for beside, took, test in sorted(tests):
        function = (beside, test.split("[")[0])
        asked.append((beside, seen[function], took, test))
        seen[function] += 1
    for _, _, took, test in sorted(asked):
        if took < budget:
            within.append(test)
            budget -= took
    place = {test.split("::")[0]: i for i, test in reversed(list(enumerate(within)))}
    return sorted(within, key=lambda test: place[test.split("::")[0]])


def meet(say: Say, mutant: Mutant, stages: list[list[str]], loud: bool) -> None:
    """Plant a mutant, and say which test of each stage fails, up to the first that does."""
    if not loud:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    plant({str(mutant.path): mutant.planted()})
    for tests in stages:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + STOP, resource.RLIM_INFINITY))
        paths = list(dict.fromkeys(test.split("::")[0] for test in tests))
        say(failed := Tests(tests, say).run(paths, "-x") if tests else "")
        if failed:
            return


def verdict(mutant: Mutant, found: dict[str, Any], loud: bool = False) -> dict[str, Any]:
    """What came of a mutant, and by which test."""
    begins = tuple(f"tests/{begin}" for begin in AREAS[mutant.area][1])
    own = {path: of for path, of in found.items() if path.startswith(begins)}
    others = {path: of for path, of in found.items() if path not in own}
    stages = [chosen(mutant.marks, f, b) for f, b in zip((own, others), BUDGETS, strict=True)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said, code = apart(meet, mutant, stages, loud)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    failed = next(filter(None, said), "")
    if not failed and code in (-signal.SIGXCPU, -signal.SIGKILL):
        came = STOPPED
    elif not failed and code == 0:
        came = LIVED
    else:  # a crash of the process, too
        came = OWN if not said or said[0] else OTHERS
    seconds = sum(after[:2]) - sum(before[:2])
    tests = [len(tests) for tests in stages]
    return {
        "name": mutant.name,
        "area": mutant.area,
        "came": came,
        "by": failed,
        "tests": tests,
        "seconds": round(seconds, 1),
    }


def table(results: list[dict[str, Any]]) -> str:
    """The figures in Markdown, and who lived."""
    rows = [
        "| | drawn | died by own tests | by others only | stopped | lived |",
        "|---|---|---|---|---|---|",
    ]
    for area in (*AREAS, "all"):
        of = Counter(r["came"] for r in results if area in (r["area"], "all"))
        counts = (of.total(), *(of[came] for came in (OWN, OTHERS, STOPPED, LIVED)))
        rows.append(f"| {area} | {' | '.join(map(str, counts))} |")
    lived = [f"  {r['name']}" for r in results if r["came"] == LIVED]
    return "\n".join([*rows, "", "lived:", *lived])


def digest() -> str:
    """Which code this is."""
    paths = [p for f in ("relprop", "tests/common") for p in sorted((ROOT / f).rglob("*.py"))]
    paths += [ROOT / name for name in test_files()]
    return hashlib.sha256(b"".join(p.read_bytes() for p in paths)).hexdigest()[:12]


def main() -> int:
    """Ask of each mutant of a draw, and print what came of it, and the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="NAME", help="one mutant, and what pytest says of it")
    given = parser.parse_args()
    folder = ROOT / "build/mutants" / digest()
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        importlib.import_module(name)
    found = known(folder / "tests.json")
    if given.only:
        print(verdict(named(given.only), found, loud=True))
        return 0
    every, kept = mutants(), folder / "results.jsonl"
    done = {r["name"]: r for r in map(json.loads, kept.open())} if kept.exists() else {}
    drawn = sorted(every)
    random.Random(given.seed).shuffle(drawn)
    drawn = drawn[: given.draw]
    for name in drawn:
        if name not in done:
            done[name] = verdict(every[name], found)
            with kept.open("a") as file:
                print(json.dumps(done[name]), file=file)
            print("{came}: {name} ({seconds} s) {by}".format_map(done[name]), flush=True)
    print(table([done[name] for name in drawn]))
    return 0


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sys.exit(main())
