"""What the sweep found out about one subject; a record is one line of JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

EXPLAINED, NO_ATTENTION, FAILED, NOT_BUILT = (
    "explained",
    "no token attention",
    "failed",
    "cannot be built",
)
#: The status where one column alone was asked for.
MEASURED = "measured"
#: Whose failures are told where one gradient, or a balanced one, is not what the walk gives.
GRADIENT_STAGE, BALANCED_STAGE = "one gradient", "balanced gradient"


@dataclass
class Record:
    """One subject's columns. A column that was not reached is ``None`` or empty; ``failures`` are
    ``[stage, reason]``, the first cause first."""

    name: str
    source: str
    family: str
    entry: str
    tasks: list[str] = field(default_factory=list)
    named: bool = False
    status: str = ""
    cause: str = ""
    parameters: int = 0
    shrunk: str = ""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    target: str = ""
    front_end: str = ""
    capture_seconds: float | None = None
    decisions: int = 0
    graph_error: float | None = None
    graph_error_another: float | None = None
    another_in_double: bool = False
    sites: int = 0
    softmaxes: int = 0
    softmaxes_without_site: list[str] = field(default_factory=list)
    generic: list[str] = field(default_factory=list)
    ledger_error: float | None = None
    batch_error: float | None = None
    gradient_error: float | None = None
    gradient_rounding: float | None = None
    walked: str = ""
    balanced_error: float | None = None
    balanced_rounding: float | None = None
    unbalanced: str = ""
    streams: dict[str, list[int]] = field(default_factory=dict)
    finite: bool | None = None
    largest_score: float | None = None
    pads_zero: bool | None = None
    reads_padding: bool = False
    untouched: bool | None = None
    lrp: str = ""
    says: str = ""
    failures: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The record as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Record:
        """The record that ``as_dict`` gave; fields of other versions are dropped."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})
