"""A spelling: a base, and the part of it that is written in another way."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.spellings.model import Base, Model, Part


@dataclass(frozen=True, eq=False)
class Spelling:
    """One way to write ``base``: ``parts`` replace those of the same name.

    ``refused``: a pattern that the refusal must match, where there is no answer but a refusal.
    ``either``: the right answer or a refusal, since the same numbers are not to be had cheaply;
    what may never happen is another answer. ``inference``: PyTorch itself has no derivative of this
    (a write into one of several views), so that only outputs can be compared without relprop.
    ``apart``: methods that by their definition see a difference, each with the reason.
    """

    family: str
    name: str
    base: Base
    parts: Mapping[str, Part]
    refused: str = ""
    either: bool = False
    inference: bool = False
    apart: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Part, name and base."""
        return f"{'+'.join(self.parts)}-{self.name}-{self.base.name}"

    @property
    def id(self) -> str:
        """How tests name it."""
        return f"{self.family}-{self.title}"

    def model(self) -> Model:
        """A new model, written so."""
        return Model(self.base, **self.parts).eval()


#: What is kept of a block where its map is made in parts, has further keys, or keys and queries in
#: another order: scores can be the same, the map itself is another.
OTHER_MAP = dict.fromkeys(
    ("attention of blocks", "gradient of blocks", "relevance of blocks"),
    "the map itself is another",
)
#: Terms that cancel each other are terms to a rule of relevance all the same.
OTHER_TERMS = dict.fromkeys(
    ("transformer_attribution", "relevance of blocks", "partial_lrp", "lrp", "attnlrp"),
    "relevance is shared among more terms, some of which cancel",
)
SAID = ("refused", "either", "inference", "apart")
_FOUND: dict[str, Spelling] = {}


def spell(part: str, *bases: Base, **ways: Any) -> None:
    """Each of ``ways`` is a spelling of ``part``, under its name, of each base; the family is the
    file's name. What ``Spelling`` has fields for is said of all of them."""
    family = sys._getframe(1).f_globals["__name__"].rsplit(".", 1)[-1]
    said = {name: ways.pop(name) for name in SAID if name in ways}
    for name, way in ways.items():
        for base in bases:
            _add(Spelling(family, name, base, {part: way}, **said))


def _add(new: Spelling) -> None:
    if new.id in _FOUND:
        raise ValueError(f"{new.id} is there twice")
    _FOUND[new.id] = new


def spells(part: str, *bases: Base, **said: Any) -> Callable[[Part], Part]:
    """The decorated function or class is a spelling of ``part``, under its own name. The rest as
    ``spell`` has it."""

    def register(way: Part) -> Part:
        family = way.__module__.rsplit(".", 1)[-1]
        for base in bases:
            _add(Spelling(family, way.__name__, base, {part: way}, **said))
        return way

    return register


def spellings() -> tuple[Spelling, ...]:
    """Every spelling of every family."""
    package = importlib.import_module("tests.spellings.families")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(_FOUND.values())
