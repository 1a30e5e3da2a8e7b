"""Operations without a rule: what is said of them, and which take no generic one."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx

from relprop.errors import UnknownOperation
from relprop.rules.ruleset import RuleSet
from relprop.tracer.program import describe


def no_rule(node: fx.Node, rules: RuleSet, why: str) -> UnknownOperation:
    """The refusal of an operation, with what to write."""
    op, preset = str(node.target), rules.name.split("+")[0].upper()
    return UnknownOperation(
        f"no relevance rule for {op}{why}",
        at=f"{describe(node)}, feeds {len(node.users)} operations",
        then=[
            f"rules = relprop.rules.{preset}.with_rule(torch.ops.{op}, relprop.rules.carry)  "
            " # one element in, one element out",
            "@relprop.register_rule(op)  def rule(relevance, call): return "
            "share_of_each_input   # docs/write-a-rule.md",
            "relprop.check(model, inputs)   # to see every operation of this model",
        ],
    )


def lacking(node: fx.Node) -> str:
    """Why Eq. 2 cannot be taken of the op, or "": no derivative, or one that ``torch.func`` cannot
    enter (ops made by ``torch.library``)."""
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace == "aten":
        return ""
    definition = torch._library.custom_ops.OPDEFS.get(operator._schema.name)
    if definition is not None and definition._backward_fn is not None:
        return "torch.func cannot enter its derivative"
    has = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operator.name())
    known = definition is None and (has("Autograd") or has("CompositeImplicitAutograd"))
    return "" if known else "PyTorch has no derivative of it"
