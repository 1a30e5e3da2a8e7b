"""Models of timm and Hugging Face, small as they are, explained in every way that large ones are:
attention maps a few queries at a time, the graph in segments, values made again. The maps must be
those of one piece, in float64.

    python -m tools.paths --only hf/bert              # of every model that fits
    python -m tools.paths --models 20 --seed 1        # 20 models by chance

A line says whether the methods agree with one piece, or by how much of the largest score which one
differs. Where they differ no more than weights that are rounded otherwise would make them, they
agree. The exit code is the number of models and ways that differ or fail.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from relprop.errors import RelpropError, first_line
from tests.common.paths import frugally, in_chunks, in_segments
from tests.spellings.rewriting import Rewritten
from tools.rewritten import (
    CLOSE,
    TIMES,
    Usual,
    called,
    explained,
    furthest,
    parser_for,
    rounding,
    subjects_for,
)

#: Rows of a map that are made at a time.
ROWS = 5
PATHS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "chunks": lambda: in_chunks(ROWS),
    "segments": in_segments,
    "frugal": frugally,
}


def outcome_of(one: Usual, path: str) -> tuple[str, str]:
    """What came of a model that is explained in another way: ``agree``, ``DIFFERS``, ``FAILS``."""
    model = copy.deepcopy(one.model)  # which is captured and planned anew
    try:
        with PATHS[path](), called(model, Rewritten(())):
            found = explained(model, one.inputs, one.target)
    except RelpropError as error:
        return "FAILS", f"{type(error).__name__}: {first_line(error)}"
    if missing := one.scores.keys() - found.keys():
        return "FAILS", f"no {', '.join(sorted(missing))}"
    far = furthest(found, one.scores)
    worst = {m: d for m, d in far.items() if not d <= CLOSE}
    if not worst:
        return "agree", f"{max(far.values()):.0e}"
    noise = rounding(one, Rewritten(()))
    if all(d <= TIMES * noise[m] for m, d in worst.items()):
        return "agree", f"within rounding: {max(worst.values()):.0e}"
    return "DIFFERS", ", ".join(f"{m} {d:.0e}" for m, d in worst.items())


def main() -> int:
    """Print a line per model and way, and a summary."""
    parser = parser_for(__doc__)
    parser.add_argument("--paths", nargs="*", choices=PATHS, default=list(PATHS))
    args = parser.parse_args()
    words: Counter[str] = Counter()
    for subject, one in subjects_for(args):
        for path in args.paths:
            word, says = outcome_of(one, path)
            words[word] += 1
            print(f"{subject.name:60} {path:8} {word}: {says}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in words.items()) or "nothing to compare")
    return words["DIFFERS"] + words["FAILS"]


if __name__ == "__main__":
    sys.exit(main())
