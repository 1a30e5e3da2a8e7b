"""Measuring many subjects in processes; what is measured is there at once, and an interrupted run
goes on where it stopped."""

from __future__ import annotations

import json
import multiprocessing
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.reference.files import entries

#: Subjects for one process: libraries keep caches.
RECYCLE = 40


def measured(
    names: Iterable[str], out: Path, *, jobs: int, rounding: bool, log: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The entries of the subjects, each kept in a file of ``out``."""
    wanted = list(names)
    out.mkdir(parents=True, exist_ok=True)
    todo = [n for n in wanted if not _path(out, n).exists()]
    failed: list[str] = []
    context = multiprocessing.get_context("spawn")
    given = [(n, rounding, str(_path(out, n))) for n in todo]
    with context.Pool(jobs, initializer=_start, maxtasksperchild=RECYCLE) as pool:
        for done, (name, error) in enumerate(pool.imap_unordered(_measure, given), 1):
            log(f"[{done}/{len(todo)}] {name} {error}")
            failed += [f"{name}: {error}"] if error else []
    if failed:
        raise RuntimeError("\n".join(["not measured:", *failed]))
    return {n: json.loads(_path(out, n).read_text()) for n in wanted}


def _path(out: Path, name: str) -> Path:
    return out / f"{re.sub(r'[^A-Za-z0-9_.-]', '+', name)}.json"


def _start() -> None:
    import torch

    torch.set_num_threads(1)


def _measure(given: tuple[str, bool, str]) -> tuple[str, str]:
    """The subject's name, and the error that kept it from being measured."""
    name, rounding, path = given
    try:
        text = json.dumps(entry_of(name, rounding))
    except Exception:  # the others are measured, and it is said at the end
        return name, traceback.format_exc()
    whole = Path(f"{path}.part")
    whole.write_text(text)
    whole.rename(path)
    return name, ""


def entry_of(name: str, rounding: bool = False) -> dict[str, Any]:
    """What is kept of a subject, measured now; without ``rounding`` in the ways it is kept."""
    from tools.reference.called import measure_call
    from tools.reference.measure import measure
    from tools.reference.subjects import CALL, every

    if name.startswith(CALL):
        return measure_call(name.removeprefix(CALL), rounding)
    subject = every()[name]
    if not rounding:
        then = entries([subject.family]).get(name, {})
        varied = subject.varied and "largest differences" in then
        subject = replace(subject, varied=varied, compiled="compiled" in then)
    return measure(subject, rounding)
