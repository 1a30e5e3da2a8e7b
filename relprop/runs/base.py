"""Work over a data set: numbered samples, each done once, whatever the batch it was done in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Record:
    """What came of one sample: rows of the table, each a mapping of the work's ``columns``, and
    tensors by name."""

    index: int
    key: str
    rows: tuple[Mapping[str, Any], ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


class Work(Protocol):
    """Something to do for each sample of a data set. ``key(index)``, if there is one, names a
    sample that fails. ``probe()``, if there is one, returns the model's output for a fixed input
    (``relprop.runs.probing``); a run that is resumed is refused where it has changed."""

    @property
    def columns(self) -> Mapping[str, str]:
        """The table's columns beside ``index`` and ``key``, each with its type: ``"string"``,
        ``"int64"``, ``"float64"``, ``"list<float64>"``."""

    def identity(self) -> dict[str, Any]:
        """Everything the numbers depend on, as plain JSON (model's weights by hash, data, methods,
        options): a run folder belongs to one identity."""

    def __len__(self) -> int: ...

    def __call__(self, indices: Sequence[int]) -> list[Record]:
        """The records of these samples, in this order. The numbers must not depend on which others
        are done with them."""
