"""What is worked out about a program once and read at every later call: plans, flows, layouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

T = TypeVar("T")


class Memo:
    """A table of results under keys. Several threads that ask for one key get one result.

    It hangs on the object it is about, so that both are freed together: most of what is kept
    refers to that object, and a table elsewhere, weak or not, would hold it for ever.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, object] = {}
        self._said: set[Hashable] = set()

    def __contains__(self, key: Hashable) -> bool:
        """Whether something was worked out under a key."""
        return key in self._known

    def cache(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, worked out at the first call with ``key``."""
        if key not in self._known:
            self._known.setdefault(key, make())
        return cast(T, self._known[key])

    def forget(self, key: Hashable) -> None:
        """Let go of what was worked out under ``key``, if anything was."""
        self._known.pop(key, None)

    def first_time(self, key: Hashable) -> bool:
        """Whether this is the first call with ``key``: for what is said once."""
        if key in self._said:
            return False
        self._said.add(key)
        return True
