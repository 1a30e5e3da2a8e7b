"""Which rows of a parametrised test are in the fast suite; ``make test-slow`` runs the others."""

import itertools

import pytest


def only(fast, rows):
    """All ``rows``, of which those that are not among ``fast`` are slow."""
    rows, fast = list(rows), list(fast)
    unknown = [row for row in fast if row not in rows]
    assert not unknown, f"no rows: {unknown}"
    return [row if row in fast else _slow(row) for row in rows]


def diagonal(*axes):
    """Every combination, of which the fast suite runs as few as have every value in one of them."""
    axes = [list(axis) for axis in axes]
    longest = max(map(len, axes))
    fast = [tuple(axis[i % len(axis)] for axis in axes) for i in range(longest)]
    return only(fast, itertools.product(*axes))


def _slow(row):
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=pytest.mark.slow)
