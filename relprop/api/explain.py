"""The public door: ``explain``, ``explain_many``, ``trace``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from relprop.adapters import adapter_for
from relprop.api.attribution import attribute_target, start_attribution
from relprop.api.opening import open_model, opened
from relprop.api.run import KEEP, Request, explain_target, start_run
from relprop.api.session import check_devices, open_session
from relprop.api.wrapped import speaker
from relprop.errors import OptionError, TargetError
from relprop.explanation import Explanation, join
from relprop.methods import method_named
from relprop.rules import RuleSet
from relprop.tracer.binding import Inputs, bind
from relprop.tracer.program import Program
from relprop.tracer.surroundings import same_chance, undisturbed
from relprop.tracer.trace import trace_program


def explain(
    model: nn.Module | str | Any, inputs: Any, target: Any = None, *, method: str = "transformer_attribution", rules: RuleSet | str | None = None,
    batch_size: int | None = None, precision: str | torch.dtype | None = None, on_unknown: str = "generic", keep: str | Iterable[str] = (),
    progress: bool = False, processor: Any = None, trust_remote_code: bool = False, **method_options: Any,
) -> Explanation:
    """What ``model`` looked at in each sample of ``inputs``, for ``target``. The model is left exactly as it was.

    Args:
        model: any ``nn.Module``, in any state; it is explained as in ``eval()``. Or a ``transformers`` pipeline, or the id or folder of a model
            (docs/models.md).
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments; batch first. Token ids as they are. For a pipeline, an id or
            a folder: a text, an image, a list of them, or whatever else the pipeline or the model's own processor takes.
        target: ``None`` (the predicted class; the likeliest next token at the last real position of a text or a decoder; the best span; the
            similarity of a pair), an int, a label, a tuple that indexes one element of a higher-rank output, one of ``relprop.targets`` (spans,
            tokens, queries, regions, any output by its name), a list with one per sample, or a callable from the output of one sample (batch
            dimension 1) to a scalar (docs/targets.md).
        method: ``"transformer_attribution"`` (Chefer et al. 2021, Eq. 13–14; options ``layers=``, ``normalize_rows=``, ``use_gradient=``) or
            ``"rollout"``, over attention; ``"lrp"``, ``"attnlrp"``, ``"cp_lrp"``, ``"epsilon_lrp"``, ``"input_gradient"``, ``"gradient_x_input"`` or
            ``"integrated_gradients"`` (options ``n_steps=``, ``baseline=``), at the input of any model: one score per pixel, time step or token (docs/methods.md).
        rules: a rule set or its name: ``relprop.rules.PRESETS``; ``None``: the method's own, ``"paper"``, for ``lrp`` and its relatives that of their name.
        batch_size: at most this many samples at a time; the numbers do not depend on it.
        precision: ``"float64"`` or ``"float32"`` computes in that type on copies; ``None`` in the model's own.
        on_unknown: ``"error"`` refuses an op without a rule, ``"generic"`` explains it by Eq. 2 and warns.
        keep: any of ``"blocks"``, ``"matrix"``, ``"input"``, kept on the result.
        progress: show a bar over the parts of ``batch_size`` (needs ``tqdm``).
        processor: what reads ``inputs`` that are no tensors: a tokenizer for text, an image processor or transform for pictures, a feature
            extractor for sound, a processor of several with a dict of its arguments. With ready inputs, too, it tells words, special tokens and seconds.
        trust_remote_code: for a model given by id or folder, run the code that comes with it.

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
        progress=progress, processor=processor, trust_remote_code=trust_remote_code, **method_options,
    )[0]


def explain_many(
    model: nn.Module | str | Any, inputs: Any, targets: Sequence[Any], *, method: str = "transformer_attribution", rules: RuleSet | str | None = None,
    batch_size: int | None = None, precision: str | torch.dtype | None = None, on_unknown: str = "generic", keep: str | Iterable[str] = (),
    progress: bool = False, processor: Any = None, trust_remote_code: bool = False, **method_options: Any,
) -> list[Explanation]:
    """One explanation per target, from one forward pass; each equals ``explain`` for that target alone. Arguments as there."""
    if not isinstance(targets, (list, tuple)) or not targets:
        raise OptionError("targets is a non-empty list, one entry per explanation")
    chosen = method_named(method, level=None)
    if rules is not None and chosen.level == "input" and "relevance" not in chosen.needs:
        raise OptionError(f"method {method!r} follows gradients, not relevance rules: leave rules= out")
    rules = chosen.rules if rules is None else rules
    start, finish = (start_run, explain_target) if chosen.level == "attention" else (start_attribution, attribute_target)
    model, prepared = opened(model, inputs, processor, trust_remote_code=trust_remote_code)
    request = Request(chosen, chosen.checked(method_options), _kept(keep), prepared)
    parts: list[list[Explanation]] = []
    with undisturbed(model), torch.no_grad():
        bound = bind(prepared.inputs)
        check_devices(model, bound)
        size = _part_size(batch_size, bound)
        split = _per_sample(targets, bound.batch)
        with same_chance(model):
            session = open_session(model, bound, rules=rules, precision=precision, on_unknown=on_unknown)
        if session.program.input_specialised:
            size = 1
        for first in _progress(range(0, bound.batch, size), progress):
            part = bound.select(first, min(first + size, bound.batch))
            some = [cut(first, first + part.batch) for cut in split]
            with same_chance(model):  # a model that draws random numbers draws the same for every part
                if session.program.input_specialised and first:
                    session = open_session(model, part, rules=rules, precision=precision, on_unknown=on_unknown)
                run = start(session, part, some, _of_part(request, first, part.batch, bound.batch))
                parts.append([finish(run, t, again=i + 1 < len(some)) for i, t in enumerate(some)])
    return [join(list(same)) for same in zip(*parts, strict=True)]


def trace(model: nn.Module | str | Any, inputs: Any) -> Program:
    """The model as relprop sees it: a ``Program`` around a ``torch.fx`` graph of ATen ops, for inputs of these shapes."""
    model, inputs = open_model(model, inputs)
    with undisturbed(model):
        bound = bind(inputs)
        check_devices(model, bound)
        return trace_program(model, bound, adapter_for(speaker(model)).token_inputs(model, bound))


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


def _of_part(request: Request, first: int, count: int, batch: int) -> Request:
    """The request for some samples: tensors among the options that have one entry per sample are cut, and so is what is known of each sample."""
    if count < batch:
        request = replace(request, options={name: _cut(value, first, count, batch) for name, value in request.options.items()})
    return replace(request, raw=request.raw.part(first, count))


def _cut(value: Any, first: int, count: int, batch: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(v, first, count, batch) for name, v in value.items()}
    return value[first:first + count] if isinstance(value, torch.Tensor) and value.shape[:1] == (batch,) else value


def _progress(parts: range, wanted: bool) -> Iterator[int]:
    if not wanted:
        return iter(parts)
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise OptionError("progress=True needs tqdm: pip install tqdm") from None
    return iter(tqdm(parts, desc="explain", unit="part"))
