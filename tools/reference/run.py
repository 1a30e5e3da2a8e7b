"""Measuring many subjects in processes; what is measured is there at once, and an interrupted run
goes on where it stopped."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

#: Subjects for one process: libraries keep caches.
RECYCLE = 40


def measured(
    names: Iterable[str], out: Path, *, jobs: int, rounding: bool, tell: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The entries of the subjects, each kept in a file of ``out``."""
    wanted = list(names)
    out.mkdir(parents=True, exist_ok=True)
    todo = [n for n in wanted if not _path(out, n).exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start, max_tasks_per_child=RECYCLE
    ) as pool:
        waiting = {pool.submit(_measure, n, rounding, str(_path(out, n))): n for n in todo}
        for done, future in enumerate(as_completed(waiting), 1):
            future.result()
            tell(f"[{done}/{len(todo)}] {waiting[future]}")
    return {n: json.loads(_path(out, n).read_text()) for n in wanted}


def _path(out: Path, name: str) -> Path:
    return out / f"{re.sub(r'[^A-Za-z0-9_.-]', '+', name)}.json"


def _start() -> None:
    import torch

    torch.set_num_threads(1)


def _measure(name: str, rounding: bool, path: str) -> None:
    from tools.reference.measure import measure
    from tools.reference.subjects import every

    text = json.dumps(measure(every()[name], rounding))
    whole = Path(f"{path}.part")
    whole.write_text(text)
    whole.rename(path)
