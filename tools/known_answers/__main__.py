"""``python -m tools.known_answers --out FOLDER``: every method on trained models whose right
explanation is known, and what the rule of docs/which-method.md says of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from relprop.commands.options import Resume
from relprop.data import Sample, Source
from relprop.evaluation import ImageTask, Numbers, TextTask, digit_scenes, reviews
from tools.evaluation.page import update
from tools.evaluation.papers import IMAGE_ROWS, TEXT_ROWS
from tools.evaluation.tasks import measure as measure_task
from tools.known_answers.atoms import Atoms
from tools.known_answers.lookups import Lookups
from tools.known_answers.page import table
from tools.known_answers.pictures import Pictures
from tools.known_answers.quadrants import QuadrantStudy
from tools.known_answers.recommend import KINDS, markdown, summary, verdict
from tools.known_answers.sentences import Sentences
from tools.known_answers.speech import Speech
from tools.known_answers.study import Study, measure

DOCS = Path(__file__).parents[2] / "docs"
#: The studies by name, and the page that has each one's table.
STUDIES: dict[str, tuple[Callable[[], Study], str]] = {
    "lookups": (Lookups, "answers.md"),
    "quadrants": (QuadrantStudy, "pictures-with-words.md"),
    "sentences": (Sentences, "evaluation.md"),
    "atoms": (Atoms, "evaluation.md"),
    "photographs": (Pictures, "evaluation.md"),
    "speech": (Speech, "evaluation.md"),
}
SHIPPED = ("scenes", "reviews")
SAMPLES, SEED = 200, 61  # of the shipped tasks; docs/evaluation.md has other samples
LOOKED_AT = 500  # reviews, which are drawn for good


@dataclass(frozen=True, eq=False)
class Later:
    """The samples of a data set from one on."""

    source: Source
    first: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def kind(self) -> str:
        return self.source.kind

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source) - self.first

    def __getitem__(self, index: int) -> Sample:
        return self.source[self.first + index]

    def identity(self) -> dict[str, Any]:
        return {"first": self.first, "of": self.source.identity()}


def shipped(name: str, out: Path, **running: Any) -> Numbers:
    """The primary measure of a shipped task."""
    if name == "scenes":
        scenes = digit_scenes(SAMPLES, seed=SEED)
        task: Any = ImageTask(scenes.model, scenes.source, ("segmentation",))
        return measure_task(task, IMAGE_ROWS, out, batch_size=50, **running)
    texts = reviews(LOOKED_AT + SAMPLES)
    later = Later(texts.source, LOOKED_AT)
    task = TextTask(texts.model, later, ("AOPC",), tokenizer=texts.tokenizer)
    return measure_task(task, TEXT_ROWS, out, batch_size=50, **running)


def main(
    out: Annotated[Path, typer.Option(help="Where the runs go.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this: {', '.join((*SHIPPED, *STUDIES))}. May be repeated."),
    ] = None,
    resume: Resume = False,
    update_docs: Annotated[
        bool, typer.Option("--update", help="Write the tables into the pages in docs/.")
    ] = False,
) -> None:
    """Run what is asked for (or go on with it) and print its tables."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found: dict[str, Numbers] = {}
    for name in only or (*SHIPPED, *STUDIES):
        running = {"resume": resume, "progress": False}
        if name in SHIPPED:
            found[name] = shipped(name, out / name, **running)
            continue
        begin, page = STUDIES[name]
        study = begin()
        found[name] = measure(study, out / name, **running)
        made = table(study, found[name])
        typer.echo(made)
        if update_docs:
            update(DOCS / page, {name: made})
    whole = [k for k in KINDS if all(m.study in found for m in k.measures)]
    verdicts = [verdict(kind, found) for kind in whole]
    parts = {said.kind.name: markdown(said) for said in verdicts}
    if len(whole) == len(KINDS):
        parts["summary"] = summary(verdicts)
    typer.echo("\n\n".join(parts.values()))
    if update_docs and parts:
        update(DOCS / "which-method.md", parts)


if __name__ == "__main__":
    typer.run(main)
