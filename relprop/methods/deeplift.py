"""DeepLIFT on a captured graph: which operations are affine, which take a rule, and which make it
undefined.

Captum's ``DeepLift`` hooks modules, so that a functional ReLU, a reused module, a product or a norm
silently keeps its plain gradient, and its softmax averages over the whole batch. Here every
operation between input and target is looked at, and one without a rule is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from relprop.errors import OptionError, message
from relprop.methods.rescale import ALONE, NORM, TOGETHER, Operation, Rule, moved
from relprop.rules import operations as ops
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import argument, name_of, tensor_inputs
from relprop.tracer.kernels import KERNELS
from relprop.tracer.program import Program, describe, is_floating, packet
from relprop.tracer.run import Values, execute, per_sample, template

Given = Callable[[fx.Node, Any], Any]

#: Affine in all floating operands together.
JOINTLY = frozenset(
    {
        *ops.MOVES,
        *ops.ADD,
        *ops.SUBTRACT,
        *ops.GATHERED_SUM,
        *ops.FILL,
        *ops.packets("rsub neg to _to_copy type_as lift_fresh_copy"),
    }
)
#: Affine in the first operand alone.
FIRST = frozenset({*ops.LINEAR, *ops.CONV, *ops.SHARE, *ops.SAMPLE, *ops.packets("batch_norm")})
#: Of these only the shape is read.
SHAPES = frozenset(
    ops.packets(
        "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros "
        "new_ones new_full new_empty sym_size"
    )
)


def rules_for(
    program: Program,
    leaves: Sequence[fx.Node],
    ends: Sequence[fx.Node],
    norms: Collection[fx.Node] = (),
) -> dict[fx.Node, Rule]:
    """The rule of every operation between ``leaves`` and ``ends`` that is not affine. Raises
    ``OptionError`` naming the first that has none.

    ``norms``: the last operation of each norm that the model writes out.
    """
    needed = _ancestors(ends)
    moving, found = set(leaves), dict[fx.Node, Rule]()
    for node in program.graph.nodes:
        if (
            node.op != "call_function"
            or node in moving
            or packet(node) in SHAPES
            or not any(i in moving for i in tensor_inputs(node))
        ):
            continue
        moving.add(node)
        if node in needed and _is_data(node):
            rule = _rule(node, moving)
            if rule is not None:
                found[node] = NORM if node in norms and rule in TOGETHER.values() else rule
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
    name, operands = name_of(node), [i for i in tensor_inputs(node) if i in moving]
    choices = [i for i in operands if not _is_data(i)]
    if choices:
        raise _undefined(
            node,
            (
                "which of its values it takes depends on the input, by "
                f"{name_of(choices[0]) or choices[0]}"
            ),
        )
    first = len(operands) == 1 and bool(node.args) and node.args[0] is operands[0]
    if packet(node) in JOINTLY or name == "getitem" or (packet(node) in FIRST and first):
        return None
    if first and name in ALONE and _plain(node):
        return ALONE[name]
    if name in TOGETHER and "rounding_mode" not in node.kwargs:
        if len(operands) == 1 and (first or "div" not in name):
            return None
        return TOGETHER[name]
    raise _undefined(node, "DeepLIFT has no rule for it")


def _plain(node: fx.Node) -> bool:
    """Whether the call is of the form its rule is for: a 2-norm, a pool with its sizes in a list, a
    softmax over one axis."""
    if name_of(node) == "linalg_vector_norm":
        return argument(node, 1, "ord", 2) == 2 and argument(node, 4, "dtype") is None
    if "softmax" in name_of(node):
        return len(node.args) > 1 and isinstance(node.args[1], int)
    return not name_of(node).startswith("max_pool") or isinstance(node.args[1], (list, tuple))


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
    norms: Collection[fx.Node] = (),
) -> tuple[Values, Values]:
    """The program's outputs at ``values``, with multipliers for derivatives, and at ``references``;
    both with the batch first, for each of ``leaves``."""
    rules = rules_for(program, leaves, ends, norms)
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

    return per_sample(
        one, *(values[operands[i]] for i in batched), *(reference[operands[i]] for i in batched)
    )  # type: ignore[no-any-return]
