"""What is explained: from the caller's ``target`` to a scalar per sample, and how relevance starts
at it.

The public part are the functions that name a target of a real head: ``answer``, ``contrast``,
``direction``, ``output``, ``query``, ``region``, ``similarity``, ``span``, ``token`` and ``unit``
(docs/targets.md).
"""

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
    "answer",
    "contrast",
    "direction",
    "output",
    "query",
    "region",
    "similarity",
    "span",
    "token",
    "unit",
]


def __dir__() -> list[str]:
    return __all__
