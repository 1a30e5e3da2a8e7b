"""A Rule: how one operation splits the relevance at its output among its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from relprop.errors import RuleError
from relprop.operations import Kind
from relprop.rules.call import Call, Split, Total, ZeroPadded
from relprop.rules.gradient_form import Form
from relprop.rules.sums import Add

#: A tensor, or one for each floating output of an operation that has several.
Relevance = Tensor | tuple[Tensor, ...]
Shares = Tensor | Sequence[Tensor | ZeroPadded | Total | None] | Split


class RuleFunction(Protocol):
    """``(relevance, call) -> shares``: relevance has the output's shape, each share its
    operand's."""

    def __call__(self, relevance: Tensor, call: Call, /) -> Shares: ...


@dataclass(frozen=True)
class Rule:
    """A rule function with its name, its family, and which values it reads (what it does not read
    is not kept in memory). ``row_wise``: any part of its output can be split without the rest (a
    carry, a move and a share always can). ``gradient``: its gradient form, if it has one
    (``relprop.rules.gradient_form``). ``kinds``: what operations with one activation it is for
    (none: any); given to a module, it takes each of those in the module's call, and not the call.

    ``lone`` stands in where only one operand is an activation: x·γ carries what u·v would balance;
    ``large`` where a weight has many numbers (``relprop.rules.large_linear``).
    A rule function returns one tensor (for the only activation), one share per operand, or a
    ``Split``.
    """

    function: Callable[..., Any]
    name: str
    family: str = "custom"
    reads: frozenset[str] = frozenset({"inputs", "output"})
    lone: Rule | None = None
    large: Rule | None = None
    row_wise: bool = False
    gradient: Form | None = None
    kinds: frozenset[Kind] = frozenset()

    def __post_init__(self) -> None:
        if self.function.__doc__:  # help() of a rule is about this one
            object.__setattr__(self, "__doc__", self.function.__doc__)

    def for_activations(self, count: int) -> Rule:
        """Itself, or what stands in where a single operand is an activation."""
        return self.lone if self.lone is not None and count == 1 else self

    @property
    def alternatives(self) -> tuple[Rule, ...]:
        """Itself and what stands in for it."""
        return tuple(r for r in (self, self.lone, self.large) if r is not None)

    @property
    def named_kinds(self) -> str:
        """What operations it is for, as a sentence."""
        kinds = ", ".join(sorted(k.name.lower().replace("_", " ") for k in self.kinds))
        return f"rule {self.name!r} is for operations of these kinds: {kinds}"

    @property
    def splits_parts(self) -> bool:
        """Whether what arrives at some rows of its output can be split by itself."""
        return self.row_wise or self.family in ("carry", "move", "share")

    @property
    def is_linear(self) -> bool:
        """Whether the shares of a sum of relevances are the sums of their shares, which Lemma 2
        alone is known to break; nothing is known of a rule of one's own without a gradient form."""
        unbalanced = isinstance(self.function, Add) and not self.function.normalise
        known = self.family in ("carry", "move", "share", "stop", "taylor")
        return self.gradient is not None or known or unbalanced

    @property
    def balancing(self) -> Add | None:
        """Its function, if nothing but Lemma 2's sums are over more than single rows."""
        function = self.function
        if isinstance(function, Add) and function.normalise and self.lone is None:
            return function
        return None

    @property
    def divides_by_output(self) -> bool:
        """Whether it shares by what each term is of the output, which must then be their sum."""
        return self.family in ("balance", "share") and self.reads >= {"inputs", "output"}

    @property
    def for_one_activation(self) -> bool:
        """Whether it is defined for operations with one activation only."""
        return self.family in ("carry", "share")

    @property
    def stops(self) -> bool:
        """Whether no relevance passes it."""
        return self.family == "stop"

    @property
    def hands_on_fields(self) -> bool:
        """Whether its shares are fields of the roll-up, whose shape is not the operand's."""
        return self.family == "rollup"

    def __call__(self, relevance: Relevance, call: Call) -> Split:
        """The split of ``relevance``, checked: one share per operand, each of its operand's
        shape."""
        split = self.split(relevance, call)
        shares = tuple([s.whole() if isinstance(s, ZeroPadded) else s for s in split.shares])
        return replace(split, shares=shares)

    def split(self, relevance: Relevance, call: Call) -> Split:
        """The same, where shares that are zeros for the most part may be ``ZeroPadded``."""
        if (rule := self.for_activations(len(call.activations))) is not self:
            return rule.split(relevance, call)
        split = self._split(self.function(relevance, call), call)
        if len(split.shares) != len(call.operands):
            raise RuleError(
                f"rule {self.name!r} returned {len(split.shares)} shares for "
                f"{len(call.operands)} operands of {call.op}"
            )
        for i, share in enumerate(() if self.hands_on_fields else split.shares):
            self._check(share, call, i)
        return split

    def _split(self, result: object, call: Call) -> Split:
        """What the function returned as a split."""
        if isinstance(result, Tensor):
            whole = call.inputs[call.activations[0]].shape
            if result.shape != whole and not _shrinks(result, whole):
                raise self._misshapen(result, call, call.activations[0])
            return Split(call.only(result))
        if isinstance(result, Split):
            return result
        if isinstance(result, (tuple, list)):
            return Split(tuple(result))
        raise RuleError(
            f"rule {self.name!r} returned {type(result).__name__} for {call.op}",
            then=[
                "return relevance   # one tensor: all of it goes to the only activation",
                "return share, None   # one share per operand; None: nothing",
                'return relprop.rules.Split(shares, lost={"cause": amount})',
            ],
        )

    def _check(self, share: object, call: Call, index: int) -> None:
        """One share: nothing, a sum, or a tensor of its operand's shape."""
        if share is None or isinstance(share, Total):
            return
        if not isinstance(share, (Tensor, ZeroPadded)):
            raise RuleError(
                f"rule {self.name!r} returned {type(share).__name__} as the share of operand "
                f"{index} of {call.op}; a share is a tensor or None"
            )
        x = call.inputs[index]
        if isinstance(x, Tensor) and share.shape != x.shape:
            raise self._misshapen(share, call, index)

    def _misshapen(self, share: Tensor | ZeroPadded, call: Call, index: int) -> RuleError:
        return RuleError(
            f"rule {self.name!r} returned a share of shape {list(share.shape)} for operand "
            f"{index} of {call.op}, which has shape {list(call.inputs[index].shape)}"
        )

    @staticmethod
    def ensure(rule: Rule | Callable[..., Shares]) -> Rule:
        """Turn a plain function into a Rule (it is taken to read everything); what
        ``register_rule`` leaves of a decorated one is the rule that it registered."""
        rule = getattr(rule, "rule", rule)
        if isinstance(rule, Rule):
            return rule
        if not callable(rule):
            raise RuleError(
                f"a rule is a function (relevance, call) -> shares, not {type(rule).__name__}"
            )
        return Rule(rule, getattr(rule, "__name__", type(rule).__name__))


def _shrinks(share: Tensor, shape: Sequence[int]) -> bool:
    """Whether a share is one of a tensor of that shape that was broadcast."""
    if len(shape) > share.dim():
        return False
    ends = zip(reversed(share.shape), reversed(shape), strict=False)
    return all(mine == its or its == 1 for mine, its in ends)


def rule(
    *,
    family: str,
    reads: str = "inputs output",
    name: str = "",
    row_wise: bool = False,
    gradient: Form | None = None,
) -> Callable[[Callable[..., Shares]], Rule]:
    """Decorate a rule function: ``@rule(family="carry", reads="")``."""

    def wrap(function: Callable[..., Shares]) -> Rule:
        named = name or function.__name__
        read = frozenset(reads.split())
        return Rule(function, named, family, read, row_wise=row_wise, gradient=gradient)

    return wrap
