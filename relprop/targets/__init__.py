"""What is explained: from the caller's ``target`` to a scalar per sample, and how relevance starts
at it.

The public part are the functions that name a target of a real head: ``output``, ``query``,
``region``, ``similarity``, ``span`` and ``token`` (docs/targets.md).
"""

from relprop.targets.outputs import class_output
from relprop.targets.resolve import is_callable, places_read, possible_starts, resolve
from relprop.targets.start import Context, Start, Target, Term, has_batch_axis
from relprop.targets.vocabulary import output, query, region, similarity, span, token

__all__ = [
    "Context",
    "Start",
    "Target",
    "Term",
    "class_output",
    "has_batch_axis",
    "is_callable",
    "output",
    "places_read",
    "possible_starts",
    "query",
    "region",
    "resolve",
    "similarity",
    "span",
    "token",
]
