"""The shipped tasks, each with its rows, measured into run folders, and the page made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from relprop.errors import OptionError
from relprop.evaluation import ImageTask, Numbers, digit_scenes, reviews
from relprop.evaluation.entries import entries
from relprop.evaluation.tasks import Task
from relprop.evaluation.work import EvaluationWork, read_numbers
from relprop.runs import run
from tools.evaluation.page import blocks, draw, page, update
from tools.evaluation.papers import IMAGE_ROWS, TEXT_ROWS

SANITY = ("class sensitivity", "parameter randomisation", "infidelity", "max-sensitivity")
SANITY_ROWS = (
    "transformer_attribution",
    "rollout",
    "raw_attention",
    "gradcam",
    "lrp",
    "partial_lrp",
    "gae",
    "attention_times_grad",
    "attcat",
    "attnlrp",
    "input_gradient",
    "gradient_x_input",
)
SANITY_SHARE = 5  # one in so many samples: these measures explain each many times over


def _sanity(samples: int) -> tuple[Task, Sequence[Any]]:
    scenes = digit_scenes(max(2, samples // SANITY_SHARE))
    return ImageTask(scenes.model, scenes.source, SANITY), SANITY_ROWS


#: Of each shipped task, by the number of samples: the task and the rows of its tables.
SHIPPED: dict[str, Callable[[int], tuple[Task, Sequence[Any]]]] = {
    "digit_scenes": lambda samples: (digit_scenes(samples), IMAGE_ROWS),
    "reviews": lambda samples: (reviews(samples), TEXT_ROWS),
    "sanity": _sanity,
}


def measure(task: Task, methods: Sequence[object], out: Path, **running: Any) -> Numbers:
    """Rows × measures on every sample of a task, in a run folder, and read back from it."""
    rows = entries(methods)
    run(EvaluationWork(task, rows), out, **running)
    return read_numbers(task, rows, out)


def measure_shipped(
    out: Path,
    *,
    samples: int,
    only: Sequence[str] = (),
    log: Callable[[str], None] = print,
    **running: Any,
) -> dict[str, Numbers]:
    """The numbers of the shipped tasks by name, each in a run folder in ``out``. ``only``: of these
    tasks; ``running``: as ``relprop.runs.run`` has it. Raises ``OptionError``."""
    if unknown := set(only) - set(SHIPPED):
        raise OptionError(f"--only {', '.join(sorted(unknown))}: there are {', '.join(SHIPPED)}")
    found = {}
    for name, made in SHIPPED.items():
        if not only or name in only:
            found[name] = measure(*made(samples), out / name, **running)
            log(f"{name}: {out / name}")
    return found


def write_page(
    found: dict[str, Numbers],
    out: Path,
    command: str,
    *,
    page_to_update: Path | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """``evaluation.md`` and its pictures in ``out``; the same tables and pictures put into
    ``page_to_update``, where it has places for them."""
    parts = blocks(found)
    (out / "evaluation.md").write_text(page(parts, command), encoding="utf-8")
    pictures = draw(found, out)
    if page_to_update is not None:
        log(f"{page_to_update.name}: {', '.join(update(page_to_update, parts))}")
        draw(found, page_to_update.parent / "pictures")
    log("\n".join(str(path) for path in (out / "evaluation.md", *pictures)))
