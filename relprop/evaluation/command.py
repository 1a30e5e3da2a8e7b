"""What ``relprop evaluate`` does: the shipped tasks and the papers' tables, or a data set and a model of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from relprop.errors import OptionError
from relprop.evaluation.entries import entries
from relprop.evaluation.papers import IMAGE_ROWS, TEXT_ROWS
from relprop.evaluation.report import blocks, draw, page, update
from relprop.evaluation.shipped import digit_scenes, reviews
from relprop.evaluation.table import Numbers
from relprop.evaluation.tasks import ImageTask, Task
from relprop.evaluation.work import EvaluationWork, numbers
from relprop.runs import read_run, run

SANITY = ("class sensitivity", "parameter randomisation", "infidelity", "max-sensitivity")
SANITY_ROWS = (
    "transformer_attribution", "rollout", "raw_attention", "gradcam", "lrp", "partial_lrp", "gae", "attention_times_grad", "attcat", "attnlrp", "input_gradient", "gradient_x_input",
)
SANITY_SHARE = 5  # one in so many samples: these measures explain each many times over
SHIPPED = ("digit_scenes", "reviews", "sanity")
BATCH = 50


def evaluate_shipped(
    out: Path, *, samples: int = 500, only: Sequence[str] = (), resume: bool = False, batch_size: int = BATCH, page_to_update: Path | None = None,
    tell: Callable[[str], None] = print, progress: bool = True,
) -> dict[str, Numbers]:
    """The papers' tables on the shipped models: run folders, ``evaluation.md`` and its pictures in ``out``; the numbers by task."""
    if unknown := set(only) - set(SHIPPED):
        raise OptionError(f"--only {', '.join(sorted(unknown))}: there are {', '.join(SHIPPED)}")
    found = {}
    for name in SHIPPED:
        if not only or name in only:
            found[name] = measure(*shipped(name, samples), out / name, batch_size=batch_size, resume=resume, progress=progress)
            tell(f"{name}: {out / name}")
    parts = blocks(found)
    (out / "evaluation.md").write_text(page(parts, f"relprop evaluate --samples {samples}"), encoding="utf-8")
    pictures = draw(found, out)
    if page_to_update is not None:
        tell(f"{page_to_update.name}: {', '.join(update(page_to_update, parts))}")
        draw(found, page_to_update.parent / "pictures")
    tell("\n".join(str(path) for path in (out / "evaluation.md", *pictures)))
    return found


def shipped(name: str, samples: int) -> tuple[Task, Sequence[object]]:
    """One of the shipped tasks and its rows."""
    if name == "reviews":
        return reviews(samples), TEXT_ROWS
    scenes = digit_scenes(samples if name == "digit_scenes" else max(2, samples // SANITY_SHARE))
    return (scenes, IMAGE_ROWS) if name == "digit_scenes" else (ImageTask(scenes.model, scenes.source, SANITY), SANITY_ROWS)


def measure(task: Task, methods: Sequence[object], out: Path, *, batch_size: int | None = None, resume: bool = False, progress: bool = True) -> Numbers:
    """Rows × measures on every sample of a task, in a run folder, and read back from it."""
    rows = entries(methods)
    run(EvaluationWork(task, rows), out, batch_size=batch_size, resume=resume, progress=progress)
    return numbers(task, rows, ((line["index"], line) for line in read_run(out).rows()))
