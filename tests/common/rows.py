"""Rows of parametrised tests, of which the fast suite has some."""

import pytest


def marked(things, fast, name=str):
    """A row for each of ``things``, under its name; those that ``fast`` does not name are slow."""
    names, fast = [name(thing) for thing in things], {*fast}
    assert fast <= {*names}, f"no rows: {fast - {*names}}"
    return [
        pytest.param(thing, id=own, marks=() if own in fast else pytest.mark.slow)
        for thing, own in zip(things, names, strict=True)
    ]


def diagonal(rows, columns):
    """A row of the test for every cell of a table; fast are those of a diagonal, on which each row
    and each column stands at least once."""
    rows, columns = list(rows), list(columns)
    along = range(max(len(rows), len(columns)))
    fast = {(at % len(rows), at % len(columns)) for at in along}
    return [
        pytest.param(row, column, marks=() if (i, k) in fast else pytest.mark.slow)
        for i, row in enumerate(rows)
        for k, column in enumerate(columns)
    ]
