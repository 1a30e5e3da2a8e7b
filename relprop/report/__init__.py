"""One HTML file that shows an explanation, token by token, and needs nothing else: no server, no
network, no other file."""

from relprop.report.writing import report

__all__ = ["report"]
