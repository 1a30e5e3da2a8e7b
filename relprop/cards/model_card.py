"""The model card of a run, as Markdown for a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relprop.views.escape import visible

if TYPE_CHECKING:
    from relprop.cards.run import RunPage


def model_card(page: RunPage) -> str:
    """What was explained, what came of it, and what not to conclude."""
    verdicts = page.verdicts()
    first = page.entries[0].found[0].explanation.method if page.entries else ""
    concerned = sum(bool(e.found[0].concerns) for e in page.entries)
    medians = {k: "–" if v is None else f"{v:.2f}" for k, v in page.medians().items()}
    return "\n".join(
        [
            f"# Explanations of {_plain(page.facts['Model'].rpartition('.')[2])}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {k} | {_plain(v)} |" for k, v in page.facts.items()),
            f"| Samples | {page.samples} explained, {len(page.failed)} failed |",
            "",
            f"    {visible(page.call, 2000)}",
            "",
            f"## The first {len(page.entries)} samples, by {_plain(first)}",
            "",
            "| | |",
            "|---|---|",
            *(f"| Maps that are {k} | {verdicts[k]} |" for k in sorted(verdicts)),
            f"| Maps with concerns | {concerned} |",
            *(f"| Median {k} | {v} |" for k, v in medians.items()),
            "",
            "## What this means, and what not to conclude",
            "",
            *(f"- {line}" for line in page.meaning()),
            "",
        ]
    )


def _plain(text: str) -> str:
    """Text that means nothing in a table of Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_|<>[]" else c for c in visible(text, 400))
