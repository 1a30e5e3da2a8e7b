"""The public door: ``explain``, ``explain_many``, ``trace``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from relprop.adapters import adapter_for
from relprop.api.run import KEEP, Request, explain_target, start_run
from relprop.api.session import check_devices, open_session, usable_model
from relprop.errors import OptionError, TargetError
from relprop.explanation import Explanation, join
from relprop.methods import method_named
from relprop.rules import RuleSet
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.program import Program
from relprop.tracer.surroundings import undisturbed
from relprop.tracer.trace import trace_program


def explain(
    model: nn.Module, inputs: Any, target: Any = None, *, method: str = "transformer_attribution", rules: RuleSet | str = "paper",
    batch_size: int | None = None, precision: str | torch.dtype | None = None, on_unknown: str = "generic", keep: str | Iterable[str] = (),
    progress: bool = False, **method_options: Any,
) -> Explanation:
    """What ``model`` looked at in each sample of ``inputs``, for ``target``. The model is left exactly as it was.

    Args:
        model: any ``nn.Module``, in any state; it is explained as in ``eval()``.
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments; batch first. Token ids as they are.
        target: ``None`` (the predicted class; for a causal language model the predicted next token at the last real position), an int,
            a list or tensor with one per sample, a tuple that indexes one element of a higher-rank output, a label of the config, or a
            callable from the output of one sample (batch dimension 1) to a scalar.
        method: ``"transformer_attribution"`` (Chefer et al. 2021, Eq. 13–14; options ``layers=``, ``normalize_rows=``, ``use_gradient=``) or
            ``"rollout"``.
        rules: a rule set or its name: ``relprop.rules.PRESETS``.
        batch_size: at most this many samples at a time; the numbers do not depend on it.
        precision: ``"float64"`` or ``"float32"`` computes in that type on copies; ``None`` in the model's own.
        on_unknown: ``"error"`` refuses an op without a rule, ``"generic"`` explains it by Eq. 2 and warns.
        keep: any of ``"blocks"``, ``"matrix"``, ``"input"``, kept on the result.
        progress: show a bar over the parts of ``batch_size`` (needs ``tqdm``).

    Raises:
        InputError, TargetError, OptionError, CaptureError, RuleError, NoAttentionError, RollUpError: all are ``RelpropError``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> e = relprop.explain(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3)
    >>> e.scores.shape, e.heatmap().shape
    (torch.Size([2, 65]), torch.Size([2, 32, 32]))
    """
    return explain_many(
        model, inputs, [target], method=method, rules=rules, batch_size=batch_size, precision=precision, on_unknown=on_unknown, keep=keep,
        progress=progress, **method_options,
    )[0]


def explain_many(
    model: nn.Module, inputs: Any, targets: Sequence[Any], *, method: str = "transformer_attribution", rules: RuleSet | str = "paper",
    batch_size: int | None = None, precision: str | torch.dtype | None = None, on_unknown: str = "generic", keep: str | Iterable[str] = (),
    progress: bool = False, **method_options: Any,
) -> list[Explanation]:
    """One explanation per target, from one forward pass; each equals ``explain`` for that target alone. Arguments as there."""
    if not isinstance(targets, (list, tuple)) or not targets:
        raise OptionError("targets is a non-empty list, one entry per explanation")
    chosen = method_named(method)
    request = Request(chosen, chosen.checked(method_options), _kept(keep), inputs)
    model = usable_model(model)
    parts: list[list[Explanation]] = []
    with undisturbed(model), torch.no_grad():
        bound = bind(inputs)
        check_devices(model, bound)
        size = _part_size(batch_size, bound)
        split = _per_sample(targets, bound.batch)
        session = open_session(model, bound, rules=rules, precision=precision, on_unknown=on_unknown)
        if session.program.input_specialised:
            size = 1
        for first in _progress(range(0, bound.batch, size), progress):
            part = bound.select(first, min(first + size, bound.batch))
            if session.program.input_specialised and first:
                session = open_session(model, part, rules=rules, precision=precision, on_unknown=on_unknown)
            some = [cut(first, first + part.batch) for cut in split]
            run = start_run(session, part, some, _raw_part(request, first, part.batch, bound.batch))
            parts.append([explain_target(run, t, again=i + 1 < len(some)) for i, t in enumerate(some)])
    return [join(list(same)) for same in zip(*parts, strict=True)]


def trace(model: nn.Module, inputs: Any) -> Program:
    """The model as relprop sees it: a ``Program`` around a ``torch.fx`` graph of ATen ops, for inputs of these shapes."""
    model = usable_model(model)
    with undisturbed(model):
        bound = bind(inputs)
        check_devices(model, bound)
        return trace_program(model, bound, adapter_for(model).token_inputs(model, bound))


def _kept(keep: str | Iterable[str]) -> frozenset[str]:
    names = frozenset([keep] if isinstance(keep, str) else keep)
    if names - KEEP:
        raise OptionError(f"keep={sorted(names - KEEP)}: there are {', '.join(sorted(KEEP))}")
    return names


def _part_size(batch_size: int | None, inputs: Inputs) -> int:
    if batch_size is None:
        return inputs.batch
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise OptionError(f"batch_size={batch_size!r}: a positive integer or None")
    return batch_size


def _per_sample(targets: Sequence[Any], batch: int) -> list[Any]:
    """For each target a function that cuts out the entries of some samples; a wrong length is refused before anything runs."""
    def cutter(target: Any) -> Any:
        if hasattr(target, "__array__") and not isinstance(target, (torch.Tensor, int, float)):
            target = torch.as_tensor(target)
        many = isinstance(target, list) or (isinstance(target, torch.Tensor) and target.dim() > 0)
        if many and len(target) != batch:
            raise TargetError(f"target has {len(target)} entries for a batch of {batch}")
        return lambda first, last: target[first:last] if many else target

    return [cutter(t) for t in targets]


def _raw_part(request: Request, first: int, count: int, batch: int) -> Request:
    """The tokenizer's output, which labels tokens, only where it is of this part."""
    encodings = getattr(request.raw, "encodings", None)
    if not encodings:
        return replace(request, raw=None)
    return replace(request, raw=_Encodings(encodings[first:first + count]) if len(encodings) == batch else None)


class _Encodings:
    """Some samples of a tokenizer's output."""

    def __init__(self, encodings: Any) -> None:
        self.encodings = encodings


def _progress(parts: range, wanted: bool) -> Iterator[int]:
    if not wanted:
        return iter(parts)
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise OptionError("progress=True needs tqdm: pip install tqdm") from None
    return iter(tqdm(parts, desc="explain", unit="part"))
