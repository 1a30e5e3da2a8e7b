"""Whether relevance by one gradient, and a balanced gradient times the input, are what the walk
gives: the columns of those names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relprop.errors import OptionError, first_line
from relprop.explanation import Explanation
from relprop.rules.attnlrp import attnlrp_lines
from relprop.rules.presets import LIBRA_CONSTANTS, variant
from relprop.tracer.model_comparison import difference
from tools.sweep.record import Record

#: AttnLRP and LibraGrad's model without a stabiliser, of which the gradient is no limit.
EXACT = variant("attnlrp, ε = 0", *attnlrp_lines(0.0))
BALANCED = variant("libra, ε = 0", *attnlrp_lines(0.0, constants=LIBRA_CONSTANTS))
#: Differences that count as none, of the largest score.
AGREE = 1e-12
#: How much more than rounding may be between them, which are not the same operations.
TIMES = 10
#: ``relprop.explain`` with its options, and ``sample=`` for one sample alone.
Explain = Callable[..., Explanation]


def one_gradient(explain: Explain, samples: int, record: Record) -> None:
    """Write down how far ``attnlrp`` by one gradient is from the walk, in double precision, or why
    there is no gradient. Raises ``AssertionError`` for more than rounding."""
    how: dict[str, Any] = {"method": "attnlrp", "rules": EXACT, "precision": "float64"}
    fast = explain(**how)
    if fast.facts["relevance"] != "one gradient":
        record.walked = str(fast.facts["relevance"]).removeprefix("walked: ")
        return
    walk = how | {"ledger": True}
    record.gradient_error, record.gradient_rounding = _compared(explain, fast, how, walk, samples)
    _need(record.gradient_error, record.gradient_rounding)


def balanced_gradient(explain: Explain, samples: int, record: Record) -> None:
    """Write down how far gradient × input of the balanced model is from relevance by the same rules
    walked, in double precision, or why there is none. Raises ``AssertionError`` for more than
    rounding."""
    how: dict[str, Any] = {"method": "gradient_x_input", "precision": "float64"}
    by_input = how | {"gradient": BALANCED}
    try:
        fast = explain(**by_input)
    except OptionError as why:
        record.unbalanced = first_line(why)
        return
    walk = {"method": "attnlrp", "rules": BALANCED, "precision": "float64", "ledger": True}
    found = _compared(explain, fast, by_input, walk, samples)
    record.balanced_error, record.balanced_rounding = found
    _need(*found)


def _compared(
    explain: Explain, fast: Explanation, how: dict[str, Any], walk: dict[str, Any], samples: int
) -> tuple[float, float | None]:
    """How far scores are from the walk's, and, where they differ, what rounding makes of such a
    model: measured on both by the samples one by one, whose products are summed in another
    order."""
    walked = explain(**walk)
    error = _apart(fast, walked)
    if error <= AGREE:
        return error, None
    alone = (
        _apart(whole, explain(**given, sample=i), i)
        for whole, given in ((fast, how), (walked, walk))
        for i in range(samples)
    )
    return error, max(alone)


def _need(error: float, rounding: float | None) -> None:
    most = max(AGREE, TIMES * (rounding or 0.0))
    if not error <= most:
        raise AssertionError(f"it differs from the walk by {error:.1e}, more than {most:.0e}")


def _apart(one: Explanation, other: Explanation, sample: int | None = None) -> float:
    """The largest difference between scores, of the largest; ``other`` may be of one sample."""
    worst = 0.0
    for name, stream in other.streams.items():
        scores = one.streams[name].scores
        scores = scores if sample is None else scores[sample : sample + 1]
        error, scale = difference(scores, stream.scores)
        worst = max(worst, error / scale if scale else error)
    return worst
