"""``compare``: several methods on one batch, from one forward pass; how alike they rank tokens;
and, given a metric, which heads and layers serve it best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from relprop.api.comparison import Comparison, Metric, Trial
from relprop.api.explain import conditions_of
from relprop.error_boundary import guarded
from relprop.errors import OptionError, RelpropError, first_line
from relprop.explanation import Explanation
from relprop.methods import GROUPS, method_named
from relprop.runner.ask import ask
from relprop.runner.conditions import Memory
from relprop.runner.fusion import FUSIONS
from relprop.runner.question import Question, checked_keep


@guarded
def compare(
    model: nn.Module | str | Any,
    inputs: Any,
    methods: Iterable[str | tuple[str, Mapping[str, Any]]] | None = None,
    target: Any = None,
    *,
    metric: Metric | None = None,
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
) -> Comparison:
    """Explanations by several methods, from one forward pass and one gradient for all that can
    share them.

    Args:
        methods: names, or pairs of a name and its options (``rules=`` among them); a group
            (``relprop.methods.GROUPS``) stands for its methods: ``"usual"`` (six that differ),
            ``"all"`` whose cost does not grow with the input, those of them over ``"attention"``
            or at the ``"input"``. ``None``: the usual ones.
        metric: a function of an explanation, a number or one per sample; then every ``head_fusion``
            is tried with every range of layers that ends at the output, for each of ``methods``
            that has these options. Higher is better, unless
            ``metric.higher_is_better`` is false.

    Other arguments as ``explain`` has them. A method that is not defined for this model is listed
    with its reason, not raised. Raises ``OptionError`` for a method that does not exist, and
    whatever ``explain`` raises if no method is defined.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> c = relprop.compare(digit_scene_model(), torch.rand(2, 1, 32, 32), ["transformer_attribution", "rollout"], target=3)
    >>> list(c.explanations), c.rank_correlations()[1].shape
    (['transformer_attribution', 'rollout'], torch.Size([2, 2]))
    """  # noqa: E501
    questions = _questions(methods, keep, ledger)
    how = conditions_of(locals())
    refused: dict[int, RelpropError] = {}
    (found,) = ask(model, inputs, [target], list(questions.values()), how, refused)
    explanations = {label: e for label, e in zip(questions, found, strict=True) if e is not None}
    if not explanations:
        raise next(iter(refused.values()))
    reasons = {label: first_line(refused[i]) for i, label in enumerate(questions) if i in refused}
    trials: tuple[Trial, ...] = ()
    if metric is not None:
        tried = _to_try({k: questions[k] for k in explanations}, explanations)
        trials = _tried(tried, ask(model, inputs, [target], tried, how, {})[0], metric)
    return Comparison(explanations, reasons, trials)


def _questions(
    methods: object, keep: str | Iterable[str], ledger: bool | None
) -> dict[str, Question]:
    """The questions by label; a method that is there twice is told apart by its options."""
    kept, wanted = checked_keep(keep), _wanted(methods)
    questions: dict[str, Question] = {}
    for name, options in wanted:
        method_named(name, level=None)
        several = sum(other == name for other, _ in wanted) > 1
        written = ", ".join(f"{k}={v!r}" for k, v in options.items())
        label = f"{name}({written})" if several and options else name
        if label in questions:
            raise OptionError(f"methods has {label} twice")
        plain = {k: v for k, v in options.items() if k != "rules"}
        questions[label] = Question(name, plain, options.get("rules"), kept, ledger=ledger)
    return questions


def _wanted(methods: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Names with their options, groups written out."""
    methods = "usual" if methods is None else methods
    several = isinstance(methods, Iterable) and not isinstance(methods, str)
    given = list(methods) if several else [methods]
    if not given:
        raise OptionError("methods is empty: give names, or pairs of a name and its options")
    named: list[tuple[str, Mapping[str, Any]]] = []
    for entry in given:
        match entry:
            case str() if entry in GROUPS:
                named += [(name, {}) for name in GROUPS[entry]()]
            case str():
                named.append((entry, {}))
            case [str() as name, Mapping() as options]:
                named.append((name, options))
            case _:
                raise OptionError(
                    f"methods: {entry!r} is neither a name nor a pair of a name and its options",
                    then=['methods=["rollout", ("gae", {"layers": [-1]})]'],
                )
    return named


def _to_try(
    questions: Mapping[str, Question], explanations: Mapping[str, Explanation]
) -> list[Question]:
    """Every fusion of heads with every range of layers that ends at the output."""
    tried = [
        replace(
            question,
            options={**question.options, "head_fusion": how, "layers": slice(k, None)},
            keep=frozenset(),
            ledger=False,
        )
        for label, question in questions.items()
        if {"head_fusion", "layers"} <= set(question.by.options())
        for how in FUSIONS
        for k in range(len(explanations[label].facts["attention_sites"]))
    ]
    if not tried:
        raise OptionError(
            f"metric=: none of {', '.join(questions)} has the options head_fusion= and layers="
        )
    return tried


def _tried(
    tried: Sequence[Question], found: Sequence[Explanation | None], metric: Metric
) -> tuple[Trial, ...]:
    """What the metric says of each choice, best first."""
    if not callable(metric):
        raise OptionError(f"metric={metric!r}: a function from an explanation to numbers is needed")
    trials = [
        Trial(q.method, q.options, _mean(metric(e)), e)
        for q, e in zip(tried, found, strict=True)
        if e is not None
    ]
    highest_first = bool(getattr(metric, "higher_is_better", True))
    return tuple(sorted(trials, key=lambda t: t.value, reverse=highest_first))


def _mean(value: Any) -> float:
    try:
        return float(torch.as_tensor(value, dtype=torch.float64).mean())
    except (TypeError, ValueError, RuntimeError) as error:
        fact = f"metric returned {value!r}: a number, or one per sample, is needed"
        raise OptionError(fact) from error
