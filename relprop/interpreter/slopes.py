"""The program's gradients at the explained inputs against autograd's through the user's own model,
for a batch of two, and what in a model makes them differ."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import autograd_function
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from relprop.errors import RelpropError, first_line
from relprop.interpreter.forward import forward
from relprop.tracer.binding import Inputs, flatten_output
from relprop.tracer.facts import is_batched
from relprop.tracer.judge import difference, tolerance
from relprop.tracer.kernels import CALLS, Formulas
from relprop.tracer.program import Program, is_floating
from relprop.tracer.recorded import frame_source
from relprop.tracer.shadow import beside_others
from relprop.tracer.side_effects import taken_back
from relprop.tracer.surroundings import as_python, undisturbed

#: Gradients round more than outputs do: how many times as far they may be from autograd's.
ROUNDING = 25
#: What of the largest gradient at any input is rounding at another, in units of its type's ε; and
#: what of an output is rounding, that a change of an input by its own size would make of it.
NOISE = 1e3


@dataclass(frozen=True)
class Slopes:
    """What came of the comparison. ``error``: the largest difference at ``worst``, relative to the
    largest gradient there, 0 where it is rounding; ``skipped``: why there was none; ``functions``:
    the classes with a backward of their own; ``cuts``: where gradients stop, or stop and are
    followed here (``no_grad``)."""

    error: float = 0.0
    worst: str = ""
    skipped: str = ""
    functions: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()


@dataclass
class _Own:
    """Autograd through the model for one sample: gradients by input, and what was seen; ``again``:
    the inputs whose ids it looks up in parts, or shifted, too."""

    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    functions: dict[str, None] = field(default_factory=dict)
    cuts: dict[str, None] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    skipped: str = ""


def slopes(
    program: Program, model: nn.Module, inputs: Inputs, nodes: Collection[fx.Node]
) -> Slopes:
    """Compare the gradients of a fixed random mixture of the output ``nodes``."""
    program, model = replace(program, dtype=None), beside_others(model)
    nodes = [n for n in nodes if is_floating(n)]
    if not nodes or not program.leaves:
        return Slopes(skipped="no floating output depends on an explained input")
    some = inputs.select(0, 1) if program.input_specialised else _two(inputs)
    try:
        mine, at, size = _ours(program, model, some, nodes)
        own = [
            _theirs(program, model, some.select(i, i + 1), nodes, at, i) for i in range(some.batch)
        ]
    except torch.OutOfMemoryError:
        return Slopes(skipped="there is not enough memory for a backward pass of the model")
    except (RelpropError, RuntimeError, NotImplementedError) as error:
        return Slopes(skipped=f"a gradient cannot be taken: {first_line(error)}")
    functions = tuple(dict.fromkeys(f for o in own for f in o.functions))
    cuts = tuple(dict.fromkeys(c for o in own for c in o.cuts))
    if skipped := next((o.skipped for o in own if o.skipped), ""):
        return Slopes(skipped=skipped, functions=functions, cuts=cuts)
    theirs = [o.gradients for o in own]
    if (name := _overflows(mine, theirs)) is not None:
        skipped = f"the gradient at {name!r} is not finite"
        return Slopes(skipped=skipped, functions=functions, cuts=cuts)
    mine = {n: g for n, g in mine.items() if _is_felt(g, [t[n] for t in theirs], at[n], size)}
    off, worst = _largest(program, mine, theirs) if mine else (0.0, "")
    if off:  # it may be autograd's own: another kernel for a batch than for one sample
        with contextlib.suppress(Exception):  # whatever the model says of a batch
            together = _together(program, model, some, nodes)
            if together is not None:
                off, worst = min((off, worst), _largest(program, mine, together))
    if off and any(worst in o.again for o in own):
        skipped = f"the ids of {worst!r} are looked up several times, in parts or shifted"
        return Slopes(skipped=skipped, functions=functions, cuts=cuts)
    return Slopes(off, worst, "", functions, cuts)


def _two(inputs: Inputs) -> Inputs:
    """The first two samples, or the only one twice."""
    if inputs.batch > 1:
        return inputs.select(0, 2)
    tensors = tuple(
        torch.cat([t, t]) if b else t for t, b in zip(inputs.tensors, inputs.batched, strict=True)
    )
    return replace(inputs, tensors=tensors, batch=2)


def _mixture(value: Tensor) -> Tensor:
    """A sum of the elements of one sample's output, with weights of both signs that its size alone
    decides."""
    weights = torch.randn(value.numel(), generator=torch.Generator().manual_seed(0))
    finite = torch.where(value.isfinite(), value, 0.0).reshape(-1)
    return (finite * weights.to(value.device, value.dtype)).sum()


def _ours(
    program: Program, model: nn.Module, inputs: Inputs, nodes: Collection[fx.Node]
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """The program's gradients at the leaves, the leaves' values, batch first, and the largest value
    of any output."""
    leaves = dict(program.leaves)
    with undisturbed(model), torch.enable_grad():
        done = forward(program, model, inputs, set(nodes), dict.fromkeys(leaves.values()))
        scalars = torch.stack(
            [
                torch.stack(
                    [
                        _mixture(done.values[n][i] if is_batched(n) else done.values[n])
                        for n in nodes
                    ]
                ).sum()
                for i in range(inputs.batch)
            ]
        )
        found = done.gradients(scalars, leaves.values(), again=False)
        finite = [done.values[n].detach().nan_to_num(0.0, 0.0, 0.0).abs().max() for n in nodes]
    return (
        {name: found[n] for name, n in leaves.items()},
        {name: done.watched[n].detach() for name, n in leaves.items()},
        max(float(m) for m in finite),
    )


class _Watch(TorchFunctionMode):
    """The model's own run: the values of leaves that are not inputs become leaves of autograd,
    parts under ``no_grad`` are differentiated, and what stops a gradient is written down."""

    def __init__(self, wanted: Mapping[str, Tensor], own: _Own) -> None:
        super().__init__()
        self.wanted, self.own = wanted, own
        self.leaves: dict[str, list[Tensor]] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function, and look at what it gives."""
        if func is torch._C._set_grad_enabled and not args[0]:
            self.own.cuts[f"no_grad at {frame_source()}"] = None
            return None
        if func in STOPS:
            self.own.cuts[f"{STOPS[func]} at {frame_source()}"] = None
        out = CALLS.get(func, func)(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_floating_point() and out.dim():
            if out.is_inference():
                self.own.skipped = "the model computes under inference_mode"
                return out
            for name, value in self.wanted.items():
                if out.numel() == value.numel() and not self._below(out, name):
                    error, scale = difference(out.detach().reshape(-1), value.reshape(-1))
                    if error <= 1e-6 * scale:
                        leaf = out.detach().requires_grad_()
                        self.leaves.setdefault(name, []).append(leaf)
                        return leaf.clone()
                if self._again(out, value, args) and not self._below(out, name):
                    self.own.again.add(name)
        return out

    def _again(self, out: Tensor, value: Tensor, args: tuple[Any, ...]) -> bool:
        """Whether a lookup gives rows of a leaf's ``value``, but not all of them in order."""
        rows, known = out.reshape(-1, out.shape[-1]), value.reshape(-1, value.shape[-1])
        ids = any(isinstance(a, Tensor) and a.dtype in (torch.int64, torch.int32) for a in args)
        if not ids or not len(rows) or rows.shape[1] != known.shape[1]:
            return False
        return any(bool((known == row).all(1).any()) for row in (rows[0], rows[-1]))

    def _below(self, out: Tensor, name: str) -> bool:
        """Whether ``out`` was made from a leaf of this name."""
        known = {id(leaf) for leaf in self.leaves.get(name, ())}
        return bool(known) and any(id(getattr(f, "variable", None)) in known for f in _history(out))


STOPS = {Tensor.detach: "detach", Tensor.data.__get__: ".data"}  # type: ignore[attr-defined]


def _history(out: Tensor) -> Iterator[Any]:
    """The functions of autograd that ``out`` was made by."""
    left, seen = [out.grad_fn], set()
    while left:
        f = left.pop()
        if f is not None and f not in seen:
            seen.add(f)
            yield f
            left += [g for g, _ in f.next_functions]


def _theirs(
    program: Program,
    model: nn.Module,
    one: Inputs,
    nodes: Collection[fx.Node],
    at: Mapping[str, Tensor],
    i: int,
) -> _Own:
    """Autograd through the model for sample ``i`` alone."""
    own = _Own()
    direct = {n: leaf for n, leaf in program.leaves.items() if leaf.op == "placeholder"}
    given = [
        t.detach().clone().requires_grad_() if name in direct else t
        for name, t in zip(one.names, one.tensors, strict=True)
    ]
    watch = _Watch({n: v[i] for n, v in at.items() if n not in direct}, own)
    outputs: list[Tensor] = []
    with (
        _refusing(own),
        undisturbed(model),
        as_python(model),
        taken_back(model),
        torch.enable_grad(),
        watch,
    ):
        args, kwargs = one.rebuild(
            tuple(t.clone() if n in direct else t for n, t in zip(one.names, given, strict=True))
        )
        outputs = flatten_output(model(*args, **kwargs))[0]
    if not outputs:
        return own
    with torch.enable_grad():
        scalar = torch.stack(
            [_mixture(outputs[program.output_nodes.index(n)]) for n in nodes]
        ).sum()
    leaves = {
        **{n: [t] for n, t in zip(one.names, given, strict=True) if n in direct},
        **watch.leaves,
    }
    lost = [n for n in program.leaves if n not in leaves]
    own.functions.update(
        (_called(f), None) for f in _history(scalar) if isinstance(f, BackwardCFunction)
    )
    own.functions.pop("", None)
    if lost:
        own.skipped = (
            own.skipped or f"the embedding of {lost[0]!r} was not found in the model's run"
        )
    if own.skipped:
        return own
    if not scalar.requires_grad:
        own.skipped = "the model's output has no gradient of its own (inference_mode)"
        return own
    flat = [t for ts in leaves.values() for t in ts]
    with _refusing(own):
        found = torch.autograd.grad(scalar, flat, allow_unused=True, materialize_grads=True)
        rest = iter(found)
        own.gradients = {
            n: torch.stack([next(rest) for _ in ts]).sum(0) for n, ts in leaves.items()
        }
    return own


@contextlib.contextmanager
def _refusing(own: _Own) -> Iterator[None]:
    """What the model's own code raises when it is differentiated is why there is no gradient to
    compare: a backward of its own may ask for train mode, say."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        own.skipped = f"the model itself cannot be differentiated: {said}"


def _together(
    program: Program, model: nn.Module, some: Inputs, nodes: Collection[fx.Node]
) -> list[dict[str, Tensor | None]] | None:
    """Autograd through the model for all samples in one batch, each by its own output: some of
    PyTorch's kernels have another gradient for one sample alone (LeViT, at torch 2.15). ``None``
    where an explained input is none of the model's numbers."""
    if any(leaf.op != "placeholder" for leaf in program.leaves.values()):
        return None
    given = {
        name: t.detach().clone().requires_grad_() if name in program.leaves else t
        for name, t in zip(some.names, some.tensors, strict=True)
    }
    with (
        undisturbed(model),
        as_python(model),
        taken_back(model),
        torch.enable_grad(),
        Formulas(),
    ):
        args, kwargs = some.rebuild(
            tuple(t.clone() if n in program.leaves else t for n, t in given.items())
        )
        outputs = flatten_output(model(*args, **kwargs))[0]
        scalar = torch.stack(
            [
                _mixture(outputs[program.output_nodes.index(n)][i : i + 1])
                for n in nodes
                for i in range(some.batch)
            ]
        ).sum()
        if not scalar.requires_grad:
            return None
        found = torch.autograd.grad(
            scalar, [given[n] for n in program.leaves], allow_unused=True, materialize_grads=True
        )
    each = dict(zip(program.leaves, found, strict=True))
    return [{n: g[i] for n, g in each.items()} for i in range(some.batch)]


def _overflows(mine: Mapping[str, Tensor], theirs: list[dict[str, Tensor | None]]) -> str | None:
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


def _called(function: Any) -> str:
    """The class of a function with a backward of its own; none of PyTorch's, but for those it makes
    of others inside a transform."""
    made = getattr(function, "_forward_cls", None)
    if made is None or (
        made.__module__.split(".")[0] == "torch" and made.__module__ != autograd_function.__name__
    ):
        return ""
    return f"{made.__module__}.{made.__qualname__}"


def _largest(
    program: Program, mine: Mapping[str, Tensor], theirs: list[dict[str, Tensor | None]]
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
