"""One HTML file that shows an explanation, token by token, and needs nothing else: no server, no
network, no other file."""

from relprop.reporting.writing import report

__all__ = ["report"]
