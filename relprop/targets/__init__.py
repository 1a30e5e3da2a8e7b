"""What is explained: from the caller's ``target`` to a scalar per sample, and how relevance starts at it."""

from relprop.targets.index import Start, Term, class_output, resolve

__all__ = ["Start", "Term", "class_output", "resolve"]
