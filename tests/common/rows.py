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
