"""The public API of flat programs: ``compile`` makes an explainer of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from relprop.compiled import Explainer, make_flat
from relprop.compiled.explainer import Runs, without_autograd
from relprop.compiled.live import Live
from relprop.compiled.native import call_functions
from relprop.compiled.saving import read
from relprop.error_boundary import guarded
from relprop.errors import OptionError, nearest
from relprop.methods.options import MethodOptions
from relprop.opening import check_devices, opened
from relprop.rules import RuleSet
from relprop.runner.conditions import Conditions
from relprop.runner.question import Question, checked_keep
from relprop.runner.run import Part
from relprop.runner.session import chosen_inputs
from relprop.runner.verification import retried_with_shared
from relprop.tracer.binding import Inputs, bind, refuse_unlike
from relprop.tracer.surroundings import undisturbed


@guarded
def compile(
    model: nn.Module | str | Any,
    inputs: Any,
    target: Any = None,
    *,
    method: str = "transformer_attribution",
    rules: RuleSet | str | None = None,
    backend: str | Callable[..., Any] | None = None,
    ledger: bool = False,
    explain_inputs: Sequence[str | int] | str | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    keep: str | Iterable[str] = (),
    processor: Any = None,
    trust_remote_code: bool = False,
    verify: bool = True,
    strict: bool = False,
    **method_options: Unpack[MethodOptions],
) -> Explainer:
    """An explainer of ``model`` for inputs of this shape: forward pass, gradient, relevance and
    roll-up as one program that runs for any batch and any target of one output. It reads the
    model's weights as they are at each call.

    Args:
        model: as ``relprop.explain`` takes it, and so are ``inputs``, ``method``, ``rules``,
            ``explain_inputs``, ``precision``, ``on_unknown``, ``keep``, ``processor``,
            ``trust_remote_code`` and ``strict``.
        target: names the output of which one element per sample is explained; each call says which.
        backend: ``None`` runs the program as it was recorded, which gives what ``explain`` gives
            but for rounding; ``"inductor"``, or any other backend of ``torch.compile``, compiles
            it.
        ledger: keep the books of relevance; without them the program is smaller and faster.
        verify: compare the program with ``explain``, which itself is compared with the model: now,
            on these inputs, and in the first call after more than weights of the model were
            changed, which is refused if they differ. ``False``: trust what was recorded.

    Raises:
        OptionError, TargetError, InputError: for what cannot be one program, by name
            (docs/compile.md).
        CaptureError: where the program does not give what ``explain`` gives.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> explainer = relprop.compile(digit_scene_model(), torch.rand(2, 1, 32, 32))
    >>> explainer(torch.rand(4, 1, 32, 32), target=[3, 1, 4, 1]).scores.shape
    torch.Size([4, 65])
    """
    question = Question(method, method_options, rules, checked_keep(keep), ledger=ledger)
    _refuse_backend(backend)
    how = Conditions(None, explain_inputs, precision, on_unknown, verify=verify)
    module, prepared = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
    given = module if isinstance(model, (str, Path)) else model
    with undisturbed(module), torch.no_grad():
        bound = bind(prepared.inputs)
        if not verify:
            refuse_unlike(bound)
        check_devices(module, bound)
        chosen_inputs(bound, explain_inputs)

    def made(bound: Inputs) -> Explainer:
        with undisturbed(module), torch.no_grad():
            part = Part(bound, prepared, 0, bound.batch)
            usage, live = make_flat(module, part, target, question, how)
        by = processor or prepared.processor
        live = replace(live, given=given, processor=by)
        explainer = Explainer(_running(live, backend), usage, live)
        if verify:
            explainer(prepared.inputs, target)
        return explainer

    return retried_with_shared(module, bound, made) if verify else made(bound)


def _running(live: Live, backend: str | Callable[..., Any] | None) -> Runs:
    """What runs a recorded program. On a CPU Inductor is asked for a program in C++ throughout:
    what Python does between two kernels is a seventh of the time of a small model."""
    module = live.module
    if backend is None:
        call_functions(module, live.functions)
        return without_autograd(module)
    if backend != "inductor" or any(t.device.type != "cpu" for t in module.parameters()):
        return torch.compile(module, backend=backend)
    return torch.compile(module, backend=backend, options={"cpp_wrapper": True})


def _refuse_backend(backend: object) -> None:
    """Raises ``OptionError`` for a name that ``torch.compile`` does not know."""
    if backend is None or callable(backend):
        return
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        there = f"there are {', '.join(map(repr, known))}, and functions"
        raise OptionError(f"backend={backend!r}: {there}", then=nearest(backend, known))


@guarded
def load_explainer(path: str | Path, *, processor: Any = None) -> Explainer:
    """An explainer that ``Explainer.save`` wrote: it explains without the model. ``processor``:
    what reads inputs that are no tensors, and tells words.

    Raises ``InputError`` for any other file."""
    return read(path, processor)
