"""The rows of a table: methods by name, with options, functions of one's own, and the two floors
that every table has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from relprop.data.functions import of_callable
from relprop.errors import OptionError
from relprop.methods import method_named
from relprop.runner.question import Question
from relprop.runs.fingerprints import of_value

Function = Callable[[Any, Any, Tensor], Tensor]


@dataclass(frozen=True)
class Entry:
    """A row: ``name``, and where its maps come from.

    ``call``: a method relprop knows, with options and rules. Or ``function(model, inputs,
    target)``: ``inputs`` as the model takes them, ``target`` (batch,) class numbers; it returns the
    maps, (batch, tokens) of texts, (batch, h, w) of images, pixels or patches. ``class_specific``:
    whether the maps depend on the target. With neither it is a floor: ``random`` (noise, another
    for every sample, the same in every run) or ``position`` (the same map whatever the input).
    """

    name: str
    call: Question | None = None
    function: Function | None = None
    class_specific: bool = True

    @property
    def floor(self) -> bool:
        """Whether this is one of the two rows that know nothing of the model."""
        return self.call is None and self.function is None

    def identity(self) -> dict[str, Any]:
        """What its numbers depend on, as plain JSON: of a function its source."""
        named: dict[str, Any] = {"name": self.name}
        if self.function is not None:
            code = of_callable(self.function)
            return named | {"function": code, "class_specific": self.class_specific}
        if self.call is None:
            return named
        options, rules = of_value(self.call.options), of_value(self.call.rules)
        return named | {"method": self.call.method, "options": options, "rules": rules}


RANDOM = Entry("random", class_specific=False)
POSITION = Entry("position", class_specific=False)


def entries(methods: Iterable[Any]) -> tuple[Entry, ...]:
    """Rows from names (``"rollout"``, ``"partial_lrp/lrp"`` with a rule set), functions,
    ``Question``s, ``Entry``s, or pairs of a row's name and one of these.

    The two floors are added if they are not among them. Raises ``OptionError`` for a method that
    does not exist, and for two rows of one name.
    """
    one = isinstance(methods, (str, Mapping)) or callable(methods)
    if one or not isinstance(methods, Iterable):
        fact = "methods is a list: names, functions, or pairs of a label and one of these"
        raise OptionError(fact, then=['["gae", ("mine", my_function)]'])
    rows = [_entry(method) for method in methods]
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        then = f'("{twice[0]}, again", ...)   # another name for the row'
        raise OptionError(f"methods: {', '.join(twice)} is there twice", then=[then])
    return (*rows, *(floor for floor in (RANDOM, POSITION) if floor.name not in names))


def _entry(given: Any) -> Entry:
    if isinstance(given, Entry):
        return given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return replace(_entry(given[1]), name=given[0])
    if isinstance(given, str) and given in (RANDOM.name, POSITION.name):
        return RANDOM if given == RANDOM.name else POSITION
    if isinstance(given, str):
        method, _, rules = given.partition("/")
        return replace(_entry(Question(method, {}, rules or None)), name=given)
    if isinstance(given, Question):
        method = given.method
        return Entry(method, given, None, method_named(method, level=None).class_specific)
    if callable(given):
        return Entry(getattr(given, "__name__", type(given).__name__), None, given)
    known = "name, function, Question or pair of a name and one of these"
    raise OptionError(f"methods: {given!r} is no {known}")
