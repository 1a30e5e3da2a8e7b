"""A norm as a linear map: its deviation is a constant, and LRP-ε applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relprop.numerics import Divide
from relprop.operations import Kind, Operator, Value, kind, packet
from relprop.operations.vocabulary import WrittenNorm
from relprop.rules.call import Call, Operand, Split
from relprop.rules.families import ZERO, carry, lost_by_division
from relprop.rules.gradient_form import carried

aten = torch.ops.aten


@dataclass(frozen=True)
class Norm:
    """A norm whose deviation is held constant: y = γ·(x − μ(x))/σ + β is then linear in x, and
    LRP-ε applies; β absorbs its share.

    R_j = x_j·(t_j − mean(t)) with t = (γ/σ)·R/(y + ε·sgn y), the mean over what is normalised
    together (Achtibat et al. 2024, 3.3.3: centring and scaling are linear, dividing by σ(x) is the
    identity, Prop. 3.4; Ali et al. 2022, 3.2). With running statistics the norm is affine as it
    stands, and the running mean absorbs its share, too.
    """

    divide: Divide

    def __call__(self, relevance: Tensor, call: Call) -> Split:
        if not _is_linear(call):
            return Split(carry.function(relevance, call))
        x, s = call.inputs[0], self.divide(relevance, call.output)
        given = {o.argument: _beside(o.value, x, call.op) for o in call.operands[1:] if o.argument}
        t = s * given["weight"] if "weight" in given else s
        pieces = {"bias": s * given["bias"]} if "bias" in given else {}
        if "running_var" in given and _by_running_statistics(call):
            t = t * (given["running_var"] + call.argument(7, "eps")).rsqrt()
            pieces["running_mean"] = -t * given["running_mean"]
        elif isinstance(call.op, WrittenNorm):
            t = t * call.op.scale(x, *(o.value for o in call.operands[1:] if not o.argument))
            t = call.op.centre(t)
        else:
            t = _normalised_back(t, call)

        def absorbed(operand: Operand) -> Tensor | None:
            if (piece := pieces.get(operand.argument)) is None:
                return None
            return piece.sum_to_size(given[operand.argument].shape).reshape(operand.value.shape)

        shares = (x * t, *map(absorbed, call.operands[1:]))
        return Split(shares, lost_by_division(relevance, s, call.output, ZERO))

    def form(self, call: Call) -> Value:
        """The norm, as a function of x with the deviation that it has."""
        if not _is_linear(call):
            return carried(call)
        if _by_running_statistics(call):
            return call.apply(*call.inputs)
        x, others = call.inputs[0], call.operands[1:]
        if isinstance(call.op, WrittenNorm):
            beside = (o.value for o in others if not o.argument)
            y = call.op.centre(x) * call.op.scale(x.detach(), *beside)
        else:
            rows, eps = _together(call)
            t = x.reshape(rows)
            inverse = torch.native_layer_norm(t.detach(), rows[-1:], None, None, eps)[2]
            y = ((t - t.mean(-1, keepdim=True)) * inverse).reshape(x.shape)
        given = {o.argument: _beside(o.value, x, call.op) for o in others if o.argument}
        y = y * given["weight"] if "weight" in given else y
        return y + given["bias"] if "bias" in given else y


def _is_linear(call: Call) -> bool:
    """Whether a call is a norm of its first operand; a function of whole rows that is no norm (a
    share of their sum) is one factor for each number, and carries."""
    written = isinstance(call.op, WrittenNorm)
    return call.activations == (0,) and not (written and call.op.centred is None)


def _by_running_statistics(call: Call) -> bool:
    if kind(call.op) is Kind.BATCH_NORM:
        return True
    return packet(call.op) is aten.instance_norm and not call.argument(5, "use_input_stats")


def _normalised_back(t: Tensor, call: Call) -> Tensor:
    """(t − mean(t))/σ over what is normalised together."""
    x, (rows, eps) = call.inputs[0], _together(call)
    spread = x.reshape(rows).var(-1, unbiased=False, keepdim=True) + eps
    t = t.reshape(rows)
    centred: Tensor = (t - t.mean(-1, keepdim=True)) * spread.rsqrt()
    return centred.reshape(x.shape)


def _together(call: Call) -> tuple[list[int], float]:
    """The shape in which what is normalised together is the last axis (a layer's last axes, a group
    of channels), and ε."""
    x, op = call.inputs[0], packet(call.op)
    first: Sequence[int]
    if op is aten.layer_norm:
        first, eps = x.shape[: -len(call.argument(1, "normalized_shape"))], (4, "eps", 1e-5)
    elif op is aten.group_norm:
        first, eps = (len(x), call.argument(1, "num_groups")), (4, "eps", 1e-5)
    else:
        first, eps = x.shape[:2], (7, "eps", 1e-5)
    return [*first, x.numel() // math.prod(first)], call.argument(*eps)


def _beside(parameter: Tensor, x: Tensor, op: Operator) -> Tensor:
    """A norm's parameter as it is broadcast against ``x``: in batch, group and instance norms one
    number per channel (axis 1)."""
    as_it_is = isinstance(op, WrittenNorm) or packet(op) is aten.layer_norm
    return parameter if as_it_is else parameter.reshape(-1, *[1] * (x.dim() - 2))
