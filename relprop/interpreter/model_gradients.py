"""Autograd through the user's own model, as its own code runs: gradients at the explained inputs,
and what in the model stops or replaces a gradient on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn
from torch._functorch import autograd_function
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from relprop.errors import first_line
from relprop.operations import Args, Kwargs, Operator, Value
from relprop.tracer.binding import Inputs, flatten_output
from relprop.tracer.kernels import CALLS
from relprop.tracer.model_comparison import difference, giving_few, largest
from relprop.tracer.program import Program
from relprop.tracer.readout import Head, Indices
from relprop.tracer.recorded import frame_source
from relprop.tracer.side_effects import restored
from relprop.tracer.surroundings import as_python, undisturbed


@dataclass
class ModelGradients:
    """Autograd through the model for one sample: gradients by input, and what was seen; ``again``:
    the inputs whose ids it looks up in parts, or shifted, too."""

    gradients: Mapping[str, Tensor | None] = field(default_factory=dict)
    functions: dict[str, None] = field(default_factory=dict)
    stops: dict[str, None] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    skipped: str = ""


#: How many elements of one sample's output are mixed, at the most.
MIXED = 2**20


def mixtures(value: Tensor) -> Tensor:
    """For each sample, (batch,), a sum of elements of its output, with weights of both signs that
    the size alone decides: of all of them, or of so many that lie as far apart."""
    rows = value.reshape(len(value), -1)
    rows = rows[:, :: -(-rows.shape[1] // MIXED) or 1]
    weights = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0))
    finite = torch.where(rows.isfinite(), rows, 0.0)
    return (finite * weights.to(value.device, value.dtype)).sum(1)


class Stops(TorchFunctionMode):
    """Writes down what stops a gradient while a model runs, or handles it otherwise."""

    def __init__(self, found: dict[str, None]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(
        self,
        func: Operator,
        types: object,
        args: Args = (),
        kwargs: Kwargs | None = None,
    ) -> Value:
        """Run the function, and look at it."""
        if func is torch._C._set_grad_enabled and not args[0]:
            self.found[f"no_grad at {frame_source()}"] = None
        if func in STOPS:
            self.found[f"{STOPS[func]} at {frame_source()}"] = None
        return self.called(func, args, kwargs or {})

    def called(self, func: Operator, args: Args, kwargs: Kwargs) -> Value:
        """What the function gives."""
        return func(*args, **kwargs)


class _Watch(Stops):
    """The model's own run: the values of leaves that are not inputs become leaves of autograd,
    parts under ``no_grad`` are differentiated, and what stops a gradient is written down."""

    def __init__(self, wanted: Mapping[str, Tensor], own: ModelGradients) -> None:
        super().__init__(own.stops)
        self.wanted, self.own = wanted, own
        self.leaves: dict[str, list[Tensor]] = {}
        self.sizes = {name: largest(value) for name, value in wanted.items()}

    def called(self, func: Operator, args: Args, kwargs: Kwargs) -> Value:
        """What the function gives, or the leaf that this is."""
        if func is torch._C._set_grad_enabled and not args[0]:
            return None
        call: Operator = CALLS.get(func, func)
        out = call(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point() and out.dim() and out.numel():
            if out.is_inference():
                self.own.skipped = "the model computes under inference_mode"
                return out
            for name, value in self.wanted.items():
                if _is(out, value, self.sizes[name]) and not self._below(out, name):
                    leaf = out.detach().requires_grad_()
                    self.leaves.setdefault(name, []).append(leaf)
                    return leaf.clone()
                if self._again(out, value, args) and not self._below(out, name):
                    self.own.again.add(name)
        return out

    def _again(self, out: Tensor, value: Tensor, args: Args) -> bool:
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


def _is(out: Tensor, value: Tensor, size: float) -> bool:
    """Whether a tensor has these values, of which ``size`` is the largest; their first numbers
    mostly tell that it has not."""
    if out.numel() != value.numel():
        return False
    mine, wanted = out.detach().reshape(-1), value.reshape(-1)
    parts = ((mine[:n], wanted[:n]) for n in (64, None))
    return all(difference(*part)[0] <= 1e-6 * size for part in parts)


STOPS: dict[Operator, str] = {
    Tensor.detach: "detach",
    Tensor.data.__get__: ".data",  # type: ignore[attr-defined]
    Tensor.register_hook: "register_hook",
}


def _history(out: Tensor) -> Iterator[Node]:
    """The functions of autograd that ``out`` was made by."""
    left, seen = [out.grad_fn], set()
    while left:
        f = left.pop()
        if f is not None and f not in seen:
            seen.add(f)
            yield f
            left += [g for g, _ in f.next_functions]


#: A number of one sample, (1,), from its outputs, batch first, and what there is of some of these.
Scalar = Callable[[Mapping[fx.Node, Tensor], Indices], Tensor]


def mixture_of(nodes: Collection[fx.Node]) -> Scalar:
    """The sum of the mixtures of some outputs."""
    return lambda outputs, _: torch.stack([mixtures(outputs[n]) for n in nodes]).sum(0)


def model_gradients(
    program: Program,
    model: nn.Module,
    one: Inputs,
    scalar: Scalar,
    at: Mapping[str, Tensor],
    heads: Sequence[Head] = (),
) -> ModelGradients:
    """Autograd through the model for one sample alone, of a ``scalar`` of its outputs. ``at``: the
    values of the explained inputs' embeddings, batch first, of that sample; ``heads``: those of
    which only what is read is made."""
    own = ModelGradients()
    direct = {n for n, leaf in program.leaves.items() if leaf.op == "placeholder"}
    watch = _Watch({n: v for n, v in at.items() if n not in direct}, own)
    outputs = list[Tensor]()
    kept: Indices = {}
    with _refusing(own), giving_few(model, heads) as few:
        given, outputs = _attached_run(model, one, direct, watch)
        kept = few()
    if not outputs:
        return own
    with torch.enable_grad():
        rows = (t[None] for t in outputs)
        number = scalar(dict(zip(program.output_nodes, rows, strict=False)), kept).sum()
    leaves = {**{n: [given[n]] for n in one.names if n in direct}, **watch.leaves}
    backward = (f for f in _history(number) if isinstance(f, BackwardCFunction))
    own.functions.update((_called(f), None) for f in backward)
    own.functions.pop("", None)
    if lost := [n for n in program.leaves if n not in leaves]:
        why = f"the embedding of {lost[0]!r} was not found in the model's run"
        own.skipped = own.skipped or why
    elif not own.skipped and not number.requires_grad:
        own.skipped = "the model's output has no gradient of its own (inference_mode)"
    if not own.skipped:
        with _refusing(own):
            own.gradients = _summed_gradients(number, leaves)
    return own


def _attached_run(
    model: nn.Module, inputs: Inputs, direct: Collection[str], watch: AbstractContextManager[object]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The inputs by name, those of ``direct`` as leaves of autograd, and the model's outputs, as
    its own code runs under ``watch``."""
    given = {
        name: t.detach().clone().requires_grad_() if name in direct else t
        for name, t in zip(inputs.names, inputs.tensors, strict=True)
    }
    with (
        undisturbed(model),
        as_python(model),
        restored(model),
        torch.enable_grad(),
        watch,
    ):
        tensors = (t.clone() if n in direct else t for n, t in given.items())
        args, kwargs = inputs.rebuild(tuple(tensors))
        return given, flatten_output(model(*args, **kwargs))[0]


