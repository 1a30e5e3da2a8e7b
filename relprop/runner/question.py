"""A Question: how a model is asked, apart from what it is asked about. One noun for the method, its
options, its rules, and what the answer keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, fx

from relprop.errors import OptionError, nearest
from relprop.rules import RuleSet
from relprop.runner.method import METHODS, Method, Options, method_named

KEEP = frozenset({"blocks", "matrix", "input", "layers"})


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

    @cached_property
    def settings(self) -> Options:
        """All of the method's options with their values. Raises ``OptionError``."""
        return self.by.checked(self.options)

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
