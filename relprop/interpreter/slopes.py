"""The program's gradients at the explained inputs against autograd's through the user's own model,
for two samples at most, and what in a model makes them differ."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as _modules

from relprop.errors import RelpropError, first_line
from relprop.interpreter.forward import Kept, forward
from relprop.interpreter.model_gradients import (
    ModelGradients,
    Scalar,
    gradients_of_batch,
    mixture_of,
    model_gradients,
)
from relprop.tracer.binding import Inputs
from relprop.tracer.calls import Values
from relprop.tracer.facts import is_batched
from relprop.tracer.kernels import Formulas
from relprop.tracer.lengths import Shapes, sizes_of
from relprop.tracer.model_comparison import difference, largest, tolerance
from relprop.tracer.offloaded import is_offloaded
from relprop.tracer.program import Program, is_floating
from relprop.tracer.readout import Head
from relprop.tracer.shadow import thread_safe
from relprop.tracer.surroundings import undisturbed

#: Gradients round more than outputs do: how many times as far they may be from autograd's.
ROUNDING = 25
#: What of the largest gradient at any input is rounding at another, in units of its type's ε; and
#: what of an output is rounding, that a change of an input by its own size would make of it.
NOISE = 1e3
#: So many times the last digits of an input are drawn by chance where gradients differ, and so many
#: times as far as that moves them they may be apart.
DRAWS, TIMES = 4, 4
#: Of how many samples gradients are compared.
SAMPLES = 2


@dataclass(frozen=True)
class Slopes:
    """What came of the comparison. ``error``: the largest difference at ``worst``, relative to the
    largest gradient there, 0 where it is rounding; ``skipped``: why there was none; ``functions``:
    the classes with a backward of their own; ``stops``: where gradients stop, or stop and are
    followed here (``no_grad``); ``hooked``: the modules with backward hooks; ``sizes``: of the
    inputs."""

    error: float = 0.0
    worst: str = ""
    skipped: str = ""
    functions: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    hooked: tuple[str, ...] = ()
    sizes: Shapes = ()


def slopes(
    program: Program, model: nn.Module, inputs: Inputs, nodes: Collection[fx.Node]
) -> Slopes:
    """Compare the gradients of a fixed random mixture of the output ``nodes``."""
    program, model = replace(program, dtype=None), thread_safe(model)
    nodes = [n for n in nodes if is_floating(n)]
    if is_offloaded(model):
        return Slopes(skipped="a backward pass of the model would hold all offloaded weights")
    if not nodes or not program.leaves:
        return Slopes(skipped="no floating output depends on an explained input")
    some = inputs.select(0, 1 if program.input_specialised else min(inputs.batch, SAMPLES))
    scalar = mixture_of(nodes)

    def one_by_one() -> list[ModelGradients]:
        return _of_each(program, model, some, [scalar] * some.batch, at)

    try:
        mine, at, size = _ours(program, model, some, nodes)
        own = one_by_one()
    except torch.OutOfMemoryError:
        return Slopes(skipped="there is not enough memory for a backward pass of the model")
    except (RelpropError, RuntimeError, NotImplementedError) as error:
        return Slopes(skipped=f"a gradient cannot be taken: {first_line(error)}")
    seen, theirs = _seen(own), [o.gradients for o in own]
    if seen.skipped:
        return seen
    if (name := _overflows(mine, theirs)) is not None:
        skipped = f"the gradient at {name!r} is not finite"
        return replace(seen, skipped=skipped)
    mine = {n: g for n, g in mine.items() if _is_felt(g, [t[n] for t in theirs], at[n], size)}
    off, worst = _largest(program, mine, theirs) if mine else (0.0, "")
    if off:  # autograd's own may be wrong: a fused kernel's, or that of one sample alone
        for again in (
            lambda: [o.gradients for o in one_by_one()],
            lambda: gradients_of_batch(program, model, some, nodes) or theirs,
        ):
            # whatever the model says of a batch
            with contextlib.suppress(Exception), Formulas():
                off, worst = min((off, worst), _largest(program, mine, again()))  # type: ignore[no-untyped-call]
    if off and any(worst in o.again for o in own):
        skipped = f"the ids of {worst!r} are looked up several times, in parts or shifted"
        return replace(seen, skipped=skipped)
    moved = _moved(program, model, some, nodes, at, mine[worst], worst) if off else 0.0
    if off and off <= TIMES * moved:
        skipped = f"the last digits of {worst!r} move its gradient by {moved:.1e} of the largest"
        return replace(seen, skipped=skipped)
    return replace(seen, error=off, worst=worst, hooked=_hooked(model), sizes=sizes_of(program))


def confirmed(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    scalars: Sequence[Scalar],
    mine: Mapping[str, Tensor],
    at: Mapping[str, Tensor],
    size: float,
    heads: Sequence[Head] = (),
) -> Slopes | None:
    """Whether gradients that were taken anyway are the model's: ``mine``, at the leaves, of the
    ``scalars`` of the first samples, with the leaves' values ``at``, all batch first, and the
    largest value of any output; ``heads``: those of which only what is read need be made. ``None``
    where that cannot be said of other targets, too: they differ, the model stops or makes
    gradients, or has hooks, or they are 0 at more than half of an input's numbers."""
    model, some = thread_safe(model), inputs.select(0, len(scalars))
    try:
        own = _of_each(program, model, some, scalars, at, heads)
    except (RelpropError, RuntimeError, NotImplementedError):
        return None
    seen, theirs = _seen(own), [o.gradients for o in own]
    stopped = any(not is_followed(stop) for stop in seen.stops)
    if seen.skipped or seen.functions or stopped or _hooked(model):
        return None
    if _overflows(mine, theirs) is not None:
        return None
    for name, g in mine.items():
        sparse = 2 * int(g.count_nonzero()) < g.numel()
        if sparse or not _is_felt(g, [t[name] for t in theirs], at[name], size):
            return None
    return None if _largest(program, mine, theirs)[0] else replace(seen, sizes=sizes_of(program))