def _summed_gradients(scalar: Tensor, leaves: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    """∂scalar at every leaf, the sum over the places where it is read."""
    flat = [t for tensors in leaves.values() for t in tensors]
    found = iter(torch.autograd.grad(scalar, flat, allow_unused=True, materialize_grads=True))
    return {
        name: torch.stack([next(found) for _ in tensors]).sum(0) for name, tensors in leaves.items()
    }


@contextlib.contextmanager
def _refusing(own: ModelGradients) -> Iterator[None]:
    """What the model's own code raises when it is differentiated is why there is no gradient to
    compare: a backward of its own may ask for train mode, say."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        own.skipped = f"the model itself cannot be differentiated: {reason}"


def gradients_of_batch(
    program: Program, model: nn.Module, some: Inputs, nodes: Collection[fx.Node]
) -> list[dict[str, Tensor | None]] | None:
    """Autograd through the model for all samples in one batch, each by its own output: some of
    PyTorch's kernels have another gradient for one sample alone (LeViT, at torch 2.15). ``None``
    where an explained input is none of the model's numbers."""
    if any(leaf.op != "placeholder" for leaf in program.leaves.values()):
        return None
    given, outputs = _attached_run(model, some, program.leaves, contextlib.nullcontext())
    with torch.enable_grad():
        own = [outputs[program.output_nodes.index(n)] for n in nodes]
        mixed = [mixtures(value[None, i]) for value in own for i in range(some.batch)]
        scalar = torch.stack(mixed).sum()
    if not scalar.requires_grad:
        return None
    each = _summed_gradients(scalar, {n: [given[n]] for n in program.leaves})
    return [{n: g[i] for n, g in each.items()} for i in range(some.batch)]


def _called(function: object) -> str:
    """The class of a function with a backward of its own; none of PyTorch's, but for those it makes
    of others inside a transform."""
    made = getattr(function, "_forward_cls", None)
    if made is None or (
        made.__module__.split(".")[0] == "torch" and made.__module__ != autograd_function.__name__
    ):
        return ""
    return f"{made.__module__}.{made.__qualname__}"
