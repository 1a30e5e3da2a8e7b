"""One run of a method that works at the input: forward, then the gradient or the relevance of every
pixel, feature or embedding. No roll-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from relprop.api.naming import names_of
from relprop.api.run import Draft, Request, Run, described, facts_of, reached_inputs, relevance_of
from relprop.api.session import Session
from relprop.errors import OptionError, RelpropError, TargetError, message
from relprop.explanation import Explanation, TokenScores
from relprop.methods import InputValues, positions, windows
from relprop.methods.deeplift import rescaled
from relprop.numerics import at_least_float32
from relprop.rollup import Stream
from relprop.targets import Start, possible_starts
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import val
from relprop.tracer.run import execute

NO_RULES = "none"


def draft_attribution(session: Session, targets: list[Any], request: Request) -> Draft:
    """What a method at the input needs. Raises ``OptionError`` for what only attention has."""
    program = session.program
    if request.keep - {"input"}:
        raise OptionError(
            f"keep={sorted(request.keep - {'input'})} is for methods over attention; "
            f"method {request.method.name!r} has 'input' to keep"
        )
    starts = tuple(n for n in possible_starts(program, targets) if n in session.flow.members)
    reached = reached_inputs(session, starts)
    if unread := [name for name in session.chosen if name not in reached]:
        raise TargetError(f"the target does not depend on input {unread[0]!r}")
    leaves = tuple(reached.values())
    plan = session.plan(starts, frozenset(leaves)) if "relevance" in request.needs else None
    keep = {*leaves, *(plan.keep if plan is not None else ())}
    return Draft(
        session,
        request,
        plan=plan,
        keep=keep,
        watch=leaves if "gradient" in request.needs else (),
        facts=facts_of(session, plan, request),
    )


def attribute_start(
    run: Run, target: Any, start: Start, gradients: Mapping[fx.Node, Tensor]
) -> Explanation:
    """What the run's method says of a target. ``gradients``: ∂y_t/∂ at the run's watched nodes, for
    a method that needs them.

    ``scores`` are the method's numbers summed over the axes that are no positions; nothing is
    rolled up, so ``row`` is ``scores`` and ``identity`` 0.
    """
    session, method = run.session, run.request.method
    leaves = reached_inputs(session, tuple(start.field) or run.program.output_nodes)
    with torch.no_grad():
        walk, ledger = relevance_of(run, start)
    at = InputValues(
        {name: tidied(run.forward.values[leaf].detach(), leaf) for name, leaf in leaves.items()},
        {
            name: tidied(_wide(gradients[leaf]), leaf)
            for name, leaf in leaves.items()
            if leaf in gradients
        },
        {
            name: tidied(
                walk.found.get(leaf, torch.zeros_like(_wide(run.forward.values[leaf]))), leaf
            )
            for name, leaf in leaves.items()
            if run.plan is not None
        },
        output_from(run, target, start, tuple(leaves.values())),
        lambda name, ids: _embed(run, name, ids),
        _contributions_from(run, target, start, leaves),
        {name: _axes(run, leaf) for name, leaf in leaves.items()},
        {name: windows(run.program, leaf) for name, leaf in leaves.items()},
    )
    found = method.function(at, **run.request.options)
    labels, probability = names_of(run, start)
    return Explanation(
        {
            name: _token_scores(
                run, Stream(name, leaf, leaf, positions(run.program, leaf)), found[name]
            )
            for name, leaf in leaves.items()
        },
        start.label,
        start.scalars.detach(),
        method.name,
        NO_RULES if run.plan is None else session.rules.name,
        ledger,
        facts=run.facts,
        labels=labels,
        probability=probability,
    )


def attributed_scalar(
    run: Run, target: Any, leaf: fx.Node
) -> tuple[tuple[Any, ...], Callable[[Tensor], Tensor]]:
    """The target's label per sample, and y_t of every sample as a function of what is at ``leaf``.
    Raises ``TargetError`` if it does not depend on it."""
    start = run.start(target)
    if (
        leaf
        not in reached_inputs(run.session, tuple(start.field) or run.program.output_nodes).values()
    ):
        raise TargetError("the target does not depend on the input that is to move")
    return start.label, output_from(run, target, start, (leaf,))


def tidied(value: Tensor, leaf: fx.Node) -> Tensor:
    """Without the leading 1 of a single sample's call; one number per sample as (batch, 1)."""
    if val(leaf).dim() < 2:
        return value.reshape(len(value), -1)
    return value[:, 0] if val(leaf).shape[0] == 1 else value


def _wide(value: Tensor) -> Tensor:
    return value.detach().to(at_least_float32(value.dtype))


def _axes(run: Run, leaf: fx.Node) -> tuple[int, ...]:
    """The axes of the leaf's tidied value, batch first, that are positions."""
    return tuple(i + (val(leaf).shape[:1] != (1,)) for i in positions(run.program, leaf))


def _in_place(tensors: Sequence[Tensor], leaves: Sequence[fx.Node]) -> list[Tensor]:
    """Tidied values as the graph takes them."""
    return [t.reshape(len(t), *val(leaf).shape) for leaf, t in zip(leaves, tensors, strict=True)]


def _scalar(run: Run, target: Any, start: Start, values: Mapping[fx.Node, Tensor]) -> Tensor:
    """y_t of every sample from the outputs' values, for the very index that ``start`` names, also
    where the prediction is another."""
    if callable(target) and not isinstance(target, Tensor):
        return torch.stack(
            [
                target(
                    run.program.outputs([values[n][i] for n in run.program.output_nodes])
                ).reshape(())
                for i in range(run.inputs.batch)
            ]
        )
    parts = [
        term.coefficient * (values[n] * seed).flatten(1).sum(1)
        for term in start.terms
        for n, seed in term.seeds.items()
    ]
    return torch.stack(parts).sum(0)


