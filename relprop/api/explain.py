"""The public API: ``explain``, ``explain_many``, ``trace``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Unpack

import torch
from torch import nn

from relprop.error_boundary import guarded
from relprop.explanation import Explanation
from relprop.explanation.joining import Explanations
from relprop.methods.options import CallOptions
from relprop.opening import check_devices
from relprop.opening.opening import open_model
from relprop.rules import RuleSet
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions, Memory
from relprop.runner.memory import checked_memory
from relprop.runner.question import Question, checked_keep
from relprop.runner.session import chosen_inputs, traced
from relprop.tracer.binding import bind, refuse_unlike
from relprop.tracer.program import Program
from relprop.tracer.surroundings import undisturbed


@guarded
def explain(
    model: nn.Module | str | Any,
    inputs: Any,
    target: Any = None,
    *,
    method: str = "transformer_attribution",
    rules: RuleSet | str | None = None,
    batch_size: int | None = None,
    explain_inputs: Sequence[str | int] | str | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    keep: str | Iterable[str] = (),
    progress: bool | None = None,
    processor: Any = None,
    trust_remote_code: bool = False,
    verify: bool = True,
    memory: Memory = "auto",
    keep_pictures: bool = True,
    ledger: bool | None = None,
    strict: bool = False,
    **method_options: Unpack[CallOptions],
) -> Explanation:
    """What ``model`` looked at in each sample of ``inputs``, for ``target``. The model is left
    exactly as it was.

    Args:
        model: any ``nn.Module``, in any state; it is explained as in ``eval()``. Or a
            ``transformers`` pipeline, or the id or folder of a model (docs/models.md).
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments; batch
            first. Token ids as they are. For a pipeline, an id or a folder: a text, an image, a
            list of them, or whatever else the pipeline or the model's own processor takes.
        target: ``None`` (the predicted class; the likeliest next token at the last real position of
            a text or a decoder; the best span; the similarity of a pair), an int, a label, a tuple
            that indexes one element of a higher-rank output, one of ``relprop.targets`` (spans,
            tokens, queries, regions, any output by its name), a list with one per sample, or a
            callable from the output of one sample (batch dimension 1) to a scalar
            (docs/targets.md).
        method: ``"transformer_attribution"`` (Chefer et al. 2021, Eq. 13–14; options ``layers=``,
            ``head_fusion=``, ``normalize_rows=``, ``use_gradient=``), or any that
            ``relprop.methods.available()`` lists: over attention, one score per token that
            attention mixes; or at the input of any model (``"lrp"``, ``"attnlrp"``,
            ``"integrated_gradients"``, ...), one score per pixel, time step or token
            (docs/methods.md). ``"recommended"``: the one that measurements recommend for pictures,
            texts, answers or speech, whichever is given (docs/which-method.md). Options are the
            method's own; every method takes ``average=``, points over which its scores are meaned
            (``relprop.methods.noise``, ``.path``).
        rules: a rule set or its name: ``relprop.rules.PRESETS``; ``None``: the method's own,
            ``"paper"``, for ``lrp`` and its relatives their own (``epsilon_lrp``: ``"epsilon"``,
            ``partial_lrp``: ``"reference_lrp"``, the others that of their name).
        batch_size: at most this many samples at a time; the numbers do not depend on it.
        explain_inputs: names of the inputs to explain, as ``streams`` has them, or positions in a
            tuple of arguments; ``None``: those with tokens, and without attention all. The others
            are constants, listed with the reason in ``facts["constant_inputs"]``: masks, segments,
            and beside inputs with tokens whatever has no axis of them (a timestep, a label, a
            conditioning vector).
        precision: ``"float64"`` or ``"float32"`` computes in that type on copies; ``None`` in the
            model's own.
        on_unknown: ``"error"`` refuses an op without a rule, ``"generic"`` explains it by Eq. 2 and
            warns.
        keep: any of ``"blocks"``, ``"matrix"``, ``"input"``, ``"layers"``, kept on the result.
        progress: show what it is at, on standard error or below a notebook's cell: whether the
            model is being captured or compared, which part of ``batch_size``, which method, target
            or step. ``None``: in a terminal or a notebook, once a call has taken two seconds.
        processor: what reads ``inputs`` that are no tensors: a tokenizer for text, an image
            processor or transform for pictures, a feature extractor for sound, a processor of
            several with a dict of its arguments. With ready inputs, too, it tells words, special
            tokens and seconds. What it is told may stand in the call: ``truncation=True``,
            ``max_length=``, ``do_rescale=``, ....
        trust_remote_code: for a model given by id or folder, run the code that comes with it.
        verify: run the model itself, once, on the whole batch, and refuse an explanation of
            anything else than what it returns; ``facts["compared"]`` says what came of it
            (docs/own-model.md). ``False``: trust the captured graph.
        memory: about how many bytes the answer may take beside the model. If it would take more,
            the graph is cut into segments that run one after another, which takes somewhat longer;
            the numbers stay the same. ``"auto"``: half of what is free; ``None``: no limit.
            ``facts["segments"]`` says how many there were (docs/scale.md).
        keep_pictures: of pictures that were given as such (PIL, arrays), keep small ones, their
            longer sides at most 448 pixels, which maps are drawn over and ``save`` writes down.
            ``False``: none.
        ledger: ``True``: relevance is walked and books are kept. ``None``: books are kept wherever
            relevance is walked; where every rule has a gradient form (``attnlrp``, ``cp_lrp``,
            ``lrp_gamma``, ``epsilon_lrp``) it is one gradient instead, many times faster, without
            books. ``False``: none. ``facts["relevance"]`` says how it was
            (docs/methods-relevance.md).
        strict: ``True``: any warning (``relprop.errors`` lists them, each with its cause) is a
            ``RelpropError`` instead.

    Raises:
        InputError, TargetError, OptionError, CaptureError, RuleError, NoAttentionError,
            RollUpError: all are ``RelpropError``.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> e = relprop.explain(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3)
    >>> e.scores.shape, e.heatmap().shape
    (torch.Size([2, 65]), torch.Size([2, 32, 32]))
    """
    return _answers(locals(), [target])[0]


@guarded
def explain_many(
    model: nn.Module | str | Any,
    inputs: Any,
    targets: Sequence[Any],
    *,
    method: str = "transformer_attribution",
    rules: RuleSet | str | None = None,
    batch_size: int | None = None,
    explain_inputs: Sequence[str | int] | str | None = None,
    precision: str | torch.dtype | None = None,
    on_unknown: str = "generic",
    keep: str | Iterable[str] = (),
    progress: bool | None = None,
    processor: Any = None,
    trust_remote_code: bool = False,
    verify: bool = True,
    memory: Memory = "auto",
    keep_pictures: bool = True,
    ledger: bool | None = None,
    strict: bool = False,
    **method_options: Unpack[CallOptions],
) -> list[Explanation]:
    """One explanation per target, from one forward pass; each equals ``explain`` for that target
    alone. Arguments as there."""
    return _answers(locals(), targets)


def _answers(given: Mapping[str, Any], targets: Sequence[Any]) -> list[Explanation]:
    """An explanation per target; ``given``: the arguments of ``explain`` by name."""
    asked = {name: given[name] for name in ("method", "rules", "ledger")}
    keep = checked_keep(given["keep"])
    question = Question(**asked, options=given["method_options"], keep=keep)
    rows = ask(given["model"], given["inputs"], targets, [question], conditions_of(given))
    return Explanations(row[0] for row in rows)  # type: ignore[misc]


def conditions_of(given: Mapping[str, Any]) -> Conditions:
    """The conditions among the arguments of a public function, by their names."""
    there = {f.name: given[f.name] for f in fields(Conditions) if f.name in given}
    return Conditions(**there | {"memory": checked_memory(given["memory"])})


@guarded
def trace(
    model: nn.Module | str | Any,
    inputs: Any,
    *,
    explain_inputs: Sequence[str | int] | str | None = None,
    strict: bool = False,
) -> Program:
    """The model as relprop sees it: a ``Program`` around a ``torch.fx`` graph of ATen ops, for
    inputs of these shapes. ``explain_inputs`` as in ``explain``."""
    model, inputs = open_model(model, inputs)
    with undisturbed(model):
        bound = bind(inputs)
        refuse_unlike(bound)
        check_devices(model, bound)
        return traced(model, bound, chosen_inputs(bound, explain_inputs))
