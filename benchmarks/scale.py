"""Time and memory of explanations as inputs and models grow: writes docs/scale.json, and from it
docs/scale.md and its two pictures.

    python benchmarks/scale.py                                  # everything; many hours on one core
    python benchmarks/scale.py --tokens 512 1024 --only llama attnlrp
    python benchmarks/scale.py --page                           # measures nothing

Each figure is measured in a process of its own with one thread; memory and time apart, since the
allocator's setting that lets freed memory be seen makes page faults dominate the time. ``--jobs 2``
measures memory and time side by side. What the
JSON file has already is not measured again, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scale_page import write_page
from scale_subjects import CAPTUM, ROWS, SEGMENTS, TITLES, TOKENS, Case, all_cases

ROOT = Path(__file__).parents[1]
KINDS = ("memory", "time")
LIBRARIES = ("torch", "transformers", "timm", "captum")
OVERHEAD = 20  # seconds that may be the capture, which does not grow with the tokens


@dataclass
class Figures:
    """What was measured, and the file in which it is kept."""

    file: Path
    known: dict[tuple[str, Case], dict[str, Any]] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, file: Path) -> Figures:
        """Those of a file, if it is there."""
        figures = cls(file)
        if file.exists():
            written = json.loads(file.read_text())
            figures.before = written["environment"]
            for record in written["figures"]:
                case = Case(*(record[name] for name in ("model", "method", "tokens", "layers")))
                figures.known[record["what"], case] = record
        return figures

    def add(self, what: str, case: Case, found: dict[str, Any]) -> None:
        """Keep one more; the file is whole at any time."""
        with self.lock:
            self.known[what, case] = {"what": what, **case.as_dict(), **found}
            self.write()

    def write(self) -> None:
        """The file, a line for each figure."""
        order = sorted(all_cases(), key=lambda c: (c.layers, c.tokens))
        keys = [(what, case) for case in order for what in KINDS]
        others = [key for key in self.known if key not in set(keys)]
        lines = [json.dumps(self.known[key]) for key in keys + others if key in self.known]
        text = f'{{"environment": {json.dumps(self.environments())},\n"figures": [\n'
        partial = self.file.with_suffix(".partial")
        partial.write_text(text + ",\n".join(lines) + "\n]}\n")
        partial.replace(self.file)

    def environments(self) -> dict[str, str]:
        """On what all of these were measured, some perhaps on another machine."""
        found = {name: [v] for name, v in environment().items()}
        for name, values in found.items():
            known = self.before.get(name, "").split(" and ")
            values[:0] = [v for v in known if v and v not in values]
        return {name: " and ".join(values) for name, values in found.items()}

    def wanted(self, what: str, case: Case, limit: int) -> bool:
        """Whether it is missing, failed or was left out by a lower limit."""
        record = self.known.get((what, case), {"missing": "not run so far"})
        return "missing" in record and record.get("limit", 0) < limit

    def left_out(self, what: str, case: Case, limit: int) -> dict[str, Any] | None:
        """Why a figure is not tried. By half as many tokens it takes four times as long."""
        if case.method == CAPTUM and importlib.util.find_spec("captum") is None:
            return {"missing": "Captum is not installed"}
        half = self.known.get((what, replace(case, tokens=case.tokens // 2)), {})
        elapsed: float = half.get("elapsed", 0.0)
        if "limit" not in half and (elapsed < OVERHEAD or 4 * elapsed < limit):
            return None
        reason = f"would by half as many tokens take longer than the limit of {limit} seconds"
        return {"missing": reason, "limit": limit}


def environment() -> dict[str, str]:
    """On what is measured."""
    found = {"python": platform.python_version(), "cores": str(os.cpu_count()), "cpu": "unknown"}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            found["cpu"] = line.partition(":")[2].strip()
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found


class Measuring:
    """A process that measures one kind of figure, a case after another; started when the first is
    asked for."""

    def __init__(self, what: str, limit: int):
        self.what, self.limit = what, limit
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, case: Case) -> dict[str, Any]:
        """One figure, or in words why there is none."""
        self.process = self.process or self._started()
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(case.as_dict()), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("scale_figure.py"))]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env |= {"MALLOC_MMAP_THRESHOLD_": "65536"} if self.what == "memory" else {}
        command += [self.what, str(self.limit)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)

    def end(self) -> None:
        """No more figures."""
        if self.process is not None:
            self.process.communicate()


def measure_all(figures: Figures, what: str, cases: Sequence[Case], limit: int) -> None:
    """All figures of one kind."""
    measuring = Measuring(what, limit)
    for case in cases:
        if figures.wanted(what, case, limit):
            found = figures.left_out(what, case, limit) or measuring(case)
            figures.add(what, case, found)
            print(what, *case.as_dict().values(), json.dumps(found), flush=True)
    measuring.end()


def chosen(only: Sequence[str], tokens: Sequence[int]) -> list[Case]:
    """The cases asked for, short inputs first. Of models and rows that ``only``
    names, these; of the kind that it does not name, all."""
    models = set(only) & set(TITLES) or set(TITLES)
    rows = set(only) & set(ROWS) or set(ROWS)
    over_tokens = [Case(m, row, n) for n in sorted(tokens) for m in TITLES for row in ROWS]
    deeper = [c for c in all_cases() if not c.growing and c.tokens in tokens]
    named = [c for c in over_tokens + deeper if c.model in models]
    return [c for c in named if c.method.removesuffix(SEGMENTS) in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=(), choices=[*TITLES, *ROWS])
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--limit", type=int, default=600, help="seconds for one figure's process")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    settings = parser.parse_args()
    figures = Figures.of(settings.out / "scale.json")
    cases = [] if settings.page else chosen(settings.only, settings.tokens)
    with ThreadPoolExecutor(settings.jobs) as pool:
        jobs = [pool.submit(measure_all, figures, k, cases, settings.limit) for k in settings.kinds]
    for job in jobs:
        job.result()
    write_page(settings.out)


if __name__ == "__main__":
    main()
