"""What ``python -m tools.sweep`` does, apart from reading its arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tools.sweep.record import EXPLAINED, FAILED, NO_ATTENTION, Record
from tools.sweep.report import read_report, regressions, write_merged, write_report
from tools.sweep.run import read_records, run
from tools.sweep.subject import Subject
from tools.sweep.subjects import SOURCES, subjects


def chosen_subjects(source: str, pattern: str) -> tuple[Subject, ...]:
    """The subjects of a source, or of ``all``, whose name fits the pattern."""
    return tuple(
        s for name in (SOURCES if source == "all" else (source,)) for s in subjects(name, pattern)
    )


def sweep(
    source: str,
    *,
    pattern: str = "",
    jobs: int = 1,
    out: Path,
    timeout: float = 300,
    check: Path | None = None,
    exclusions: Path | None = None,
    fresh: bool = False,
    gradient_alone: bool = False,
    log: Callable[[str], None] = print,
) -> bool:
    """Examine the chosen subjects, write the report into ``out``; whether nothing of the report
    ``check`` got worse.

    An interrupted sweep goes on where it stopped, unless ``fresh``. ``gradient_alone``: of each
    subject the columns of gradients alone, written into the report ``check``; what was measured is
    kept, for others to follow.
    """
    left_out = json.loads(exclusions.read_text()) if exclusions else {}
    before = read_report(check) if check and check.exists() else None
    wanted = chosen_subjects(source, pattern)
    skipped = {s.name: reason for s in wanted if (reason := excluded(s, left_out))}
    results = out / f"{'gradient' if gradient_alone else 'sweep'}-{source}.jsonl"
    if fresh:
        results.unlink(missing_ok=True)
    records = run(
        [s for s in wanted if s.name not in skipped],
        results,
        jobs=jobs,
        timeout=timeout,
        gradient_alone=gradient_alone,
        log=log,
    )
    if gradient_alone:
        assert before is not None  # the command
        written = write_merged(before, read_records(results).values(), out)
        log(f"written: {', '.join(map(str, written))}")
        return all(r.status != FAILED for r in records)
    written = write_report(records, skipped, out)
    results.unlink(missing_ok=True)  # only an interrupted sweep leaves results to go on from
    log(summary(records, len(skipped)))
    log(f"written: {', '.join(map(str, written))}")
    worse = regressions(records, before) if before is not None else []
    for line in worse:
        log(f"REGRESSION  {line}")
    return not worse


def excluded(subject: Subject, exclusions: dict[str, str]) -> str:
    """The reason for which a subject is left out, by its whole name, its family (``timm/vgg``) or
    not at all (``""``)."""
    return (
        exclusions.get(subject.name) or exclusions.get(f"{subject.source}/{subject.family}") or ""
    )


def summary(records: list[Record], skipped: int) -> str:
    """One line of counts."""
    good = sum(r.status == EXPLAINED for r in records)
    none = sum(r.status == NO_ATTENTION for r in records)
    return (
        f"{len(records)} models: {good} explained, {none} without token attention, "
        f"{len(records) - good - none} failed, {skipped} left out"
    )
