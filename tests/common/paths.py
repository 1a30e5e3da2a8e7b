"""The ways in which an explanation may run, each forced upon models of any size: what is taken only
where memory matters otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from relprop.plan import again
from relprop.runner import memory, run
from relprop.tracer import chunked


@contextmanager
def in_chunks(rows: int) -> Iterator[None]:
    """Every attention map is made so many queries at a time."""
    with (
        patch.object(chunked, "CHUNK_BYTES", 0),
        patch.object(chunked, "chunk_rows", lambda attention, batch: rows),
    ):
        yield


@contextmanager
def in_segments() -> Iterator[None]:
    """Every graph is cut, as finely as saves memory."""
    with patch.object(memory, "free_memory", lambda device: 0), patch.object(memory, "LITTLE", 0):
        yield


@contextmanager
def frugally() -> Iterator[None]:
    """Small values, too, are made again or let go."""
    with patch.object(again, "SMALL", 0), patch.object(run, "MATTERS", 0):
        yield
