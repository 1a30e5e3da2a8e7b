"""DeepLIFT on a captured graph: which operations are affine, which take a rule, and which make it
undefined.

Captum's ``DeepLift`` hooks modules, so that a functional ReLU, a reused module, a product or a norm
silently keeps its plain gradient, and its softmax averages over the whole batch. Here every
operation between input and target is looked at, and one without a rule is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import OptionError, first_line, message
from relprop.methods.base import refuse_branches
from relprop.methods.rescale import ALONE, TOGETHER, Operation, Rule, moved
from relprop.operations import FILLS, MOVES, Kind, argument, kind, name_of, packet
from relprop.operations.vocabulary import WrittenNorm
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import tensor_inputs
from relprop.tracer.kernels import KERNELS
from relprop.tracer.program import Program, describe, is_floating
from relprop.tracer.run import Values, execute, per_sample, template

Given = Callable[[fx.Node, Any], Any]

#: Affine in all floating operands together.
JOINTLY = (
    MOVES
    | FILLS
    | {Kind.SUM, Kind.AFFINE, Kind.CAST, Kind.IDENTITY, Kind.INDEXED_SUM, Kind.FOLD, Kind.OUTPUT}
)
#: Affine in the first operand alone.
FIRST = frozenset(
    {Kind.LINEAR, Kind.CONVOLUTION, Kind.TOTAL, Kind.SCAN, Kind.AVERAGE_POOL, Kind.RESAMPLE}
    | {Kind.SAMPLE, Kind.BATCH_NORM}
)


def rules_for(
    program: Program, leaves: Sequence[fx.Node], ends: Sequence[fx.Node]
) -> dict[fx.Node, Rule]:
    """The rule of every operation between ``leaves`` and ``ends`` that is not affine. Raises
    ``OptionError`` naming the first that has none."""
    refuse_branches(program, "deeplift")
    needed = _ancestors(ends)
    moving, found = set(leaves), dict[fx.Node, Rule]()
    for node in program.graph.nodes:
        if (
            node.op != "call_function"
            or node in moving
            or kind(node) in (Kind.FACTORY, Kind.RANDOM)
            or not any(i in moving for i in tensor_inputs(node))
        ):
            continue
        moving.add(node)
        if node in needed and _is_data(node):
            rule = _rule(node, moving)
            if rule is not None:
                found[node] = rule
    return found


def _ancestors(ends: Sequence[fx.Node]) -> set[fx.Node]:
    found, waiting = set[fx.Node](), list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += tensor_inputs(node)
    return found


def _is_data(node: fx.Node) -> bool:
    return is_floating(node) or isinstance(node.meta.get("val"), (tuple, list))


def _rule(node: fx.Node, moving: set[fx.Node]) -> Rule | None:
    """The rule of a node, ``None`` if it is affine in what depends on the input."""
    what, operands = kind(node), [i for i in tensor_inputs(node) if i in moving]
    choices = [i for i in operands if not _is_data(i)]
    if choices:
        chosen = choices[0]
        while kind(chosen) in MOVES and tensor_inputs(chosen)[0] in moving:
            chosen = tensor_inputs(chosen)[0]
        by = name_of(chosen) or chosen
        raise _undefined(node, f"which of its values it takes depends on the input, by {by}")
    first = len(operands) == 1 and bool(node.args) and node.args[0] is operands[0]
    if what in JOINTLY or (what in FIRST and first):
        return None
    alone = ALONE.get(packet(node)) or ALONE.get(type(node.target)) or ALONE.get(what)
    if first and alone is not None and _plain(node):
        return alone
    if what in TOGETHER:
        if (
            len(operands) == 1
            and what is not Kind.EXTREMUM
            and (first or what is not Kind.QUOTIENT)
        ):
            return None
        return TOGETHER[what]
    raise _undefined(node, "DeepLIFT has no rule for it")


def _plain(node: fx.Node) -> bool:
    """Whether the call is of the form its rule is for: a 2-norm, a norm of its whole operand, a
    pool with its sizes in a list."""
    if kind(node) is Kind.STATISTIC:
        return argument(node, "ord") == 2 and argument(node, "dtype") is None
    if isinstance(node.target, WrittenNorm):
        return node.target.centred is not None
    return kind(node) is not Kind.MAX_POOL or isinstance(node.args[1], (list, tuple))


def _undefined(node: fx.Node, why: str) -> OptionError:
    return OptionError(
        message(
            f"deeplift is not defined for this model: {node.target}: {why}",
            at=describe(node),
            then=[
                (
                    "method='integrated_gradients' is complete as well, and follows any "
                    "model that has a gradient"
                )
            ],
        )
    )


def rescaled(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    leaves: Sequence[fx.Node],
    ends: Sequence[fx.Node],
    values: Sequence[Tensor],
    references: Sequence[Tensor],
) -> tuple[Values, Values]:
    """The program's outputs at ``values``, with multipliers for derivatives, and at ``references``;
    both with the batch first, for each of ``leaves``."""
    rules = rules_for(program, leaves, ends)
    read = {i for node in rules for i in tensor_inputs(node)}
    outputs = set(program.output_nodes)
    at_reference = dict(zip(leaves, references, strict=True))
    moving: dict[fx.Node, Any] = dict(zip(leaves, values, strict=True))
    with torch.no_grad():
        reference = execute(
            program, model, inputs, {*read, *outputs}, leaves, lambda node, _: at_reference[node]
        )
    seen: dict[fx.Node, Any] = {}

    def visit(node: fx.Node, value: Any) -> Any:
        if node in moving:
            value = moving[node]
        elif node in rules:
            value = value.detach() + moved(
                _ruled(node, rules[node], seen, reference, program.dtype)
            )
        seen[node] = value
        return value

    with torch.enable_grad():
        found = execute(program, model, inputs, outputs, {*leaves, *rules, *read}, visit)
    return found, reference


def _ruled(
    node: fx.Node,
    rule: Rule,
    values: Mapping[fx.Node, Any],
    reference: Mapping[fx.Node, Any],
    dtype: torch.dtype | None,
) -> Tensor:
    """One node by its rule, sample by sample."""
    operands, rebuild = template(node, dtype)
    batched = [i for i, n in enumerate(operands) if n.meta["batched"]]

    def one(*given: Tensor) -> Tensor:
        ours, theirs = [values[n] for n in operands], [reference[n] for n in operands]
        for k, i in enumerate(batched):
            ours[i], theirs[i] = given[k], given[len(batched) + k]
        args, kwargs = rebuild(*ours)
        return rule(
            Operation(KERNELS.get(node.target, node.target), args, rebuild(*theirs)[0], kwargs)  # type: ignore[arg-type]
        )

    given = (*(values[operands[i]] for i in batched), *(reference[operands[i]] for i in batched))
    try:
        return per_sample(one, *given)  # type: ignore[no-any-return]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise _undefined(node, first_line(error)) from error
