"""A row of a table on a card: its columns by name, each with its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from relprop.errors import InputError, OptionError
from relprop.explanation import Explanation, TokenScores
from relprop.views.regions import is_recording

Columns = Sequence[str] | Mapping[str, Sequence[str]] | None


def tables_of(explanation: Explanation, names: Columns) -> dict[str, Sequence[str] | None]:
    """The inputs that are rows of tables, each with the ``names`` of its columns, ``None`` where
    nobody said them. Raises ``OptionError`` for names without a table, ``InputError`` where there
    are more or fewer of them than columns."""
    streams = explanation.streams
    tables = [name for name, stream in streams.items() if _is_table(stream)]
    given = names if isinstance(names, Mapping) else dict.fromkeys(tables, names)
    if names is not None and (not given or not {*given} <= {*tables} or len(given) != len(tables)):
        then = [f"columns={{{name!r}: [...]}}" for name in tables] or ["leave columns= out"]
        rows = ", ".join(map(repr, tables)) or "none"
        raise OptionError(f"columns= names columns, and of the inputs {rows} are tables", then=then)
    for name, own in given.items():
        (count,) = streams[name].extent
        if own is not None and (isinstance(own, str) or len(own) != count):
            fact = f"columns= has {len(own)} names, and {name!r} has {count} columns"
            raise InputError(fact, then=["a name for each column, in order"])
    return dict(given)


def labelled(
    explanation: Explanation, inputs: Mapping[str, Tensor], names: Columns
) -> tuple[Explanation, list[str]]:
    """The explanation of one row with ``age = 38`` for the labels of its tables' tokens, and which
    inputs are tables; arguments and errors of ``tables_of``. Without names, numbers are columns,
    and what has several numbers at each place is told by steps."""
    streams, tables = dict(explanation.streams), tables_of(explanation, names)
    for name, own in tables.items():
        stream, given = streams[name], inputs[name]
        (count,) = stream.extent
        row = given[0].tolist() if given.dim() == 2 else [None] * count
        place = "column" if given.is_floating_point() else "position"
        kind = place if given.dim() == 2 else "step"
        called = [f"{kind} {k}" for k in range(count)] if own is None else own
        labels = ["" if k < 0 else _label(called[k], row[k]) for k in stream.source.tolist()]
        streams[name] = replace(stream, tokens=[labels])
    return replace(explanation, streams=streams), list(tables)


def _is_table(stream: TokenScores) -> bool:
    """Whether each token is one place of a row, and nothing says what it is."""
    unnamed = stream.tokens is None and stream.words is None and stream.grid is None
    return unnamed and len(stream.extent) == 1 and not is_recording(stream)


def _label(name: str, value: float | int | None) -> str:
    if value is None:
        return name
    return f"{name} = {value if isinstance(value, int) else format(value, '.6g')}"
