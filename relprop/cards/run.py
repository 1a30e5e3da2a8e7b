"""The page of a run: a row for each sample with what speaks for and against its map, and the map
itself once a row is opened. And the run's model card, as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.adapters import adapter_for
from relprop.cards.base import Card
from relprop.cards.judged import FIFTH, NO_CHECKS, STABLE, Checker, Judged
from relprop.cards.run_samples import COLUMNS, MARKS, Entry, picture_of, row_of, template_of
from relprop.cards.trials import ORDERS, Checks
from relprop.error_boundary import guarded
from relprop.errors import counted
from relprop.explanation import Explanation
from relprop.opening.wrapped import base_model
from relprop.progress import showing, with_progress
from relprop.runs import ExplainWork, RunResults, explanation_of
from relprop.views.colours import ramps
from relprop.views.escape import markup, visible
from relprop.views.overlay import full_colour
from relprop.views.shown import target_of
from relprop.writing import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How many samples a page has, how many of them are checked, and how many a picture shows.
SHOWN, CHECKED, PICTURED = 200, 100, 16
BATCH = 25  # samples that are checked at a time
FAILURES = 20  # failed samples that are listed


def run_page(results: RunResults, work: ExplainWork, call: str, *, checks: bool = True) -> RunPage:
    """The page of a run of ``work``. ``call``: the command that made it; ``checks``: whether the
    first ``CHECKED`` samples are explained in float64 and covered in part, which takes two
    to three times as long as explaining them did.

    Not at the door itself: only the outermost public function answers for what a model raises, and
    here that is the ``explain`` of each check."""
    absent = {*results.failed, *results.missing.tolist()}
    done = [i for i in range(results.samples) if i not in absent][:SHOWN]
    many, checker = min(CHECKED, len(done)) if checks else 0, Checker(work)
    entries = list(map(_reader(results, work), done))
    with showing(None):
        for start in with_progress(range(0, many, BATCH), "checking batch", -(-many // BATCH)):
            part = slice(start, min(start + BATCH, many))
            maps = checker(done[part], [[j.explanation for j in e.found] for e in entries[part]])
            entries[part] = map(lambda e, m: replace(e, found=m), entries[part], maps)
    facts = _facts(results, entries)
    model, weights = facts["Model"].rpartition(".")[2], facts["Weights (SHA-256)"][:16]
    how = f"{facts['Method']}, rules {facts['Rules']}", facts["Date"], call
    made = " · ".join([facts["Made by"], f"{model}, weights SHA-256 {weights}", *how])
    verdicts = Counter(e.found[0].verdict[0] for e in entries)
    failed = f" {counted(len(results.failed), 'sample')} failed." if results.failed else ""
    said = ", ".join(f"{verdicts[v]} {v}" for v in MARKS if verdicts[v])
    if many < len(entries) and checks:
        said += f" (the first {many} were checked)"
    return RunPage(
        title=f"{results.folder.name}: {counted(results.done, 'sample')} explained",
        said=f"Of {counted(len(entries), 'map')}: {said}.{failed}",
        checks=Checks(),
        made=made,
        entries=entries,
        facts=facts,
        failed={f.key: f.error.partition("\n")[0] for f in results.failed.values()},
        samples=results.done,
        call=call,
    )


def _median(values: Sequence[float | None]) -> float | None:
    """Of those that there are."""
    known = [v for v in values if v is not None and not math.isnan(v)]
    return median(known) if known else None


def _reader(results: RunResults, work: ExplainWork) -> Callable[[int], Entry]:
    """What reads a sample; nothing of it is checked."""
    model = base_model(work.model)
    adapter = adapter_for(model)
    labels, several = tuple(adapter.labels(model)), adapter.is_multi_label(model)

    def name(k: int) -> str | None:
        return labels[k] if 0 <= k < len(labels) else None

    def of_row(row: Mapping[str, Any]) -> Explanation:
        e = explanation_of(results, row["index"], row["method"])
        target, share = e.target[0], row["probability"]
        if not isinstance(target, int) or share is None:
            return e
        shares = e.output.sigmoid() if several else torch.tensor([share])
        return replace(e, labels=(name(target),), probability=shares)

    def read(index: int) -> Entry:
        rows, given = results.rows_of(index), work.source[index].inputs
        found = list(map(of_row, rows))
        predicted, target = rows[0]["predicted"], found[0].target[0]
        other = isinstance(target, int) and predicted not in (None, target)
        instead = (name(predicted) or f"class {predicted}") if other else ""
        image = picture_of(given) if isinstance(given, Tensor) else None
        words = "" if image is not None else given if isinstance(given, str) else " / ".join(given)
        unchecked = dict.fromkeys(("stability", "covering"), NO_CHECKS)
        maps = [Judged(e, why=unchecked) for e in found]
        return Entry(index, rows[0]["key"], image, words, instead, maps)

    return read


def _facts(results: RunResults, entries: Sequence[Entry]) -> dict[str, str]:
    """How the run was made: what the page's head and the model card say."""
    from relprop import __version__

    of, model = results.identity, results.identity["model"]
    how = (
        label + (f" ({', '.join(f'{k}={v!r}' for k, v in options.items())})" if options else "")
        for label, _, options, _ in of["methods"]
    )
    explained = {"predicted": "the predicted class", "label": "the data set's label"}
    rules = dict.fromkeys(j.explanation.rules for e in entries for j in e.found)
    return {
        "Model": model["class"],
        "Weights (SHA-256)": model["weights"],
        "Settings (SHA-256)": model["settings"],
        "Data": f"{of['data'].get('name', '')}: {counted(results.samples, 'sample')}",
        "Explained": explained[of["target"]],
        "Method": "; ".join(how),
        "Rules": ", ".join(rules) or "–",
        "Precision": of["precision"] or "the model's own",
        "Made by": f"relprop {__version__}",
        "Date": date.today().isoformat(),
    }


