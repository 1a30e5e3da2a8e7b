"""DeepLIFT on a captured graph: which operations are affine, which take a rule, and which make it
undefined.

Captum's ``DeepLift`` hooks modules, so that a functional ReLU, a reused module, a product or a norm
silently keeps its plain gradient, and its softmax averages over the whole batch. Here every
operation between input and target is looked at, and one without a rule is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, fx

from relprop.errors import OptionError, first_line
from relprop.methods.branches import refuse_branches
from relprop.methods.inputs import Baseline, baselines, sums, warn_of_gaps
from relprop.methods.rescale import ALONE, TOGETHER, Operation, Rule, moved
from relprop.operations import FILLS, MOVES, Kind, Value, argument, kind, name_of, packet
from relprop.operations.vocabulary import WrittenNorm
from relprop.runner.input_study import InputStudy
from relprop.runner.values import wide, with_leading_one, without_leading_one
from relprop.tracer.calls import Values, per_sample, template
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import is_batched
from relprop.tracer.kernels import KERNELS
from relprop.tracer.program import Program, describe, is_floating
from relprop.tracer.run import execute

ROUNDING = 0.01

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


def deeplift(at: InputStudy, *, baseline: Baseline = None) -> Mapping[str, Tensor]:
    """m ⊙ (x − x′), m DeepLIFT's multipliers by the Rescale rule (Shrikumar et al. 2017,
    3.5.1–3.5.2). Signed.

    Complete: it sums to y_t(x) − y_t(x′), over all explained inputs together. Two forward passes
    and one backward pass per target. ``baseline`` as in ``integrated_gradients``. Products of two
    activations, and what is made of them (attention, norms), take the rules of
    ``relprop.methods.rescale``. A model with an operation that has no rule, and a callable target
    that is not linear, are refused (``OptionError``).
    """
    found, y, y0 = contributions(at, baselines(at, baseline))
    _warn_of_rounding(found, y, y0)
    return dict(zip(at.values, found, strict=True))


def _warn_of_rounding(found: tuple[Tensor, ...], y: Tensor, y0: Tensor) -> None:
    """The rules are complete; what is missing is rounding, and said where it is more than that of
    y_t itself."""
    difference = y.double() - y0.double()
    own = 16 * torch.finfo(y.dtype).eps * torch.maximum(y.abs(), y0.abs())
    summed, size = sums(found)
    gap, scale = (summed - difference).abs(), size + difference.abs()
    bad = (gap > ROUNDING * scale) & (gap > own)
    words = "deeplift of {many} is off by rounding: that of sample {worst} sums"
    warn_of_gaps(summed, difference, gap / scale, bad, words, ["precision='float64'"])


def contributions(
    at: InputStudy, references: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """The multipliers times x − x′ for each input, y_t(x) and y_t(x′). Raises ``OptionError`` where
    they are not defined."""
    leaves = tuple(at.leaves.values())
    values = [wide(at.value(leaf)).detach().requires_grad_() for leaf in leaves]
    before = [wide(with_leading_one(t, n)) for t, n in zip(references, leaves, strict=True)]
    found, there = rescaled(at, values, before)
    with torch.enable_grad():
        y, y0 = at.scalar(found), at.scalar(there).detach()
        total = y.sum()
    if callable(at.target) or not at.start.is_sum:
        what = "the callable" if callable(at.target) else "a log-probability"
        _refuse_nonlinear(total, found, there, y - y0, what)
    slopes = torch.autograd.grad(total, values, allow_unused=True, materialize_grads=True)
    parts = [m * (x.detach() - x0) for m, x, x0 in zip(slopes, values, before, strict=True)]
    tidy = tuple(without_leading_one(p, leaf) for p, leaf in zip(parts, leaves, strict=True))
    return tidy, y.detach(), y0


def _refuse_nonlinear(
    total: Tensor, found: Values, there: Values, difference: Tensor, what: str
) -> None:
    """A target must be affine in the outputs: its own operations have no multipliers."""
    outputs = [n for n in there if n in found and found[n].requires_grad]
    slopes = torch.autograd.grad(
        total, [found[n] for n in outputs], retain_graph=True, allow_unused=True
    )
    parts = [
        (s * (found[n] - there[n])).detach().flatten(1)
        for s, n in zip(slopes, outputs, strict=True)
        if s is not None
    ]
    gap = (sum(p.sum(1) for p in parts) - difference.detach()).abs()
    size = sum(p.abs().sum(1) for p in parts) + difference.detach().abs()
    if bool((gap > 1e-4 * size).any()):
        raise OptionError(
            f"deeplift is not defined for this target: {what} is not linear in the model's output",
            then=[
                "name an element of the output, or a sum or difference of some",
                "method='integrated_gradients' follows any callable",
            ],
        )


def rules_for(
    program: Program, leaves: Sequence[fx.Node], ends: Sequence[fx.Node]
) -> dict[fx.Node, Rule]:
    """The rule of every operation between ``leaves`` and ``ends`` that is not affine. Raises
    ``OptionError`` naming the first that has none."""
    refuse_branches(program, "deeplift")
    needed = set(ends)
    for node in reversed(program.graph.nodes):
        if node in needed:
            needed.update(tensor_inputs(node))
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


def _is_data(node: fx.Node) -> bool:
    return is_floating(node) or isinstance(val(node), (tuple, list))


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
        lone = len(operands) == 1 and what is not Kind.EXTREMUM
        return None if lone and (first or what is not Kind.QUOTIENT) else TOGETHER[what]
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
        f"deeplift is not defined for this model: {node.target}: {why}",
        at=describe(node),
        then=[
            (
                "method='integrated_gradients' is complete as well, and follows any "
                "model that has a gradient"
            )
        ],
    )


def rescaled(
    at: InputStudy, values: Sequence[Tensor], references: Sequence[Tensor]
) -> tuple[Values, Values]:
    """The program's outputs at ``values``, with multipliers for derivatives, and at ``references``;
    both with the batch first, for each explained input."""
    program, leaves = at.program, tuple(at.leaves.values())
    if any(t.dtype.itemsize < 4 for t in at.values.values()):
        # a quotient of differences in half precision is noise
        program = replace(program, dtype=torch.float32)
    outputs = program.ends
    rules = rules_for(program, leaves, tuple(at.start.field) or outputs)
    read = {i for node in rules for i in tensor_inputs(node)}
    run = partial(execute, program, at.session.model, at.run.inputs)
    given: Values = dict(zip(leaves, references, strict=True))
    with torch.no_grad():
        reference = run({*read, *outputs}, known=given)
    moving: Values = dict(zip(leaves, values, strict=True))
    seen = dict(moving)

    def visit(node: fx.Node, value: Value) -> Value:
        if node in rules:
            multiplied = _ruled(node, rules[node], seen, reference, program.dtype)
            value = value.detach() + moved(multiplied)
        seen[node] = value
        return value

    with torch.enable_grad():
        found = run(set(outputs), {*rules, *read}, visit, known=moving)
    return found, reference


def _ruled(
    node: fx.Node,
    rule: Rule,
    values: Values,
    reference: Values,
    dtype: torch.dtype | None,
) -> Tensor:
    """One node by its rule, sample by sample."""
    operands, rebuild = template(node, dtype)
    batched = [i for i, n in enumerate(operands) if is_batched(n)]

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
