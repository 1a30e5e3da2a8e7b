"""A line per spelling: the same, or by which method it differs most, or why there is no answer.

``python -m tests.spellings.table [word ...]``: only spellings whose name holds one of the words.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping

import torch

from tests.spellings.checks import Outcome, compare_all, verdict
from tests.spellings.spelling import Spelling, spellings

#: From the best to the worst.
KINDS = ("same", "refused", "fails", "differs")
BAD = {"differs": "differ", "fails": "fail", "refused": "refused"}


def line(spelling: Spelling, outcomes: Mapping[str, tuple[Outcome, float]]) -> tuple[str, str]:
    """The worst kind of outcome, and the line that tells it."""
    counts = Counter(o.kind for o, _ in outcomes.values())
    kind = max(counts, key=KINDS.index)
    worst = max(
        (n for n, (o, _) in outcomes.items() if o.kind == kind), key=lambda n: _size(n, outcomes)
    )
    outcome = outcomes[worst][0]
    text = {
        "same": "same",
        "differs": f"{worst} {outcome.difference:.1e}",
        "refused": f"refused: {outcome.why}",
        "fails": f"fails: {outcome.why}",
    }[kind]
    others = ", ".join(f"{counts[k]} {BAD[k]}" for k in BAD if counts[k])
    of = f" ({others}, of {len(outcomes)})" if others else ""
    right = " as it may" if kind != "same" and not verdict(spelling, outcomes) else ""
    return kind, f"{spelling.family:<12} {spelling.title:<52} {text}{of}{right}"


def _size(name: str, outcomes: Mapping[str, tuple[Outcome, float]]) -> tuple[bool, float]:
    """Differences in numbers are told before those in shape."""
    difference = outcomes[name][1]
    return difference < float("inf"), difference


def main(words: list[str]) -> None:
    """Print the table, and its totals by family."""
    torch.set_num_threads(1)
    chosen = [s for s in spellings() if not words or any(w in s.id for w in words)]
    totals: Counter[tuple[str, str]] = Counter()
    for spelling in chosen:
        kind, text = line(spelling, compare_all(spelling))
        totals[spelling.family, kind] += 1
        print(text, flush=True)
    print()
    rows = [*dict.fromkeys(s.family for s in chosen), "all"]
    print(f"{'family':<16}" + "".join(f"{k:>9}" for k in (*KINDS, "all")))
    for row in rows:
        counts = [
            sum(n for (f, k), n in totals.items() if k == kind and row in (f, "all"))
            for kind in KINDS
        ]
        print(f"{row:<16}" + "".join(f"{n:>9}" for n in (*counts, sum(counts))))


if __name__ == "__main__":
    main(sys.argv[1:])
