"""The one table of operations: what each *is*. Rules, axes, labels, attention sites, merges, gates,
DeepLIFT and targets all ask it, so that they cannot disagree. Knows no graph's meaning, no rule.

>>> import torch
>>> from relprop.operations import Kind, of
>>> of(torch.ops.aten.gelu.default).kind is Kind.FUNCTION
True
>>> of(torch.ops.aten.max.other).kind, of(torch.ops.aten.max.dim).kind
(<Kind.EXTREMUM: 'the larger or the smaller of two operands'>, <Kind.PICK: 'values picked along an axis by their size, with their places'>)
"""  # noqa: E501

from relprop.operations.kinds import ELEMENTWISE, FILLS, MOVES, STOPS, Kind
from relprop.operations.lookup import (
    Args,
    Kwargs,
    Operator,
    Value,
    argument,
    function_of,
    integers,
    is_call,
    is_inplace,
    kind,
    listed,
    name_of,
    of,
    operand,
    out_of_place,
    packet,
)
from relprop.operations.table import Operation

__all__ = [
    "ELEMENTWISE",
    "FILLS",
    "MOVES",
    "STOPS",
    "Args",
    "Kind",
    "Kwargs",
    "Operation",
    "Operator",
    "Value",
    "argument",
    "function_of",
    "integers",
    "is_call",
    "is_inplace",
    "kind",
    "listed",
    "name_of",
    "of",
    "operand",
    "out_of_place",
    "packet",
]
