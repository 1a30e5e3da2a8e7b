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
AGREE = 1e-12
#: How much more than rounding may be between them, which are not the same operations.
TIMES = 10


def one_gradient(explain: Callable[..., Explanation], samples: int, record: Record) -> None:
    """Write down how far ``attnlrp`` by one gradient is from the walk, in double precision, or why
    there is no gradient. ``explain`` takes the options of ``relprop.explain``, and ``sample=`` for
    one of the ``samples`` alone.

    Where they differ, what rounding makes of such a model is measured on both by the samples one
    by one, whose products are summed in another order. Raises
    ``AssertionError`` for more than that.
    """
    how: dict[str, Any] = {"method": "attnlrp", "rules": EXACT, "precision": "float64"}
    fast = explain(**how)
    if fast.facts["relevance"] != "one gradient":
        record.walked = str(fast.facts["relevance"]).removeprefix("walked: ")
        return
    walked = explain(**how, ledger=True)
    record.gradient_error = _apart(fast, walked)
    if record.gradient_error <= AGREE:
        return
    record.gradient_rounding = max(
        _apart(whole, explain(**how, ledger=ledger, sample=i), i)
        for whole, ledger in ((fast, None), (walked, True))
        for i in range(samples)
    )
    most = max(AGREE, TIMES * record.gradient_rounding)
    if not record.gradient_error <= most:
        far = f"it differs from the walk by {record.gradient_error:.1e}, more than {most:.0e}"
        raise AssertionError(far)


def _apart(one: Explanation, other: Explanation, sample: int | None = None) -> float:
    """The largest difference between scores, of the largest; ``other`` may be of one sample."""
    worst = 0.0
    for name, stream in other.streams.items():
        scores = one.streams[name].scores
        scores = scores if sample is None else scores[sample : sample + 1]
        error, scale = difference(scores, stream.scores)
        worst = max(worst, error / scale if scale else error)
    return worst
