"""RuleSet: an immutable, ordered, first-match table from *operator*, *module class* or *module
path* to a Rule."""

from __future__ import annotations

import fnmatch
import itertools
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from relprop.error_boundary import guarded
from relprop.errors import OptionError, RuleError, nearest
from relprop.operations import Kind, Operator, kind, packet
from relprop.rules.call import Call, Split
from relprop.rules.rule import Relevance, Rule, Shares

#: What a rule is for: a kind, an operator, a module class, or a pattern of module paths.
Key = Any
FanOut = Callable[[Tensor, tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True)
class Entry:
    """One line of the table. ``key``: a kind of operations, an operator (overload or packet), a
    module class, or a module-path pattern."""

    key: Key
    rule: Rule

    @property
    def kind(self) -> str:
        """``"op"``, ``"class"`` or ``"path"``."""
        if isinstance(self.key, str):
            return "path"
        return "class" if isinstance(self.key, type) else "op"

    @property
    def named(self) -> str:
        """What it is for, in a word or two."""
        if isinstance(self.key, Kind):
            return self.key.name.lower().replace("_", " ")
        if self.kind == "path":
            return repr(self.key)
        return str(self.key.__qualname__ if self.kind == "class" else self.key)

    def matches_module(self, module: nn.Module | None, paths: Iterable[str]) -> bool:
        """Whether this entry is about a call of ``module``, known under any of ``paths`` (aliases,
        and ``path@1`` for a second call)."""
        if self.kind == "class":
            return isinstance(module, self.key)
        return self.kind == "path" and any(fnmatch.fnmatchcase(path, self.key) for path in paths)


def make_entry(key: Key, rule: Rule | Callable[..., Shares]) -> Entry:
    """A checked entry: raises ``RuleError`` for a key that can never match."""
    operator = isinstance(key, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    module = isinstance(key, type) and issubclass(key, nn.Module)
    if not (operator or module or (isinstance(key, str) and key)):
        raise RuleError(
            f"{key!r} is no key of a rule",
            then=[
                (
                    "give an operator (torch.ops.aten.gelu.default or "
                    "torch.ops.aten.gelu), an nn.Module class, or a module-path "
                    "pattern ('blocks.*.norm1')"
                )
            ],
        )
    made = Rule.ensure(rule)
    if operator and made.kinds and kind(key) not in made.kinds:
        raise RuleError(f"{made.named_kinds}; {key} is: {kind(key).value}")
    return Entry(key, made)


@dataclass(frozen=True, repr=False)
class RuleSet:
    """How relevance passes every operation. ``fan_out`` (default: the sum) joins the relevances of
    a value used several times.

    ``fixed``: registered rules do not enter, and an op in no list takes ``generic`` without a word
    (the roll-up is such a set).
    """

    name: str
    entries: tuple[Entry, ...]
    generic: Rule
    fan_out: FanOut | None = None
    fixed: bool = False

    @guarded
    def with_rule(self, key: Key, rule: Rule | Callable[..., Shares]) -> RuleSet:
        """A new rule set in which ``rule`` is consulted first for ``key``.

        >>> import torch, relprop
        >>> rules = relprop.rules.PAPER.with_rule(torch.ops.aten.cumsum, relprop.rules.carry)
        >>> rules.name
        'paper+1'
        """
        base, _, count = self.name.partition("+")
        own = replace(Rule.ensure(rule))  # an object of its own, by which its steps are known
        return replace(
            self,
            name=f"{base}+{int(count or 0) + 1}",
            entries=(make_entry(key, own), *self.entries),
        )

    def __repr__(self) -> str:
        """A line per rule: the layers, by class or path, and the operations that it is for."""
        lines = [f"rules {self.name!r}: the first line that fits a layer or an operation counts"]
        if self.fan_out is not None:
            lines.append("  what is used several times has a rule of its own (fan_out)")
        ordered = sorted(self.consulted, key=lambda e: e.kind == "op")
        for name, entries in itertools.groupby(ordered, key=lambda e: e.rule.name):
            keys = ", ".join(sorted(entry.named for entry in entries))
            lines += textwrap.wrap(
                keys, 100, initial_indent=f"  {name:<26} ", subsequent_indent=" " * 29
            )
        return "\n".join([*lines, f"  {self.generic.name:<26} anything else"])

    @property
    def added(self) -> tuple[Entry, ...]:
        """The entries of ``with_rule``, the newest first."""
        count = self.name.partition("+")[2]
        return self.entries[: int(count)] if count.isdigit() else ()

    @property
    def consulted(self) -> tuple[Entry, ...]:
        """The entries in the order they are consulted: those of ``register_rule`` first."""
        return self.entries if self.fixed else (*registered(), *self.entries)

    def for_op(self, op: Operator) -> Rule | None:
        """The first rule about operator ``op``, its packet (which is all of its overloads) or its
        kind, or ``None``."""
        keys = (op, packet(op), kind(op))
        return next((entry.rule for entry in self.consulted if entry.key in keys), None)

    def module_entries(self) -> tuple[Entry, ...]:
        """The entries about module calls, in the order they are consulted."""
        return tuple(entry for entry in self.consulted if entry.kind != "op")


_layer: list[Entry] = []


def registered() -> tuple[Entry, ...]:
    """The process-wide layer, newest first."""
    return tuple(reversed(_layer))


class Registration:
    """What ``register_rule`` leaves behind: call ``.remove()``, or use it as a context manager, to
    undo it."""

    def __init__(self, key: Key, rule: Rule | Callable[..., Shares]) -> None:
        self.entry = make_entry(key, rule)
        self.rule = self.entry.rule
        _layer.append(self.entry)

    def remove(self) -> None:
        """Take the rule out of the process-wide layer; a second call does nothing."""
        _layer[:] = [entry for entry in _layer if entry is not self.entry]

    def __call__(self, relevance: Relevance, call: Call) -> Split:
        return self.rule(relevance, call)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


@guarded
def register_rule(key: Key) -> Callable[[Rule | Callable[..., Shares]], Registration]:
    """Decorate a rule so that it is consulted first, for every rule set, in this process.

    >>> import torch, relprop
    >>> @relprop.register_rule(torch.ops.aten.cumsum)
    ... def cumsum(relevance, call):
    ...     return relevance
    >>> cumsum.remove()
    """
    return partial(Registration, key)


def named(rules: RuleSet | str, presets: dict[str, RuleSet]) -> RuleSet:
    """A rule set from itself or from its name; an unknown name is answered with the list."""
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, str) and rules in presets:
        return presets[rules]
    raise OptionError(
        f"rules={rules!r} is no rule set; there are {', '.join(sorted(presets))}",
        then=nearest(rules, presets),
    )
