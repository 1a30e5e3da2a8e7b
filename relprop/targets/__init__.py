"""What is explained: from the caller's ``target`` to a scalar per sample, and how relevance starts at it."""

from relprop.targets.index import Context, Start, Term, class_output
from relprop.targets.resolve import resolve

__all__ = ["Context", "Start", "Term", "class_output", "resolve"]
