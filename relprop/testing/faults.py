"""What an examination finds: the laws that hold, and the faults, each with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from relprop.errors import RelpropError


class CheckFailed(RelpropError, AssertionError):
    """A rule, method, adapter or measure breaks a law. The message names each, and what to do;
    ``faults`` has them one by one."""

    def __init__(self, subject: str, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        lines = [f"  {f.law}: {f.fact}\n    then  {f.then}" for f in faults]
        count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
        super().__init__("\n".join([f"{subject} has {count}", *lines]))


@dataclass(frozen=True)
class Fault:
    """A law that does not hold: its name, what was seen, and what to do ``then``."""

    law: str
    fact: str
    then: str


@dataclass(frozen=True)
class Checked:
    """What ``check_rule``, ``check_method`` and the others give: what was examined (``subject``),
    the ``laws`` that hold (conservation, equal numbers in any batch), and ``notes`` on what was not
    tested."""

    subject: str
    laws: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.subject}: {', '.join(self.laws)}", *self.notes])


@dataclass
class Examination:
    """Laws in the making: each is tried in turn, and the end raises if any was broken."""

    subject: str
    held: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def law(self, name: str, holds: bool, fact: str = "", then: str = "") -> bool:
        """Write down whether a law holds; gives it back."""
        if holds:
            self.held.append(name)
        else:
            self.faults.append(Fault(name, fact, then))
        return holds

    def end(self) -> Checked:
        """What holds. Raises ``CheckFailed`` if anything does not."""
        if self.faults:
            raise CheckFailed(self.subject, self.faults)
        return Checked(self.subject, tuple(self.held), tuple(self.notes))
