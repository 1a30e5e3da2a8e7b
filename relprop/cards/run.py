"""The page of a run: a row for each sample with what speaks for and against its map, and the map
itself once a row is opened. And the run's model card, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from relprop.adapters import adapter_for
from relprop.cards.base import Card, picture_bytes
from relprop.cards.run_checks import SAME, STABLE, CheckedMap, checked
from relprop.cards.run_samples import COLUMNS, LONGEST, MARKS, Entry, at_most, row_of, template_of
from relprop.cards.trials import ORDERS, UNASKED, Checks, made_by
from relprop.error_boundary import guarded
from relprop.errors import counted
from relprop.opening.wrapped import base_model
from relprop.progress import showing, with_progress
from relprop.runs import ExplainWork, RunResults, explanation_of
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

    Not at the error boundary itself: only the outermost public function answers for what a model
    raises, and here that is the ``explain`` of each check."""
    absent = {*results.failed, *results.missing.tolist()}
    done = [i for i in range(results.samples) if i not in absent][:SHOWN]
    many = min(CHECKED, len(done)) if checks else 0
    entries = [_entry(results, work, i) for i in done]
    with showing(None):
        for start in with_progress(range(0, many, BATCH), "checking batch", -(-many // BATCH)):
            part = slice(start, min(start + BATCH, many))
            stored = [[one.explanation for one in e.found] for e in entries[part]]
            maps = checked(work, done[part], stored)
            entries[part] = map(lambda e, m: replace(e, found=m), entries[part], maps)
    facts, verdicts = _facts(results, entries), Counter(e.found[0].verdict[0] for e in entries)
    found = ", ".join(f"{verdicts[v]} {v}" for v in MARKS if verdicts[v])
    if many < len(entries) and checks:
        found += f" (the first {many} were checked)"
    said = f"Of {counted(len(entries), 'map')}: {found}. "
    said += "That is about the maps, not about the model's answers."
    if failed := {f.key: f.error.partition("\n")[0] for f in results.failed.values()}:
        said += f" {counted(len(failed), 'sample')} failed."
    title = f"{results.folder.name}: {counted(results.done, 'sample')} explained"
    made = made_by(facts["Method"], facts["Rules"], results.identity["model"], call)
    return RunPage(title, said, Checks(), made, entries, facts, failed, results.done, call)


def _entry(results: RunResults, work: ExplainWork, index: int) -> Entry:
    """One sample; nothing of it is checked."""
    rows, given, maps = results.rows_of(index), work.source[index].inputs, []
    model = base_model(work.model)
    adapter = adapter_for(model)
    labels = dict(enumerate(adapter.labels(model)))
    for row in rows:
        e = explanation_of(results, index, row["method"])
        target, share = e.target[0], row["probability"]
        if isinstance(target, int) and share is not None:
            several = adapter.is_multi_label(model)
            chance = e.output.sigmoid() if several else torch.tensor([share])
            e = replace(e, labels=(labels.get(target),), probability=chance)
        maps.append(CheckedMap(e, why=dict.fromkeys(("stability", "covering"), UNASKED)))
    predicted, target = rows[0]["predicted"], maps[0].explanation.target[0]
    other = isinstance(target, int) and predicted not in (None, target)
    instead = labels.get(predicted, f"class {predicted}") if other else ""
    if isinstance(given, Tensor):
        image = np.asarray(at_most(picture_bytes(given), LONGEST))
        return Entry(index, rows[0]["key"], image, "", instead, maps)
    words = given if isinstance(given, str) else " / ".join(given)
    return Entry(index, rows[0]["key"], None, words, instead, maps)


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
@dataclass(frozen=True, eq=False, repr=False)
class RunPage(Card):
    """A run as a page, a picture and a model card. ``entries``: the samples that are shown;
    ``facts``: how it was made; ``failed``: the samples that could not be explained, by key, and
    why; ``samples``: how many were; ``call``: the command."""

    script: ClassVar[str] = "run.js"
    entries: Sequence[Entry]
    facts: Mapping[str, str]
    failed: Mapping[str, str]
    samples: int
    call: str

    def to_markdown(self, path: str | Path) -> Path:
        """Write the model card: what was explained, what came of it, and what not to conclude.
        Raises ``InputError`` where no file can be written."""
        with written(path, "the model card") as beside:
            beside.write_text(self._markdown(), encoding="utf-8", errors="replace")
        return Path(path)

    def _markdown(self) -> str:
        first, verdicts = [e.found[0] for e in self.entries], self.verdicts()
        run = {k: _plain(v) for k, v in self.facts.items()}
        run["Samples"] = f"{self.samples} explained, {len(self.failed)} failed"
        found = {f"Maps that are {k}": str(verdicts[k]) for k in sorted(verdicts)}
        found["Maps with concerns"] = str(sum(bool(one.concerns) for one in first))
        medians = self.medians().items()
        found |= {f"Median {k}": "–" if v is None else f"{v:.2f}" for k, v in medians}
        tables = [
            "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())])
            for rows in (run, found)
        ]
        method = _plain(first[0].explanation.method) if first else ""
        return "\n\n".join(
            [
                f"# Explanations of {_plain(self.facts['Model'].rpartition('.')[2])}",
                tables[0],
                f"    {visible(self.call, 2000)}",
                f"## The first {len(first)} samples, by {method}",
                tables[1],
                "## What this means, and what not to conclude",
                "\n".join(f"- {line}" for line in self.meaning()) + "\n",
            ]
        )

    def verdicts(self) -> Counter[str]:
        """How many of the shown samples' maps, by the first method, are of each verdict."""
        return Counter(e.found[0].verdict[0] for e in self.entries)

    def medians(self) -> dict[str, float | None]:
        """Over the shown samples, by the first method; ``None`` where nothing was measured."""
        first = [e.found[0] for e in self.entries]
        values: dict[str, list[float | None]] = {
            "probability": [one.probability for one in first],
            "stability": [one.stability for one in first],
            "strongest fifth covered": [one.covered[0] for one in first if one.covered],
            "random fifth covered": [one.chance for one in first if one.covered],
        }
        known = {k: [v for v in every if v is not None and v == v] for k, every in values.items()}
        return {k: median(every) if every else None for k, every in known.items()}

    def meaning(self) -> list[str]:
        """What the verdicts mean, and what not to conclude from them."""
        return [
            f"A map is certain if nothing speaks against it (concerns), it is the same in float64 "
            f"(stability: a rank correlation of at least {STABLE}), and covering the strongest "
            f"fifth of the input takes the probability {SAME} lower than covering a random fifth "
            f"does (mean of {ORDERS}), and no higher than any of them, give or take {SAME}. Parts "
            "of pictures are covered with the mean colour, words by the attention mask.",
            "A map is doubtful if one of these is not so, and not judged if something could not be "
            f"measured, or was not asked for; at most the first {CHECKED} samples are checked, "
            f"{SHOWN} are shown.",
            "The verdict is of the map. It does not say that the model is right, that what the map "
            "shows is a good reason, or that another model or sample would behave alike.",
        ]

    def _checks(self) -> str:
        lines = "".join(f"<p>{markup(line, 1000)}</p>" for line in self.meaning()[1:])
        return f"<section><h2>What not to conclude</h2>{lines}</section>"

    def _body(self) -> str:
        facts = [f"<div><dt>{k}</dt><dd>{markup(v, 400)}</dd></div>" for k, v in self.facts.items()]
        head = [
            f'<th scope="col" title="{says}"><button type="button">{name}</button></th>'
            for name, says in COLUMNS.items()
        ]
        caption, more = f"{counted(len(self.entries), 'sample')}.", self.samples - len(self.entries)
        caption += f" By {markup(self._methods[0])}." if len(self._methods) > 1 else ""
        caption += f" {more} more are in the run folder." if more else ""
        return (
            f'<dl class="facts">{"".join(facts)}</dl>{self._failures()}'
            f'<section aria-label="Samples"><p>{markup(self.meaning()[0], 1000)}</p><p>'
            '<label>Filter <input type="search" id="filter" '
            'autocomplete="off" placeholder="a name, a class, doubtful"></label> '
            '<span id="left" role="status"></span></p><div class="scroll" tabindex="0" '
            'role="region" aria-label="Table of samples"><table id="samples"><caption>'
            f"{caption} A heading sorts; a sample opens its map."
            f"</caption><thead><tr>{''.join(head)}</tr></thead><tbody>"
            f"{''.join(map(row_of, self.entries))}</tbody></table></div></section>"
            '<dialog id="detail" aria-labelledby="detail-title"><p class="bar">'
            '<button type="button" data-step="-1">Previous</button> '
            '<button type="button" data-step="1">Next</button> '
            '<button type="button" data-step="0">Close</button></p><div></div></dialog>'
            f"{''.join(map(template_of, self.entries))}"
        )

    @property
    def _methods(self) -> list[str]:
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
        beside = len(self._methods)
        columns = min(len(maps), beside * max(1, 4 // beside))
        rows = several(None, -(-len(maps) // columns), columns, 2.4, 2.7)
        panels = [panel for row in rows for panel in row]
        for panel, (entry, one) in zip(panels, maps, strict=False):
            e = one.explanation
            heat = e.heatmap(entry.image.shape[:2])[0].cpu()  # type: ignore[union-attr]
            scale = scale_of(heat, strongest=full_colour(heat, next(iter(e.streams.values()))))
            said = e.method if beside > 1 else f"{target_of(e, 0)}, {one.verdict[0]}"
            title = f"{visible(entry.key, 24)}\n{visible(said, 28)}"
            show_heatmap(panel, heat, title, entry.image, scale=scale)
        for panel in panels[len(maps) :]:
            panel.set_axis_off()
        return rows[0][0].figure  # type: ignore[return-value]


def _plain(text: str) -> str:
    """Text that means nothing in a table of Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_|<>[]" else c for c in visible(text, 400))