@guarded
@dataclass(frozen=True, eq=False, kw_only=True)
class RunPage(Card):
    """A run as a page, a picture and a model card. ``entries``: the samples that are shown;
    ``facts``: how it was made; ``failed``: the samples that could not be explained, by key, and
    why; ``samples``: how many were; ``call``: the command."""

    entries: Sequence[Entry]
    facts: Mapping[str, str]
    failed: Mapping[str, str]
    samples: int
    call: str

    def to_markdown(self, path: str | Path) -> Path:
        """Write the model card. Raises ``InputError`` where no file can be written."""
        from relprop.cards.model_card import model_card

        with written(path, "the model card") as beside:
            beside.write_text(model_card(self), encoding="utf-8", errors="replace")
        return Path(path)

    def verdicts(self) -> Counter[str]:
        """How many of the shown samples' maps, by the first method, are of each verdict."""
        return Counter(e.found[0].verdict[0] for e in self.entries)

    def medians(self) -> dict[str, float | None]:
        """Over the shown samples, by the first method; ``None`` where nothing was measured."""
        first = [e.found[0] for e in self.entries]
        values: dict[str, Sequence[float | None]] = {
            "probability": [j.probability for j in first],
            "stability": [j.stability for j in first],
            "strongest fifth covered": [j.covered[0] for j in first if j.covered],
            "random fifth covered": [j.chance for j in first if j.covered],
        }
        return {k: _median(found) for k, found in values.items()}

    def meaning(self) -> list[str]:
        """What the verdicts mean, and what not to conclude from them."""
        return [
            f"Certain: no concerns; a stability (rank correlation of the map with that of the same "
            f"model in float64) of at least {STABLE}; and covering the {FIFTH:.0%} of the content "
            "with the largest scores takes more of the explained class's probability than covering "
            f"any of {ORDERS} random {FIFTH:.0%} does. Patches are covered with the picture's mean "
            "colour, words by the attention mask.",
            "Doubtful: one of these is not so. Not judged: something could not be measured, or was "
            f"not asked for; at most the first {CHECKED} samples are checked, {SHOWN} are shown.",
            "The verdict is of the map. It does not say that the model is right, that what the map "
            "shows is a good reason, or that another model or sample would behave alike.",
        ]

    def _scripts(self) -> tuple[str, ...]:
        return ("run.js",)

    def _data(self) -> dict[str, Any]:
        return {"ramp": ramps()["light"]}

    def _checks(self) -> str:
        lines = "".join(f"<p>{markup(line, 1000)}</p>" for line in self.meaning())
        return f"<section><h2>What the verdicts mean</h2>{lines}</section>"

    def _body(self) -> str:
        facts = "".join(
            f"<div><dt>{k}</dt><dd>{markup(v, 400)}</dd></div>" for k, v in self.facts.items()
        )
        head = "".join(
            f'<th scope="col" title="{says}"><button type="button">{name}</button></th>'
            for name, says in COLUMNS.items()
        )
        several = "" if len(self._labels()) < 2 else f" By {markup(self._labels()[0])}."
        more = self.samples - len(self.entries)
        left = f" {more} more are in the run folder." if more else ""
        caption = f"{counted(len(self.entries), 'sample')}.{several}{left}"
        return (
            f'<dl class="facts">{facts}</dl>{self._failures()}<section aria-label="Samples">'
            '<p><label>Filter <input type="search" id="filter" autocomplete="off" '
            'placeholder="a name, a class, doubtful"></label> <span id="left" role="status"></span>'
            '</p><div class="scroll" tabindex="0" role="region" aria-label="Table of samples">'
            f'<table id="samples"><caption>{caption} A heading sorts; a sample opens its map.'
            f"</caption><thead><tr>{head}</tr></thead><tbody>"
            f"{''.join(map(row_of, self.entries))}</tbody></table></div></section>"
            '<dialog id="detail" aria-labelledby="detail-title"><p class="bar">'
            '<button type="button" data-step="-1">Previous</button> '
            '<button type="button" data-step="1">Next</button> '
            '<button type="button" data-step="0">Close</button></p><div></div></dialog>'
            f"{''.join(map(template_of, self.entries))}"
        )

    def _labels(self) -> list[str]:
        return list(dict.fromkeys(j.explanation.method for e in self.entries for j in e.found))

    def _failures(self) -> str:
        if not self.failed:
            return ""
        listed = list(self.failed.items())[:FAILURES]
        lines = "".join(f"<li>{markup(k, 120)}: {markup(why, 300)}</li>" for k, why in listed)
        title = f"{counted(len(self.failed), 'sample')} could not be explained"
        return f'<details class="panel"><summary>{title}</summary><ul>{lines}</ul></details>'

    def _figure(self) -> Figure:
        """The first samples' maps in rows of four; of several methods side by side."""
        from relprop.views.figure import scale_of, several
        from relprop.views.plot import show_heatmap
        from relprop.views.shaded_text import texts

        maps = [(e, j) for e in self.entries[:PICTURED] for j in e.found]
        if any(e.image is None or len(j.explanation.grid or ()) != 2 for e, j in maps):
            return texts({f"{e.key}, {j.explanation.method}": j.explanation for e, j in maps})
        beside = len(self._labels())
        columns = min(len(maps), beside * max(1, 4 // beside))
        rows = several(None, -(-len(maps) // columns), columns, 2.4, 2.7)
        panels = [panel for row in rows for panel in row]
        for panel, (entry, judged) in zip(panels, maps, strict=False):
            e = judged.explanation
            heat = e.heatmap(entry.image.shape[:2])[0].cpu()  # type: ignore[union-attr]
            scale = scale_of(heat, strongest=full_colour(heat, next(iter(e.streams.values()))))
            said = e.method if beside > 1 else f"{target_of(e, 0)}, {judged.verdict[0]}"
            title = f"{visible(entry.key, 24)}\n{visible(said, 28)}"
            show_heatmap(panel, heat, title, entry.image, scale=scale)
        for panel in panels[len(maps) :]:
            panel.set_axis_off()
        return rows[0][0].figure  # type: ignore[return-value]