def output_from(
    run: Run, target: Any, start: Start, leaves: tuple[fx.Node, ...]
) -> Callable[..., Tensor]:
    """y_t of every sample as a function of the explained inputs."""

    def y(*tensors: Tensor) -> Tensor:
        if any(t.requires_grad for t in tensors):
            run.differentiates()
        given = dict(zip(leaves, _in_place(tensors, leaves), strict=True))
        values = execute(
            run.program,
            run.session.model,
            run.inputs,
            set(run.program.output_nodes),
            leaves,
            lambda node, _: given[node],
        )
        untouched = [
            t.flatten(1)[:, :0].sum(1) for t in tensors
        ]  # 0, with a derivative (0) at every input
        return torch.stack([_scalar(run, target, start, values), *untouched]).sum(0)

    return y


def _contributions_from(
    run: Run, target: Any, start: Start, leaves: Mapping[str, fx.Node]
) -> Callable[..., tuple[tuple[Tensor, ...], Tensor, Tensor]]:
    """DeepLIFT's multipliers times x − x′, y_t(x) and y_t(x′), as a function of the references x′.
    Raises ``OptionError`` where they are not defined."""
    nodes, ends = tuple(leaves.values()), tuple(start.field) or run.program.output_nodes

    def contributions(*references: Tensor) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        program = run.program
        if any(
            t.dtype.itemsize < 4 for t in references
        ):  # a quotient of differences in half precision is noise
            program = replace(program, dtype=torch.float32, memo={})
        values = [_wide(run.forward.values[leaf]).requires_grad_() for leaf in nodes]
        before = [_wide(t) for t in _in_place(references, nodes)]
        found, there = rescaled(program, run.session.model, run.inputs, nodes, ends, values, before)
        with torch.enable_grad():
            y, y0 = _scalar(run, target, start, found), _scalar(run, target, start, there).detach()
            total = y.sum()
        outputs = [n for n in run.program.output_nodes if found[n].requires_grad]
        if callable(target):
            _refuse_nonlinear(
                torch.autograd.grad(
                    total, [found[n] for n in outputs], retain_graph=True, allow_unused=True
                ),
                outputs,
                found,
                there,
                y - y0,
            )
        multipliers = torch.autograd.grad(total, values, allow_unused=True, materialize_grads=True)
        return (
            tuple(
                tidied(m * (x.detach() - x0), leaf)
                for m, x, x0, leaf in zip(multipliers, values, before, nodes, strict=True)
            ),
            y.detach(),
            y0,
        )

    return contributions


def _refuse_nonlinear(
    slopes: Sequence[Tensor | None],
    outputs: Sequence[fx.Node],
    found: Mapping[fx.Node, Tensor],
    there: Mapping[fx.Node, Tensor],
    difference: Tensor,
) -> None:
    """A callable must be affine in the outputs: its own operations have no multipliers."""
    parts = [
        (s * (found[n] - there[n])).detach().flatten(1)
        for s, n in zip(slopes, outputs, strict=True)
        if s is not None
    ]
    gap = (sum(p.sum(1) for p in parts) - difference.detach()).abs()
    if bool((gap > 1e-4 * (sum(p.abs().sum(1) for p in parts) + difference.detach().abs())).any()):
        raise OptionError(
            message(
                (
                    "deeplift is not defined for this target: the callable is not linear in "
                    "the model's output"
                ),
                then=[
                    "name an element of the output, or a sum or difference of some",
                    "method='integrated_gradients' follows any callable",
                ],
            )
        )


def _embed(run: Run, name: str, ids: Tensor) -> Tensor:
    """The value at the leaf of input ``name`` if it were ``ids``. Raises ``OptionError`` if the
    input is not one of ids of that shape."""
    at = run.inputs.names.index(name)
    given = run.inputs.tensors[at]
    if given.is_floating_point():
        raise OptionError(f"baseline for {name!r} holds integers; the input is floating")
    try:
        replaced = ids.to(given.device, given.dtype).expand(given.shape)
    except RuntimeError:
        raise OptionError(
            f"baseline for {name!r} has shape {list(ids.shape)}; the input is "
            f"{list(given.shape)}, batch first"
        ) from None
    tensors = tuple(replaced if i == at else t for i, t in enumerate(run.inputs.tensors))
    leaf = run.program.leaves[name]
    inputs = Inputs(
        run.inputs.names,
        tensors,
        run.inputs.rebuild,
        run.inputs.batched,
        run.inputs.batch,
        run.inputs.static,
    )
    return tidied(execute(run.program, run.session.model, inputs, {leaf})[leaf], leaf)


def _token_scores(run: Run, stream: Stream, attribution: Tensor) -> TokenScores:
    """One input's scores, from its attribution (batch, *one sample's shape): summed over what are
    no positions."""
    whole = attribution.detach().reshape(run.inputs.batch, *val(stream.leaf).shape)
    features = [i + 1 for i in range(whole.dim() - 1) if i not in stream.token_axes]
    scores = (whole.sum(features) if features else whole).reshape(run.inputs.batch, -1)
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).any(1).sum())
        raise RelpropError(
            f"the scores of {bad} samples are not finite: they overflowed; "
            "precision='float64' may help"
        )
    kept = attribution.detach() if "input" in run.request.keep else None
    return TokenScores(
        stream.name,
        scores,
        scores,
        torch.zeros_like(scores),
        **described(run, stream.name, run.layout(stream)),
        input=kept,
    )