def is_followed(stop: str) -> bool:
    """Whether what stops a gradient is passed all the same."""
    return stop.startswith("no_grad")


def _of_each(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    scalars: Sequence[Scalar],
    at: Mapping[str, Tensor],
    heads: Sequence[Head] = (),
) -> list[ModelGradients]:
    """Autograd through the model for each sample alone, with its own scalar."""
    found = []
    for i, scalar in enumerate(scalars):
        alone, values = inputs.select(i, i + 1), {n: v[i] for n, v in at.items()}
        found.append(model_gradients(program, model, alone, scalar, values, heads))
    return found


def _seen(own: Sequence[ModelGradients]) -> Slopes:
    """What was seen in the model's runs."""
    functions = tuple(dict.fromkeys(f for o in own for f in o.functions))
    stops = tuple(dict.fromkeys(c for o in own for c in o.stops))
    skipped = next((o.skipped for o in own if o.skipped), "")
    return Slopes(skipped=skipped, functions=functions, stops=stops)


def _hooked(model: nn.Module) -> tuple[str, ...]:
    """The modules with backward hooks; every module, where there are hooks of all of them."""
    if _modules._global_backward_hooks or _modules._global_backward_pre_hooks:
        return ("every module",)
    named = model.named_modules()
    hooked = (n for n, m in named if m._backward_hooks or m._backward_pre_hooks)
    return tuple(name or "the model" for name in hooked)


def _ours(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    nodes: Collection[fx.Node],
    at: Mapping[str, Tensor] = MappingProxyType({}),
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """The program's gradients at the leaves, the leaves' values (those of ``at``, if they are
    given), batch first, and the largest value of any output."""
    leaves = dict(program.leaves)
    with undisturbed(model), torch.enable_grad():
        kept = Kept(set(nodes), dict.fromkeys(leaves.values()))
        known: Values = {leaves[n]: v.requires_grad_() for n, v in at.items()}
        done = forward(program, model, inputs, kept, known=known)
        done.watched |= known
        ends = {n: done.values[n] for n in nodes}
        every = {
            n: v if is_batched(n) else v.expand(inputs.batch, *v.shape) for n, v in ends.items()
        }
        scalars = mixture_of(nodes)(every, {})
        found = done.gradients(scalars, leaves.values(), again=False)
        size = max(largest(v.detach()) for v in ends.values())
    return (
        {name: found[n] for name, n in leaves.items()},
        {name: done.watched[n].detach() for name, n in leaves.items()},
        size,
    )


def _moved(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    nodes: Collection[fx.Node],
    at: Mapping[str, Tensor],
    mine: Tensor,
    name: str,
) -> float:
    """How far the program's gradient at the input ``name`` moves, relative to its largest, with the
    last digits of the leaves' values ``at``: far, where many choices between two are near their
    border (the signs before deep networks' ReLUs), or where all of it is rounding."""
    far = 0.0
    for draw in range(DRAWS):
        chance = torch.Generator().manual_seed(draw)
        nudged = {}
        for leaf, value in at.items():
            by = torch.randn(value.shape, generator=chance).to(value.device, value.dtype)
            nudged[leaf] = value * (1 + torch.finfo(value.dtype).eps * by)
        found, _, _ = _ours(program, model, inputs, nodes, nudged)
        error, scale = difference(found[name], mine)
        far = max(far, error / scale if scale else 0.0)
    return far


def _overflows(
    mine: Mapping[str, Tensor], theirs: Sequence[Mapping[str, Tensor | None]]
) -> str | None:
    """The input at which autograd's own gradient is not finite, or one of a half-precision type
    that ends near it."""
    for name, g in mine.items():
        own = [t[name] for t in theirs]
        short = torch.finfo(g.dtype).max < 1e5 and not bool(g.isfinite().all())
        if short or not all(t is None or bool(t.isfinite().all()) for t in own):
            return name
    return None


def _is_felt(mine: Tensor, theirs: list[Tensor | None], at: Tensor, size: float) -> bool:
    """Whether an output feels an input beyond rounding: the sum of its gradients, times the largest
    value of the input, is more than an output's ``size`` rounds by (of y/y it is not)."""
    allowed = min(NOISE * torch.finfo(mine.dtype).eps, 1e-3) * size
    own = torch.stack(
        [torch.zeros_like(at[0]) if t is None else t.reshape(at[0].shape) for t in theirs]
    )
    total = (mine.abs().reshape(at.shape) + own.abs()).flatten(1).sum(1, dtype=torch.float32)
    return not bool((total * (float(at.abs().max()) or 1.0) <= allowed).all())


def _largest(
    program: Program, mine: Mapping[str, Tensor], theirs: Sequence[Mapping[str, Tensor | None]]
) -> tuple[float, str]:
    """The largest difference beyond rounding, relative to the largest gradient at that input, and
    the input."""
    worst, at = 0.0, ""
    found = {
        name: torch.stack([t[name].reshape(g.shape[1:]) for t in theirs])  # type: ignore[union-attr]
        for name, g in mine.items()
    }
    overall = max(float(g.abs().max()) for g in (*mine.values(), *found.values()))
    for name, g in mine.items():
        error, scale = difference(g, found[name])
        scale = max(scale, float(g.abs().max()))
        noise = NOISE * torch.finfo(g.dtype).eps * overall
        allowed = min(0.25, ROUNDING * tolerance(program, g.dtype)) * scale + noise
        if not error <= allowed and error / scale > worst:
            worst, at = error / scale, name
    return worst, at
