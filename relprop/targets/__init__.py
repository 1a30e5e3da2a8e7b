"""What is explained: from the caller's ``target`` to a scalar per sample, and how relevance starts
at it.

The public part are the functions that name a target of a real head: ``answer``, ``contrast``,
``direction``, ``output``, ``query``, ``region``, ``similarity``, ``span``, ``token`` and ``unit``
(docs/targets.md).
"""

from relprop.targets.outputs import class_output
from relprop.targets.resolve import (
    is_callable,
    places_read,
    possible_starts,
    reads_more,
    resolve,
)
from relprop.targets.start import Context, NoStart, Start, Target, Term, has_batch_axis
from relprop.targets.vocabulary import (
    answer,
    contrast,
    direction,
    output,
    query,
    region,
    similarity,
    span,
    token,
    unit,
)

__all__ = [
    "Context",
    "NoStart",
    "Start",
    "Target",
    "Term",
    "answer",
    "class_output",
    "contrast",
    "direction",
    "has_batch_axis",
    "is_callable",
    "output",
    "places_read",
    "possible_starts",
    "query",
    "reads_more",
    "region",
    "resolve",
    "similarity",
    "span",
    "token",
    "unit",
]


def __dir__() -> list[str]:
    return __all__
