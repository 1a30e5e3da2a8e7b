"""Which rows of a parametrised test the fast suite has; ``make test-slow`` runs the others, too."""

import itertools

import pytest


def marked(things, fast, name=str):
    """A row for each of ``things``, under its name; those that ``fast`` does not name are slow."""
    names, fast = [name(thing) for thing in things], {*fast}
    assert fast <= {*names}, f"no rows: {fast - {*names}}"
    return [
        pytest.param(thing, id=own, marks=_marks(own in fast))
        for thing, own in zip(things, names, strict=True)
    ]


def only(fast, rows):
    """All ``rows``, of which those that are not among ``fast`` are slow."""
    rows, fast = list(rows), list(fast)
    unknown = [row for row in fast if row not in rows]
    assert not unknown, f"no rows: {unknown}"
    return [_row(row, row in fast) for row in rows]


def diagonal(*axes):
    """Every combination, of which the fast suite runs as few as have every value in one of them."""
    axes = [list(axis) for axis in axes]
    along = range(max(map(len, axes)))
    fast = {tuple(at % len(axis) for axis in axes) for at in along}
    cells = itertools.product(*map(enumerate, axes))
    return [_row(tuple(v for _, v in cell), tuple(i for i, _ in cell) in fast) for cell in cells]


def _row(row, fast):
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=_marks(fast))


def _marks(fast):
    return () if fast else pytest.mark.slow
