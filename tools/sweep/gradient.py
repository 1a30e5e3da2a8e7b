"""Whether relevance by one gradient is what the walk gives: the column of that name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relprop.explanation import Explanation
from relprop.rules.attnlrp import attnlrp_lines
from relprop.rules.presets import variant
from relprop.tracer.judge import difference
from tools.sweep.record import Record

#: AttnLRP without a stabiliser, of which the gradient is no limit.
EXACT = variant("attnlrp, ε = 0", *attnlrp_lines(0.0))
#: Differences that count as none, of the largest score.
AGREE = 1e-9


def one_gradient(explain: Callable[..., Explanation], record: Record) -> None:
    """Write down how far ``attnlrp`` by one gradient is from the walk, in double precision, or why
    there is no gradient. Raises ``AssertionError`` where they differ."""
    how: dict[str, Any] = {"method": "attnlrp", "rules": EXACT, "precision": "float64"}
    fast = explain(**how)
    if fast.facts["relevance"] != "one gradient":
        record.walked = str(fast.facts["relevance"]).removeprefix("walked: ")
        return
    walked, worst = explain(**how, ledger=True), 0.0
    for name, stream in walked.streams.items():
        error, scale = difference(fast.streams[name].scores, stream.scores)
        worst = max(worst, error / scale if scale else error)
    record.gradient_error = worst
    if not worst <= AGREE:
        raise AssertionError(f"it differs from the walk by {worst:.1e}, more than {AGREE:.0e}")
