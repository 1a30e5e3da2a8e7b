"""The laws of relprop for many examples: Lemmas 1 and 2, Eq. 8-10, every rule against its oracle,
the books, a batch and its samples, moves, and the same of whole random transformers.

    python -m tools.laws                     # 10⁶ examples, two processes
    python -m tools.laws --examples 10000    # a part, which says the rate

They are the Hypothesis tests of ``tests/rules`` and ``tests/e2e/test_random_transformers.py``, with
other numbers of examples and another seed in each process. An example is one draw that fulfils a
law's assumptions, however many rule sets it is asked of. One that fails is shrunk and printed with
the seed. The exit code is the number of laws that fail.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

RULES = tuple(
    f"tests/rules/test_{name}.py"
    for name in ("lemmas", "oracles", "laws", "closed", "coarse", "gamma")
)
MODELS = ("tests/e2e/test_random_transformers.py",)
#: Of the rules' laws: how many examples there are in all for one that is asked of each test. Some
#: tests ask for half as many, and some have fewer different ones.
TESTS = 145
#: So many examples of rules for one of whole models, which takes fifty times as long.
FOR_ONE_MODEL = 1000


class Count:
    """A pytest plugin: it leaves Hypothesis tests alone in the session, and counts for each law the
    examples, the time and the tests that fail."""

    def __init__(self) -> None:
        self.examples: Counter[str] = Counter()
        self.nanoseconds: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Only laws."""
        items[:] = [i for i in items if getattr(i.obj, "is_hypothesis_test", False)]

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> None:
        """Count what Hypothesis asks of the law in question."""
        from hypothesis.errors import UnsatisfiedAssumption

        law, test = law_of(pyfuncitem), pyfuncitem.obj.hypothesis
        inner = getattr(test.inner_test, "uncounted", test.inner_test)

        @functools.wraps(inner)
        def counted(*args: Any, **drawn: Any) -> None:
            began = time.process_time_ns()
            self.examples[law] += 1
            try:
                inner(*args, **drawn)
            except UnsatisfiedAssumption:
                self.examples[law] -= 1
                raise
            finally:
                self.nanoseconds[law] += time.process_time_ns() - began

        counted.uncounted = inner  # type: ignore[attr-defined]
        test.inner_test = counted

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count what failed."""
        if report.failed:
            self.failures[law_named(report.nodeid.split("::")[-1].split("[")[0])] += 1


def law_of(item: Any) -> str:
    """What a test's name says."""
    return law_named(item.originalname)


def law_named(test: str) -> str:
    """A test's name in words."""
    return test.removeprefix("test_").replace("_", " ")


def asked(files: tuple[str, ...], examples: int, seed: int) -> Count:
    """The laws in ``files``, ``examples`` of each, in this process."""
    os.environ |= {"HYPOTHESIS_PROFILE": "scale", "LAW_EXAMPLES": str(examples)}
    import pytest

    found = Count()
    pytest.main(["-q", "--no-header", f"--hypothesis-seed={seed}", *files], plugins=[found])
    return found


def jobs_of(examples: int, processes: int, seed: int) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """What each process is asked."""
    each = max(examples // TESTS // processes, 2)
    whole = max(examples // FOR_ONE_MODEL // 8 // processes * 3, 3)  # a third of them is asked
    for i in range(processes):
        yield RULES, each, seed + i
        yield MODELS, whole, seed + i


def table(counts: list[Count]) -> str:
    """The figures in Markdown."""
    examples, times, failures = (
        _added([getattr(c, name) for c in counts])
        for name in ("examples", "nanoseconds", "failures")
    )
    rows = [
        f"| {law} | {n:,} | {failures[law]} | {times[law] / n / 1e6:.1f} |"
        for law, n in examples.items()
    ]
    last = f"| all | {examples.total():,} | {failures.total()} | |"
    return "\n".join(["| law | examples | failures | ms each |", "|---|---|---|---|", *rows, last])


def _added(counters: list[Counter[str]]) -> Counter[str]:
    whole: Counter[str] = Counter()
    for one in counters:
        whole += one
    return whole


def main() -> int:
    """Ask, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=10**6)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
        jobs = list(jobs_of(given.examples, given.processes, given.seed))
        counts = pool.starmap(asked, jobs, chunksize=1)
    minutes, used = (time.monotonic() - began) / 60, os.times().children_user / 60
    print(table(counts))
    print(f"seed {given.seed}, {given.processes} processes, {minutes:.1f} minutes")
    print(f"{used:.1f} minutes of processor time")
    return len(_added([c.failures for c in counts]))


if __name__ == "__main__":
    sys.exit(main())
