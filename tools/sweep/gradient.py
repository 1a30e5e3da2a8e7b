"""Whether relevance by one gradient is what the walk gives: the column of that name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relprop.explanation import Explanation
from relprop.rules.attnlrp import attnlrp_lines
from relprop.rules.presets import variant
from relprop.tracer.judge import difference
from tools.sweep.record import FAILED, Record

#: AttnLRP without a stabiliser, of which the gradient is no limit.
EXACT = variant("attnlrp, ε = 0", *attnlrp_lines(0.0))
STAGE = "one gradient"
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


def merged(before: Mapping[str, Any], measured: Iterable[Record]) -> list[Record]:
    """An earlier report's records with this column of those that were ``measured``."""
    found = {r.name: r for r in measured}
    records = [Record.of(r) for r in before["records"]]
    for record in records:
        if (new := found.get(record.name)) is None:
            continue
        record.gradient_error, record.walked = new.gradient_error, new.walked
        record.failures = [f for f in record.failures if f[0] != STAGE]
        record.failures += [f for f in new.failures if f[0] == STAGE]
        if record.failures:
            record.status, record.cause = FAILED, ": ".join(record.failures[0])
    return records
