"""A linear layer's rule on rows that go to experts: for the rows of each expert by themselves, with
that expert's matrix, as if it were a layer of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relprop.operations import Operator
from relprop.operations.looking import SampleBySample, cannot_look
from relprop.operations.vocabulary import grouped_linear, rows_of
from relprop.rules.call import Call, Operand, Split, Total, as_given, sum_of
from relprop.rules.rule import Rule

#: Σ of what an argument was given (by its name), and Σ of what was lost (by its cause).
Sums = dict[tuple[str, str], Tensor]
SHARE, LOST = "share", "lost"
Tensors = dict[str, Tensor]


def for_experts(rule: Rule) -> Rule:
    """The rule of a linear layer for rows that go to experts."""
    if rule.hands_on_fields or rule.stops:
        return rule
    return replace(rule, function=PerExpert(rule), lone=None, large=None)


@dataclass(frozen=True)
class PerExpert:
    """``rule`` on ``routed_linear``: for each expert that has rows what it is on ``linear``."""

    rule: Rule

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        given = {o.argument: o.value for o in call.operands}
        experts = given.pop("experts")
        if call.output is not None:
            given["output"] = call.output
        made = self._of_copies if cannot_look(relevance) else self._looking
        share, sums = made(relevance, experts, given, call.operands)
        booked = (sums.get((SHARE, o.argument)) for o in call.operands[1:])
        lost = {cause: amount for (what, cause), amount in sums.items() if what == LOST}
        return Split((share, *(None if s is None else Total(s) for s in booked)), lost)

    def _looking(
        self, relevance: Tensor, experts: Tensor, given: Tensors, operands: tuple[Operand, ...]
    ) -> tuple[Tensor, Sums]:
        """The share of the rows, and the sums, expert by expert."""
        keys: list[tuple[str, str]] = []

        def split(relevance: Tensor, experts: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            here = dict(zip(given, tensors, strict=True))
            share, sums = torch.zeros_like(here["input"]), Sums()
            for expert, rows in rows_of(experts, len(here["weight"])):
                own = {n: t[rows if n in ("input", "output") else expert] for n, t in here.items()}
                part = self._split(torch.ops.aten.linear.default, relevance[rows], own, operands)
                share[rows] = part.shares[0]  # type: ignore[assignment]
                for key, amount in _sums(part, operands):
                    sums[key] = sums[key] + amount if key in sums else amount
            keys[:] = sums
            return share, *sums.values()

        share, *amounts = SampleBySample.apply(split, relevance, experts, *given.values())
        return share, dict(zip(keys, amounts, strict=True))

    def _of_copies(
        self, relevance: Tensor, experts: Tensor, given: Tensors, operands: tuple[Operand, ...]
    ) -> tuple[Tensor, Sums]:
        """The same with a copy of its expert's matrix for each row."""
        rows = {n: given[n].unsqueeze(-2) for n in ("input", "output") if n in given}
        own = {n: t[experts] for n, t in given.items() if n not in rows}
        if "bias" in own:
            own["bias"] = own["bias"].unsqueeze(-2)
        part = self._split(grouped_linear, relevance.unsqueeze(-2), rows | own, operands)
        share = part.shares[0]
        assert isinstance(share, Tensor)
        return share.squeeze(-2), dict(_sums(part, operands))

    def _split(
        self, op: Operator, relevance: Tensor, own: Tensors, operands: tuple[Operand, ...]
    ) -> Split:
        """What the rule makes of the call of a layer."""
        parts = tuple(
            replace(o, value=own[o.argument]) for o in operands if o.argument != "experts"
        )
        return self.rule(relevance, Call(op, parts, own.get("output"), as_given, op))  # type: ignore[arg-type]


def _sums(part: Split, operands: tuple[Operand, ...]) -> Iterator[tuple[tuple[str, str], Tensor]]:
    """What the parameters were given, and what was lost."""
    for operand, share in zip(operands[1:], part.shares[1:], strict=False):
        if share is not None:
            yield (SHARE, operand.argument), sum_of(share)
    for cause, amount in part.lost.items():
        yield (LOST, cause), amount
