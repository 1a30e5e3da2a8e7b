"""A Question: how a model is asked, apart from what it is asked about. One noun for the method, its
options, its rules, what the answer keeps, and the other values of what is explained at which the
method is asked, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor, fx

from relprop.adapters.given import ready
from relprop.errors import OptionError, nearest
from relprop.rules import PRESETS, RuleSet
from relprop.rules.ruleset import named
from relprop.runner.method import (
    METHODS,
    OF_PROCESSORS,
    RECOMMENDED,
    Method,
    Options,
    method_named,
)

if TYPE_CHECKING:
    from relprop.runner.input_study import InputStudy

KEEP = frozenset({"blocks", "matrix", "input", "layers"})


@dataclass(frozen=True)
class Point:
    """Other values of the explained inputs by name, each (batch, *one sample's shape), and their
    ``weight`` in the mean. ``steps``: what a method that multiplies with the input takes in its
    place (``None``: these values)."""

    values: Mapping[str, Tensor]
    weight: float
    steps: Mapping[str, Tensor] | None = None


@runtime_checkable
class Average(Protocol):
    """What ``average=`` takes: the points at which a method is asked. Each sample's are its own:
    they do not depend on the rest of the batch."""

    @property
    def count(self) -> int:
        """How many there are."""

    def points(self, at: InputStudy) -> Iterator[Point]:
        """The points around the values of ``at``, or on the way to them."""


@dataclass(frozen=True)
class Question:
    """A method with its options and its rule set (``None``: the method's own).

    ``keep``: what stays on the explanation beside the scores, of ``KEEP``. ``hooks``: functions
    that see, and may replace, the relevance at nodes on its way down. ``ledger``: whether books are
    kept (``None``: wherever relevance is walked); ``walk``: why it must be walked, if it must.
    """

    method: str
    options: Options = field(default_factory=dict)
    rules: RuleSet | str | None = None
    keep: frozenset[str] = frozenset()
    hooks: Mapping[fx.Node, Callable[[Tensor], Tensor | None]] = field(default_factory=dict)
    ledger: bool | None = None
    walk: str = ""

    def __post_init__(self) -> None:
        if self.ledger is not None and not isinstance(self.ledger, bool):
            raise OptionError(f"ledger={self.ledger!r}: True, False or None")

    @cached_property
    def by(self) -> Method:
        """The method itself. Raises ``OptionError`` for one that does not exist, and for rules it
        has no use for."""
        found = method_named(self.method, level=None)
        if self.rules is not None and "relevance" not in found.needs and not self.why_walked:
            following = ", ".join(n for n, m in METHODS.items() if "relevance" in m.needs)
            raise OptionError(
                f"rules={getattr(self.rules, 'name', self.rules)!r}: method {self.method!r} "
                "follows no relevance rules, its scores are the same under any",
                then=["leave rules= out", f"or choose a method that follows rules: {following}"],
            )
        return found

    @property
    def own_names(self) -> Iterable[str]:
        """The names of the method's options; of one that is not chosen yet, none."""
        return () if self.method == RECOMMENDED else self.by.options()

    @cached_property
    def settings(self) -> Options:
        """All of the method's options with their values. Raises ``OptionError``."""
        return self.by.checked(self.options)

    @cached_property
    def balance(self) -> RuleSet | None:
        """The rule set whose gradient forms the gradients follow; ``None``: they are the model's.
        Raises ``OptionError``."""
        own = "gradient" in self.by.own_options()
        given = "model" if own else self.settings.get("gradient", "model")
        found = balance_of(given)
        if found is not None and self.settings.get("use_gradient") is False:
            raise OptionError(f"gradient={given!r}: no gradient is read with use_gradient=False")
        return found

    @cached_property
    def average(self) -> Average | None:
        """The points at which the method is asked, of whose scores the mean is taken. Raises
        ``OptionError``."""
        given = self.settings["average"]
        if given is not None and not isinstance(given, Average):
            raise OptionError(
                f"average={given!r}: points around the input, or on the way to it",
                then=["average=relprop.methods.noise(n=10)", "average=relprop.methods.path(n=10)"],
            )
        return given

    @property
    def part(self) -> str | None:
        """Which part of the scores is given, ``"positive"`` or ``"negative"``; ``None``: both."""
        return self.settings["part"] if "part" in self.by.shared else None

    @property
    def why_walked(self) -> str:
        """Why relevance is to be walked whatever its rules are, or ""."""
        given = "ledger=True" if self.ledger else "there are hooks" if self.hooks else ""
        return self.walk or given

    @property
    def rule_set(self) -> RuleSet | str:
        """The rules asked for, or those the method takes by default. Raises ``OptionError`` where
        options that make the method's own rules would go for nothing."""
        own = self.by.rule_set(self.settings)
        if self.rules is not None and own != self.by.rule_set(self.by.options()):
            raise OptionError(
                f"method {self.method!r} makes its rule set of its options "
                f"({', '.join(self.options)}): leave them or rules= out"
            )
        return own if self.rules is None else self.rules

    @cached_property
    def needs(self) -> frozenset[str]:
        """What must be computed."""
        gradient = frozenset({"gradient"}) if "blocks" in self.keep else frozenset()
        return self.by.needing(self.settings) | gradient


def checked_keep(keep: str | Iterable[str]) -> frozenset[str]:
    """What ``keep=`` names. Raises ``OptionError`` for what cannot be kept."""
    names = [keep] if isinstance(keep, str) else keep
    listed = isinstance(names, Iterable) and not isinstance(names, Tensor)
    wrong = [n for n in names if not isinstance(n, str) or n not in KEEP] if listed else [keep]
    if wrong:
        then = [line for name in wrong for line in nearest(name, KEEP)]
        raise OptionError(f"keep={wrong}: there are {', '.join(sorted(KEEP))}", then=then)
    return frozenset(names)


def balance_of(given: object) -> RuleSet | None:
    """The rule set that ``gradient=`` names; ``None`` for ``"model"``. Raises ``OptionError``."""
    if isinstance(given, str) and given == "model":
        return None
    if not isinstance(given, RuleSet) and given not in ("balanced", *PRESETS):
        known = ", ".join(map(repr, ("model", "balanced", *PRESETS)))
        fact = f"gradient={given!r}: a rule set or one of {known}"
        raise OptionError(fact, then=nearest(given, ("model", "balanced")))
    return named("libra" if given == "balanced" else given, PRESETS)


def move_processor_options(
    inputs: object, questions: Sequence[Question]
) -> tuple[object, tuple[Question, ...]]:
    """What a processor is told (``truncation=True``) stands beside its inputs, and is no option of
    a method. Raises ``OptionError`` where there is nothing left to be told."""
    apart = [
        {n for n in q.options if n in OF_PROCESSORS and n not in q.own_names} for q in questions
    ]
    options = {n: q.options[n] for q, own in zip(questions, apart, strict=True) for n in own}
    if not options:
        return inputs, tuple(questions)
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    if ready(inputs):
        fact = f"{given} is for a tokenizer or an image processor, and the inputs are ready tensors"
        raise OptionError(fact, then=["inputs=TEXTS, processor=tokenizer", "leave it out"])
    kinds = {OF_PROCESSORS[name] for name in options}
    if not isinstance(inputs, Mapping) and len(kinds) > 1:
        fact = f"{given}: of several inputs, which must be named"
        names = ", ".join(f"{kind!r}: ..." for kind in sorted(kinds))
        raise OptionError(fact, then=[f"inputs={{{names}}}"])
    named = inputs if isinstance(inputs, Mapping) else {kinds.pop(): inputs}
    left = (
        replace(q, options={n: v for n, v in q.options.items() if n not in own})
        for q, own in zip(questions, apart, strict=True)
    )
    return {**named, **options}, tuple(left)
